"""Computes a worker's gradients from pulled parameters, on the worker's own copy of the model."""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from fdt.program.computation import is_compiled
from fdt.program.lookup_tables import Table
from fdt.program.node_graph import tensor, text_of
from fdt.program.packing import as_array
from fdt.program.step_program import fill_holes, import_function, make_tables, shape_of
from fdt.program.update.cut import Cut
from fdt.v1 import program_pb2
from nfdt.devices import cpu_beside, settle
from nfdt.gradients import Gradients
from nfdt.layout import Entry, Layout
from nfdt.products import reorder
from nfdt.rebound import Rebound
from nfdt.rows import split
from nfdt.stages import Stages
from nfdt.vectors import part, piece, put_together


@dataclasses.dataclass(frozen=True)
class Computed:
    """What a worker computed from one batch.

    Attributes:
        outputs: The step's outputs.
        gradients: For each shard.
    """

    outputs: list[tf.Tensor]
    gradients: list[Gradients]


class Computation:
    """The first part of a step, traced once for all workers: each runs it on its own variables and device.

    Attributes:
        tables: The tables of which workers get rows.
        first: The variables with which it was traced.
        row_numbers: ConcreteFunction of the batch, the first stage; None if workers get no rows. It returns the tensors that
            both stages use, then for each table those with the row numbers of its lookups.
        needs_turn: Whether the first stage has effects or reads what a step of the same worker may change.
        traced: ConcreteFunction, the second stage, of the tensors that `in_order` puts together.
    """

    def __init__(
        self, source: program_pb2.StepProgram, cut: Cut, stages: Stages, layout: Layout, device: str, as_traced: bool
    ):
        """Traces.

        Args:
            source: The program.
            cut: The program's two parts.
            stages: The first part's two stages.
            layout: The layout of all shards.
            device: The first worker's device.
            as_traced: Whether results have to match the script's own operations bit for bit.
        """
        self._as_traced = as_traced or device != cpu_beside(device)
        self._source, self._cut, self._layout, self._stages = source, cut, layout, stages
        self.tables = self._stages.tables
        self._by_rows = {table.variable for table in self.tables}
        with tf.device(device):
            self.first, self.first_tables = self._make_variables(), self._make_tables(device)
            self.row_numbers: Any = None
            self.needs_turn = False
            if self.tables:
                self.row_numbers, self.needs_turn = self._trace_row_numbers()
            self._step = self._import_second()
            compile_by_xla = True if is_compiled(source.computation) else None
            compute: Any = tf.function(self._compute, autograph=False, jit_compile=compile_by_xla)
            self.traced = compute.get_concrete_function(*self._signature())

    def rebound(self, concrete: Any) -> Rebound:
        """Makes a function that was traced on the first worker's variables callable on any worker's."""
        return Rebound(concrete, [*self.first, *self.first_tables])

    def replica(self, device: str, first: bool) -> "Replica":
        """Returns a worker's copy.

        Args:
            device: Where it computes.
            first: Whether this worker gets the variables with which the step was traced.
        """
        with tf.device(device):
            variables = self.first if first else self._make_variables()
        tables = self.first_tables if first else self._make_tables(device)
        return Replica(variables, tables, device)

    def by_table(self, flat: Sequence[tf.Tensor]) -> tuple[list[tf.Tensor], list[list[tf.Tensor]]]:
        """Groups the results of `row_numbers`: the tensors that both stages use; for each table those of its lookups."""
        rest = list(flat)
        crossing = [rest.pop(0) for _ in self._stages.crossing]
        return crossing, [[rest.pop(0) for _ in table.row_numbers] for table in self.tables]

    def pulled_whole(self, shard: int) -> list[int]:
        """Returns which tensors of a shard's snapshot workers get whole."""
        layout = self._layout.shards[shard]
        tables = [i for i, table in enumerate(layout.tables) if table.variable not in self._by_rows]
        return [*range(len(layout.vectors)), *(len(layout.vectors) + i for i in tables)]

    def places_of(self, variable: int) -> list[tuple[int, int]]:
        """Returns the shards that keep a table, and the place of the table in each one's snapshot, in the order of its rows."""
        found = [
            (table.start, number, len(shard.vectors) + i)
            for number, shard in enumerate(self._layout.shards)
            for i, table in enumerate(shard.tables)
            if table.variable == variable
        ]
        return [(number, place) for _, number, place in sorted(found)]

    def in_order(
        self,
        received: Sequence[tf.Tensor],
        batch: Sequence[tf.Tensor],
        crossing: Sequence[tf.Tensor],
        rows: Sequence[tf.Tensor],
        places: Sequence[Sequence[tf.Tensor]],
    ) -> list[tf.Tensor]:
        """Returns the arguments of `traced`.

        Args:
            received: The whole tensors of the shards' snapshots, then the optimizer variables that the step reads.
            batch: In the order of the source's inputs.
            crossing: As `by_table` returns it.
            rows: For each table some of its rows, [number, ...].
            places: For each table and lookup, where the looked up rows are among these.
        """
        by_rows = [tensor for of_table in zip(rows, places, strict=True) for tensor in (of_table[0], *of_table[1])]
        return [*received, *batch, *crossing, *by_rows]

    def computed(self, flat: Sequence[tf.Tensor]) -> Computed:
        """Groups the flat results of `traced`, in a graph; divides the gradients of tables that several shards keep."""
        rest = list(flat)
        outputs = [rest.pop(0) for _ in self._source.step.outputs]
        extras = [rest.pop(0) for _ in self._cut.extras]
        dense = [[[rest.pop(0) for _ in vector.entries] for vector in shard.vectors] for shard in self._layout.shards]
        rows: list[list[tuple[tf.Tensor, tf.Tensor]]] = [[] for _ in dense]
        divided = {number: self._divided(number, rest.pop(0), rest.pop(0)) for number in self._sparse()}
        for number, shard in enumerate(self._layout.shards):
            for table in shard.tables:
                if table.gradient is not None:
                    rows[number].append(divided[table.gradient][table.start])
        return Computed(outputs, [Gradients(*of_shard, extras) for of_shard in zip(dense, rows, strict=True)])

    def _sparse(self) -> list[int]:
        """Returns the gradients of tables, by their indices in `Cut.gradients`."""
        tables = [table for shard in self._layout.shards for table in shard.tables]
        return sorted({table.gradient for table in tables if table.gradient is not None})

    def _divided(self, number: int, values: tf.Tensor, indices: tf.Tensor) -> dict[int, tuple[tf.Tensor, tf.Tensor]]:
        """Returns the values and row numbers of each part of a table, by the first row of the part."""
        tables = [table for shard in self._layout.shards for table in shard.tables]
        starts = sorted(table.start for table in tables if table.gradient == number)
        return dict(zip(starts, split(values, indices, starts), strict=True))

    def _make_variables(self) -> list[tf.Variable]:
        return [
            tf.Variable(tf.zeros(self._shape_here(i), v.tensor.dtype), trainable=False)
            for i, v in enumerate(self._source.variables)
        ]

    def _shape_here(self, variable: int) -> tf.TensorShape:
        """Returns the shape of a worker's variable: of what only servers need, and of a table of which it gets rows, none."""
        described = self._source.variables[variable]
        shape = shape_of(described.tensor)
        if variable in self._by_rows:
            return tf.TensorShape([0, *shape[1:]])
        of_servers = self._layout.shards and described.role == program_pb2.ROLE_OPTIMIZER
        is_used = variable in self._cut.optimizer_reads or variable in self._layout.still
        return tf.TensorShape([0]) if of_servers and not is_used else shape

    def _make_tables(self, device: str) -> list[Table]:
        with tf.device(cpu_beside(device)):
            return make_tables(self._source)

    def _batch_signature(self) -> list[tf.TensorSpec]:
        return [tf.TensorSpec(shape_of(spec), spec.dtype) for spec in self._source.batch]

    def _signature(self) -> list[tf.TensorSpec]:
        specs = []
        for shard in self._layout.shards:
            specs += [tf.TensorSpec([vector.length], vector.dtype) for vector in shard.vectors]
            whole = [table for table in shard.tables if table.variable not in self._by_rows]
            specs += [tf.TensorSpec(table.shape, table.dtype) for table in whole]
        optimizer = [self._source.variables[i].tensor for i in self._cut.optimizer_reads]
        specs += [tf.TensorSpec(shape_of(spec), spec.dtype) for spec in optimizer]
        return [*specs, *self._batch_signature(), *self._from_first().values()]

    def _from_first(self) -> dict[str, tf.TensorSpec]:
        """Returns the specs of what the second stage gets beside parameters and batch, by its placeholders."""
        if self.row_numbers is None:
            return {}
        crossing, numbers = self.by_table([tf.TensorSpec(t.shape, t.dtype) for t in self.row_numbers.outputs])
        specs = dict(zip(self._stages.crossing.values(), crossing, strict=True))
        for table, of_table in zip(self.tables, numbers, strict=True):
            spec = self._source.variables[table.variable].tensor
            specs[table.rows] = tf.TensorSpec([None, *spec.shape[1:]], spec.dtype)
            specs |= dict(zip(table.places, of_table, strict=True))
        return specs

    def _trace_row_numbers(self) -> tuple[Any, bool]:
        """Returns `row_numbers` and `needs_turn`."""
        stages = self._stages
        wanted = [*stages.crossing, *(edge for table in self.tables for edge in table.row_numbers)]
        function, used = self._import(stages.first, {}, map(text_of, wanted), stages.first_effects)

        def run(*batch: tf.Tensor) -> list[tf.Tensor]:
            return list(function(*_chosen([tf.constant(1.0), *batch], used)))

        traced = tf.function(run, autograph=False).get_concrete_function(*self._batch_signature())
        return traced, bool(stages.first_effects or traced.captured_inputs)

    def _import_second(self) -> Any:
        stages = self._stages
        wanted = [t for gradient in self._cut.gradients for t in gradient.computed]
        wanted += [extra.computed for extra in self._cut.extras]
        edges = [tensor(name) for name in self._source.step.outputs] + wanted
        outputs = [text_of(stages.in_second(edge)) for edge in edges]
        function, self._inputs_used = self._import(stages.second, self._from_first(), outputs, stages.second_effects)
        return function

    def _import(
        self, graph_def: Any, given: Mapping[str, tf.TensorSpec], outputs: Iterable[str], effects: Sequence[str]
    ) -> tuple[Any, list[bool]]:
        """Imports a part of the computation; returns a function, and which of the program's inputs it takes before `given`."""
        meta_graph = tf.compat.v1.MetaGraphDef.FromString(self._source.step.meta_graph)
        described = meta_graph.graph_def
        graph_def = type(described).FromString(graph_def.SerializeToString())
        if not self._as_traced:
            reorder(graph_def, described)
        meta_graph.graph_def.CopyFrom(graph_def)
        # On a worker, holes return gradients unchanged.
        fill_holes(self._source, meta_graph, lambda position, hole: None)
        names = {node.name for node in graph_def.node}
        specs = [tf.TensorSpec([], tf.float32), *self._batch_signature()]
        inputs = dict(zip(self._source.step.inputs, specs, strict=True))
        resources = dict(zip(self._source.step.variables, self.first, strict=True))
        resources |= dict(zip(self._source.step.tables, self.first_tables, strict=True))
        used = {name: spec for name, spec in inputs.items() if name in names}
        function = import_function(
            meta_graph,
            used | dict(given),
            {name: resource for name, resource in resources.items() if name in names},
            [name if ":" in name else f"{name}:0" for name in outputs],
            effects,
        )
        return function, [name in used for name in inputs]

    def _compute(self, *arguments: tf.Tensor) -> list[tf.Tensor]:
        rest = list(arguments)
        # Pieces by their start: a variable has an entry for each of its gradients, each with the same value.
        dense: dict[int, dict[int, tuple[Entry, tf.Tensor]]] = {}
        for shard in self._layout.shards:
            for vector in shard.vectors:
                for entry, value in zip(vector.entries, part(vector.entries, rest.pop(0)), strict=True):
                    dense.setdefault(entry.variable, {})[entry.start] = entry, value
            for table in shard.tables:
                if table.variable not in self._by_rows:
                    self.first[table.variable].assign(rest.pop(0), read_value=False)
        for index, pieces in dense.items():
            self.first[index].assign(put_together(list(pieces.values())), read_value=False)
        for index in self._cut.optimizer_reads:
            self.first[index].assign(rest.pop(0), read_value=False)
        batch, from_first = rest[: len(self._source.batch)], rest[len(self._source.batch) :]
        results = list(self._step(*_chosen([tf.constant(1.0), *batch], self._inputs_used), *from_first))
        outputs, results = results[: len(self._source.step.outputs)], results[len(self._source.step.outputs) :]
        computed: list[list[tf.Tensor]] = []
        for gradient in self._cut.gradients:
            computed.append([results.pop(0) for _ in gradient.computed])
        entries = [entry for shard in self._layout.shards for vector in shard.vectors for entry in vector.entries]
        dense_gradients = [piece(entry, computed[entry.gradient][0]) for entry in entries]
        return [*outputs, *results, *dense_gradients, *(t for number in self._sparse() for t in computed[number])]


def _chosen(tensors: Sequence[tf.Tensor], used: Sequence[bool]) -> list[tf.Tensor]:
    return [tensor for tensor, is_used in zip(tensors, used, strict=True) if is_used]


class Replica:
    """One worker's variables: the parameters it last pulled, and its own BatchNormalization statistics, seeds, metrics.

    Attributes:
        device: Where it computes.
        resources: Variables and tables, as `Computation.rebound` has them.
    """

    def __init__(self, variables: list[tf.Variable], tables: list[Table], device: str):
        self._variables, self.device = variables, device
        self.resources = [*variables, *tables]

    def read(self, indices: Sequence[int]) -> dict[int, np.ndarray]:
        """Returns values of variables."""
        return {i: as_array(self._variables[i]) for i in indices}

    def assign(self, values: Mapping[int, np.ndarray]) -> None:
        """Sets variables."""
        with tf.device(self.device):
            for i, value in values.items():
                self._variables[i].assign(value)
        settle(self.device)
