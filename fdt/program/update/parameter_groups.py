"""Groups parameters that have to be on one shard, and finds groups that are updated by the same operations.

A group is one parameter with its optimizer state, or several whose updates read each other (global_clipnorm). Groups whose
updates are the same elementwise graph can be updated as one long vector. The optimizer's graph decides this, not its name, so
it works for the script's own optimizers too.
"""

import dataclasses
import hashlib
from collections.abc import Iterable, Sequence
from typing import Any

from fdt.program.node_graph import Graph, control_inputs, data_inputs
from fdt.program.update import row_update
from fdt.program.update.cut import Cut
from fdt.program.update.elementwise import ELEMENTWISE, Scalars
from fdt.program.update.row_update import RowUpdate
from fdt.v1 import program_pb2

VARIABLES = {"ReadVariableOp", "AssignVariableOp", "AssignAddVariableOp", "AssignSubVariableOp"}
# Attributes that say nothing about what an operation computes.
_MEANINGLESS = ("_output_shapes", "_user_specified_name", "_class", "validate_shape")


@dataclasses.dataclass(frozen=True)
class ParameterGroup:
    """Parameters that are updated together.

    Attributes:
        gradients: Indices into Cut.gradients.
        parameters: Indices of trained variables.
        slots: Indices of their optimizer variables; two groups with the same signature have corresponding ones in the same
            order.
        writers: The operations that update them.
        signature: Equal for groups with the same elementwise update; None if the update is not elementwise.
        by_row: Of a table each row of which is updated by itself, that update; None for others.
    """

    gradients: tuple[int, ...]
    parameters: tuple[int, ...]
    slots: tuple[int, ...]
    writers: tuple[str, ...]
    signature: str | None
    by_row: RowUpdate | None = None


@dataclasses.dataclass(frozen=True)
class ParameterGroups:
    """A program's parameter groups, and the variables they share.

    Attributes:
        shared: Optimizer variables that depend on no parameter or gradient: iterations, the learning rate.
        shared_writers: The operations that update these.
    """

    units: tuple[ParameterGroup, ...]
    shared: tuple[int, ...]
    shared_writers: tuple[str, ...]


def find_units(source: program_pb2.StepProgram, cut: Cut) -> ParameterGroups:
    """Finds the parameter groups in the graph of the update."""
    return _Finder(source, cut).find()


class _Finder:
    def __init__(self, source: program_pb2.StepProgram, cut: Cut):
        self._source, self._cut = source, cut
        self._graph = Graph(cut.update)
        self._order = {name: i for i, name in enumerate(self._graph.nodes)}
        self._variables = {n: i for i, n in enumerate(source.step.variables) if n in self._graph.nodes}
        self._gradients = {name: i for i, g in enumerate(cut.gradients) for name in g.received}
        rates = {h.function for h in source.holes if h.kind == program_pb2.Hole.KIND_RATE}
        numbers = [n for n, i in self._variables.items() if not source.variables[i].tensor.shape]
        self._scalars = Scalars(self._graph, numbers, rates)
        roles = {n: source.variables[i].role for n, i in self._variables.items()}
        self._parameters = {n for n, role in roles.items() if role == program_pb2.ROLE_TRAINABLE}
        # The operations that write what differs from parameter to parameter.
        self._own = self._find_own()
        self._ancestors = {w: self._graph.ancestors([w]) for w in cut.update_effects}

    def _find_own(self) -> set[str]:
        after = self._graph.descendants([*self._gradients, *self._parameters])
        own = {w for w in self._cut.update_effects if w in after}
        # What first decays by itself, as Keras 2's moments of a table do, is not the same everywhere for that.
        while True:
            written = {h for w in own for h in self._written(w)}
            more = {w for w in self._cut.update_effects if w not in own and written.intersection(self._written(w))}
            if not more:
                return own
            own |= more

    def _written(self, writer: str) -> list[str]:
        return [handle for handle, _ in self._graph.writes(self._graph.nodes[writer])]

    def find(self) -> ParameterGroups:
        shared_writers = [w for w in self._cut.update_effects if w not in self._own]
        own_writers = [w for w in self._cut.update_effects if w in self._own]
        written = {handle for w in own_writers for handle in self._written(w)}
        shared = [n for n in self._variables if n not in written and n not in self._parameters]
        units = [self._unit(names, set(shared)) for names in self._together(own_writers, set(shared))]
        return ParameterGroups(tuple(units), tuple(sorted(self._variables[n] for n in shared)), tuple(shared_writers))

    def _together(self, writers: Sequence[str], shared: set[str]) -> list[list[str]]:
        """Divides the writers into sets that read no parameter, state or gradient of another set."""
        touched = {
            w: {self._subject(n) for n in self._ancestors[w] if n in self._gradients or n in self._variables} - {None}
            for w in writers
        }
        for w in writers:
            touched[w] -= {self._subject(n) for n in shared}
        parts: list[tuple[set[Any], list[str]]] = []
        for writer in writers:
            merged: tuple[set[Any], list[str]] = (set(touched[writer]), [writer])
            rest = []
            for part in parts:
                if part[0] & merged[0]:
                    merged = (merged[0] | part[0], part[1] + merged[1])
                else:
                    rest.append(part)
            parts = [*rest, merged]
        return [names for _, names in parts]

    def _subject(self, name: str) -> tuple[str, int] | None:
        """Returns the variable that a leaf of the graph stands for; for a gradient, its parameter."""
        if name in self._gradients:
            return "variable", self._cut.gradients[self._gradients[name]].variable
        return ("variable", self._variables[name]) if name in self._variables else None

    def _unit(self, writers: Sequence[str], shared: set[str]) -> ParameterGroup:
        writers = sorted(writers, key=self._order.__getitem__)
        nodes = set().union(*(self._ancestors[w] for w in writers))
        by_order = sorted(nodes, key=self._order.__getitem__)
        gradients = tuple(sorted({self._gradients[n] for n in by_order if n in self._gradients}))
        parameters = tuple(sorted(self._variables[n] for n in by_order if n in self._parameters))
        owned = [n for n in by_order if n in self._variables and n not in shared and n not in self._parameters]
        slots, signature = tuple(self._variables[n] for n in owned), None
        if self._is_elementwise(nodes, gradients, parameters, slots):
            canonical = _Canonical(self, nodes, shared, set(self._cut.update_effects))
            signature = canonical.signature(writers, self._dtype(parameters[0]))
            slots = tuple(self._variables[n] for n in canonical.owned if n not in self._parameters)
        by_row = self._by_row(gradients, parameters, slots, writers)
        return ParameterGroup(gradients, parameters, slots, tuple(writers), signature, by_row)

    def _by_row(
        self, gradients: Sequence[int], parameters: Sequence[int], slots: Sequence[int], writers: Sequence[str]
    ) -> RowUpdate | None:
        if len(gradients) != 1 or not self._cut.gradients[gradients[0]].sparse:
            return None
        gradient, shape = self._cut.gradients[gradients[0]], self._source.variables[parameters[0]].tensor.shape
        kept = (*parameters, *slots)
        if list(parameters) != [gradient.variable] or any(
            self._source.variables[i].tensor.shape != shape for i in kept
        ):
            return None
        handles = [self._source.step.variables[i] for i in kept]
        return row_update.find(self._graph, writers, handles, gradient.received, shape, self._scalars)

    def _dtype(self, variable: int) -> str:
        return self._source.variables[variable].tensor.dtype

    def _is_elementwise(
        self, nodes: set[str], gradients: Sequence[int], parameters: Sequence[int], slots: Sequence[int]
    ) -> bool:
        if len(gradients) != 1 or self._cut.gradients[gradients[0]].sparse:
            return False
        if list(parameters) != [self._cut.gradients[gradients[0]].variable]:
            return False
        shape = self._source.variables[parameters[0]].tensor.shape
        if any(self._source.variables[s].tensor.shape != shape for s in slots):
            return False
        handles = {self._source.step.variables[v] for v in (*parameters, *slots)}
        mine = self._graph.descendants([*handles, *(n for n in nodes if n in self._gradients)]) & nodes
        leaves = handles | set(self._gradients)
        for name in mine - leaves:
            node = self._graph.nodes[name]
            if node.op not in ELEMENTWISE | VARIABLES:
                return False
            if not all(edge[0] in mine or edge in self._scalars for edge in data_inputs(node)):
                return False
        return True


class _Canonical:
    """Computes a digest of a group's graph without names, equal for groups that do the same."""

    def __init__(self, finder: _Finder, nodes: set[str], shared: set[str], effects: set[str]):
        self._finder, self._nodes, self._shared, self._effects = finder, nodes, shared, effects
        self._numbers: dict[str, int] = {}
        self._digest = hashlib.sha256()
        # The group's variables in the order in which they are met.
        self.owned: list[str] = []

    def signature(self, writers: Iterable[str], dtype: str) -> str:
        self._digest.update(dtype.encode())
        for writer in writers:
            self._digest.update(b"|%d" % self._number(writer))
        return self._digest.hexdigest()

    def _number(self, name: str) -> int:
        if name not in self._numbers:
            line = self._line(name)
            self._numbers[name] = len(self._numbers)
            self._digest.update(repr(line).encode() + b"\n")
        return self._numbers[name]

    def _line(self, name: str) -> tuple[Any, ...]:
        finder = self._finder
        if name in finder._gradients:
            return ("gradient",)
        if name in finder._variables:
            if name in self._shared:
                return "shared", finder._variables[name]
            self.owned.append(name)
            return "own", len(self.owned), name in finder._parameters
        node = finder._graph.nodes[name]
        inputs = [(self._number(edge[0]), edge[1]) for edge in data_inputs(node)]
        waits = [n for n in control_inputs(node) if n in self._nodes or (n in self._effects and n not in finder._own)]
        attributes = [
            (key, node.attr[key].SerializeToString(deterministic=True))
            for key in sorted(node.attr)
            if key not in _MEANINGLESS
        ]
        ordered = sorted(waits, key=finder._order.__getitem__)
        return node.op, attributes, inputs, [self._number(n) for n in ordered]
