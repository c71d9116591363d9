"""Cuts a step in two at its holes: what a worker computes, and what the parameter servers do with the gradients.

The whole step, as the synchronous runtime runs it, holds both: the cut follows the roles of variables. What writes a
trained variable or an optimizer's state belongs to the update, all other effects to the computation. A second trace of
the script's code is not needed (docs/decisions/0006).
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from fdt.errors import ProtocolError, UnsupportedError
from fdt.program.node_graph import PASSING, Graph, Tensor, control_inputs, data_inputs, placeholder, tensor
from fdt.v1 import program_pb2

_TRAINABLE, _OPTIMIZER = program_pb2.ROLE_TRAINABLE, program_pb2.ROLE_OPTIMIZER
_CALLS = ("PartitionedCall", "StatefulPartitionedCall")


@dataclasses.dataclass(frozen=True)
class Gradient:
    """One gradient of a hole.

    Attributes:
        variable: Index of the variable it belongs to.
        computed: Tensors of the computation: [values], or [values, indices] if sparse.
        given: The same tensors as the step's hole hands them to the optimizer.
        received: Placeholders of the update that stand for them.
    """

    variable: int
    sparse: bool
    computed: tuple[Tensor, ...]
    given: tuple[Tensor, ...]
    received: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Extra:
    """A value other than a gradient that an update needs from the computation, such as the loss."""

    computed: Tensor
    received: str


@dataclasses.dataclass(frozen=True)
class Cut:
    """The two parts.

    Attributes:
        compute: GraphDef; holes return gradients unchanged.
        compute_effects: Operations that must have run.
        optimizer_reads: Optimizer variables that the computation reads (a loss scale, a learning rate to show).
        update: GraphDef; gradients and extras come in through placeholders.
        update_effects: Operations that must have run.
    """

    compute: Any
    compute_effects: tuple[str, ...]
    optimizer_reads: tuple[int, ...]
    gradients: tuple[Gradient, ...]
    extras: tuple[Extra, ...]
    update: Any
    update_effects: tuple[str, ...]


def cut(source: program_pb2.StepProgram) -> Cut:
    """Cuts a program.

    Raises:
        ProtocolError: The program contradicts itself.
        UnsupportedError: The two parts cannot be told apart.
    """
    meta_graph = tf.compat.v1.MetaGraphDef.FromString(source.step.meta_graph)
    return _Cutter(source, meta_graph.graph_def).cut()


class _Cutter:
    def __init__(self, source: program_pb2.StepProgram, graph_def: Any):
        self._source = source
        self._graph = Graph(graph_def)
        self._variables = {name: i for i, name in enumerate(source.step.variables)}
        self._calls: dict[str, list[Any]] = {}
        for node in graph_def.node:
            if node.op in _CALLS:
                self._calls.setdefault(node.attr["f"].func.name, []).append(node)

    def cut(self) -> Cut:
        graph, outputs = self._graph, [tensor(name) for name in self._source.step.outputs]
        gradients = self._gradients()
        holes = {g.hole for g in gradients}
        update_writers, compute_effects = self._effects(holes)
        servers_only = self._servers_only(holes)
        local = graph.descendants(self._local_sources(), stop=holes)
        needed, extras = self._needed(update_writers, holes, local - servers_only)
        wanted = [e[0] for g in gradients for e in g.computed] + [e[0] for e in outputs] + [e[0] for e in extras]
        computed = graph.ancestors([*wanted, *compute_effects])
        both = computed & set(update_writers)
        if both:
            raise UnsupportedError(
                f"An operation of the training step ({sorted(both)[0]}) updates parameters and computes a value of the step "
                "at once, so the two cannot run on different devices. Run this script with --mode sync."
            )
        optimizer_reads = sorted(
            {self._variables[n] for n in computed if n in self._variables and self._role(n) == _OPTIMIZER}
        )
        return Cut(
            compute=graph.part(computed),
            compute_effects=tuple(compute_effects),
            optimizer_reads=tuple(optimizer_reads),
            gradients=tuple(Gradient(g.variable, g.sparse, g.computed, g.outputs, g.received) for g in gradients),
            extras=tuple(Extra(e, _extra(i)) for i, e in enumerate(extras)),
            update=self._update(needed, gradients, extras),
            update_effects=tuple(update_writers),
        )

    def _role(self, placeholder: str) -> "program_pb2.Role":
        return self._source.variables[self._variables[placeholder]].role

    def _on_servers(self, handle: Tensor) -> bool:
        return handle[0] in self._variables and self._role(handle[0]) in (_TRAINABLE, _OPTIMIZER)

    def _effects(self, holes: set[str]) -> tuple[list[str], list[str]]:
        """Returns the operations that write the servers' variables, and those with any other effect."""
        after = self._graph.descendants(holes)
        update: list[str] = []
        compute: list[str] = []
        for node in self._graph.nodes.values():
            written = self._graph.writes(node)
            if written:
                on_servers = {self._on_servers(handle) for handle in written}
                if len(on_servers) > 1:
                    raise UnsupportedError(
                        f"An operation of the training step ({node.name}, {node.op}) writes parameters and other state at "
                        "once, so the two cannot be kept on different devices. Run this script with --mode sync."
                    )
                (update if on_servers == {True} else compute).append(node.name)
            elif self._graph.has_effect(node):
                (update if node.name in after else compute).append(node.name)
        return update, compute

    def _servers_only(self, holes: set[str]) -> set[str]:
        """Returns the nodes that depend on a hole or an optimizer's state, whose value only the servers know."""
        reads = [name for name in self._variables if self._role(name) == _OPTIMIZER]
        return self._graph.descendants([*holes, *reads])

    def _local_sources(self) -> list[str]:
        """Returns the nodes whose value only a worker knows: its batch, its own state, random numbers."""
        own = [name for name in self._variables if not self._on_servers((name, 0))]
        drawn = [node.name for node in self._graph.nodes.values() if self._graph.has_effect(node)]
        return [*self._source.step.inputs[1:], *own, *drawn]

    def _needed(self, writers: Sequence[str], holes: set[str], workers_only: set[str]) -> tuple[set[str], list[Tensor]]:
        """Returns the nodes that an update needs, and the values other than gradients that it needs from a worker."""
        needed: set[str] = set()
        extras: dict[Tensor, None] = {}
        waiting = list(writers)
        while waiting:
            name = waiting.pop()
            if name in needed:
                continue
            needed.add(name)
            for edge in data_inputs(self._graph.nodes[name]):
                if edge[0] in holes:
                    continue
                if edge[0] in workers_only:
                    extras[self._graph.value(edge)] = None
                else:
                    waiting.append(edge[0])
        return needed, list(extras)

    def _gradients(self) -> list["_HoleGradient"]:
        found: list[_HoleGradient] = []
        for position, hole in enumerate(self._source.holes):
            if hole.kind != program_pb2.Hole.KIND_GRADIENTS:
                continue
            calls = self._calls.get(hole.function, [])
            if len(calls) != 1:
                raise UnsupportedError(
                    "An optimizer of the training step gets its gradients inside a nested function, a loop or a branch. "
                    "Asynchronous training needs the call at the top level of train_step; run this script with --mode sync."
                )
            inputs = data_inputs(calls[0])[1:]
            place = 0
            for number, gradient in enumerate(hole.gradients):
                width = 2 if gradient.sparse else 1
                if place + width > len(inputs):
                    raise ProtocolError(f"Hole {position} names more gradients than its function takes.")
                names = tuple(f"fdt_gradient_{position}_{number}_{part}" for part in range(width))
                outputs = tuple((calls[0].name, place + part) for part in range(width))
                computed = tuple(inputs[place : place + width])
                found.append(_HoleGradient(gradient.variable, gradient.sparse, computed, names, outputs, calls[0].name))
                place += width
        return found

    def _update(self, needed: set[str], gradients: list["_HoleGradient"], extras: list[Tensor]) -> Any:
        graph, nodes = self._graph, self._graph.nodes
        redirect = {o: (r, 0) for g in gradients for o, r in zip(g.outputs, g.received, strict=True)}
        redirect |= {extra: (_extra(i), 0) for i, extra in enumerate(extras)}
        # Skip operations that only pass values on: one IdentityN would make all variables depend on each other.
        for edge in {edge for name in needed for edge in data_inputs(nodes[name])}:
            origin = graph.value(edge)
            redirect[edge] = redirect.get(edge) or redirect.get(origin, origin)
        reached = {origin[0] for origin in redirect.values()}
        unused = {n for n in needed if nodes[n].op in PASSING and not control_inputs(nodes[n])} - reached
        part = graph.part(needed - unused, redirect)
        received = [(r, c) for g in gradients for r, c in zip(g.received, g.computed, strict=True)]
        received += [(_extra(i), extra) for i, extra in enumerate(extras)]
        part.node.extend(placeholder(name, graph.dtype(edge)) for name, edge in received)
        return part


def _extra(number: int) -> str:
    return f"fdt_extra_{number}"


@dataclasses.dataclass(frozen=True)
class _HoleGradient:
    variable: int
    sparse: bool
    computed: tuple[Tensor, ...]
    received: tuple[str, ...]
    # The hole's own outputs.
    outputs: tuple[Tensor, ...]
    hole: str
