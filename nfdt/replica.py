"""Computes a worker's gradients from pulled parameters, on the worker's own copy of the model."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from fdt.program.lookup_tables import Table
from fdt.program.packing import as_array
from fdt.program.step_program import fill_holes, import_function, make_tables, shape_of
from fdt.v1 import program_pb2
from nfdt.cut import Cut
from nfdt.devices import cpu_beside, settle
from nfdt.gradients import Gradients
from nfdt.layout import Entry, Layout
from nfdt.products import reorder
from nfdt.rebound import Rebound
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
    """The first part of a step, traced once for all workers: each runs it on its own variables and device."""

    def __init__(self, source: program_pb2.StepProgram, cut: Cut, layout: Layout, device: str, as_traced: bool):
        """Traces.

        Args:
            source: The program.
            cut: The program's two parts.
            layout: The layout of all shards.
            device: The first worker's device.
            as_traced: Whether results have to match the script's own operations bit for bit.
        """
        self._as_traced = as_traced or device != cpu_beside(device)
        self._source, self._cut, self._layout = source, cut, layout
        with tf.device(device):
            self.first, self.first_tables = self._make_variables(), self._make_tables(device)
            self._step = self._import()
            self.traced = tf.function(self._compute, autograph=False).get_concrete_function(*self._signature())

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

    def computed(self, flat: Sequence[tf.Tensor]) -> Computed:
        """Groups the flat results of `traced`."""
        rest = list(flat)
        outputs = [rest.pop(0) for _ in self._source.step.outputs]
        extras = [rest.pop(0) for _ in self._cut.extras]
        gradients = []
        for shard in self._layout.shards:
            vectors = [[rest.pop(0) for _ in vector.entries] for vector in shard.vectors]
            rows = [(rest.pop(0), rest.pop(0)) for table in shard.tables if table.gradient is not None]
            gradients.append(Gradients(vectors, rows, extras))
        return Computed(outputs, gradients)

    def _make_variables(self) -> list[tf.Variable]:
        specs = [v.tensor for v in self._source.variables]
        return [tf.Variable(tf.zeros(shape_of(s), s.dtype), trainable=False) for s in specs]

    def _make_tables(self, device: str) -> list[Table]:
        with tf.device(cpu_beside(device)):
            return make_tables(self._source)

    def _signature(self) -> list[tf.TensorSpec]:
        specs = []
        for shard in self._layout.shards:
            specs += [tf.TensorSpec([vector.length], vector.dtype) for vector in shard.vectors]
            specs += [tf.TensorSpec(table.shape, table.dtype) for table in shard.tables]
        optimizer = [self._source.variables[i].tensor for i in self._cut.optimizer_reads]
        return specs + [tf.TensorSpec(shape_of(s), s.dtype) for s in [*optimizer, *self._source.batch]]

    def _import(self) -> Any:
        meta_graph = tf.compat.v1.MetaGraphDef.FromString(self._source.step.meta_graph)
        described = meta_graph.graph_def
        graph_def = type(described).FromString(self._cut.compute.SerializeToString())
        if not self._as_traced:
            reorder(graph_def, described)
        meta_graph.graph_def.CopyFrom(graph_def)
        # On a worker, holes return gradients unchanged.
        fill_holes(self._source, meta_graph, lambda position, hole: None)
        names = {node.name for node in self._cut.compute.node}
        specs = [tf.TensorSpec([], tf.float32)]
        specs += [tf.TensorSpec(shape_of(t), t.dtype) for t in self._source.batch]
        inputs = dict(zip(self._source.step.inputs, specs, strict=True))
        resources = dict(zip(self._source.step.variables, self.first, strict=True))
        resources |= dict(zip(self._source.step.tables, self.first_tables, strict=True))
        self._inputs_used = [name in names for name in inputs]
        wanted = [t for gradient in self._cut.gradients for t in gradient.computed]
        wanted += [extra.computed for extra in self._cut.extras]
        return import_function(
            meta_graph,
            {name: spec for name, spec in inputs.items() if name in names},
            {name: resource for name, resource in resources.items() if name in names},
            [*self._source.step.outputs, *(f"{name}:{index}" for name, index in wanted)],
            self._cut.compute_effects,
        )

    def _compute(self, *arguments: tf.Tensor) -> list[tf.Tensor]:
        rest = list(arguments)
        # Pieces by their start: a variable has an entry for each of its gradients, each with the same value.
        dense: dict[int, dict[int, tuple[Entry, tf.Tensor]]] = {}
        for shard in self._layout.shards:
            for vector in shard.vectors:
                for entry, value in zip(vector.entries, part(vector.entries, rest.pop(0)), strict=True):
                    dense.setdefault(entry.variable, {})[entry.start] = entry, value
            for table in shard.tables:
                self.first[table.variable].assign(rest.pop(0), read_value=False)
        for index, pieces in dense.items():
            self.first[index].assign(put_together(list(pieces.values())), read_value=False)
        for index in self._cut.optimizer_reads:
            self.first[index].assign(rest.pop(0), read_value=False)
        inputs = [tf.constant(1.0), *rest]
        results = list(self._step(*[t for t, used in zip(inputs, self._inputs_used, strict=True) if used]))
        outputs, results = results[: len(self._source.step.outputs)], results[len(self._source.step.outputs) :]
        computed: list[list[tf.Tensor]] = []
        for gradient in self._cut.gradients:
            computed.append([results.pop(0) for _ in gradient.computed])
        pushed: list[tf.Tensor] = []
        for shard in self._layout.shards:
            entries = [entry for vector in shard.vectors for entry in vector.entries]
            pushed += [piece(entry, computed[entry.gradient][0]) for entry in entries]
            pushed += [t for table in shard.tables if table.gradient is not None for t in computed[table.gradient]]
        return [*outputs, *results, *pushed]


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
