"""The script's own optimizer, run on what a shard keeps."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from fdt.program import fill_holes, import_function
from nfdt.cut import Cut
from nfdt.graph import Graph
from nfdt.layout import ShardLayout
from nfdt.pure import purify
from nfdt.reliability import HANDLE, Reliability, multiply_rates
from nfdt.vectors import part
from protos import program_pb2


class Update:
    """A shard's part of an update, called in a graph with gradients and extras."""

    def __init__(
        self,
        source: program_pb2.StepProgram,
        cut: Cut,
        layout: ShardLayout,
        variables: Mapping[int, tf.Variable],
        reliability: Reliability | None,
        compiled: bool,
    ):
        """Imports it.

        Args:
            source: The program.
            cut: Its two parts.
            layout: Of the shard.
            variables: What the update works on, by the indices that it knows them by.
            reliability: By which learning rates are multiplied; None to leave them.
            compiled: Whether an update of fused vectors may be compiled to one pass over memory. Compiled code multiplies and
                adds at once, so the last bit may differ.
        """
        self._source, self._cut, self._layout, self._reliability = source, cut, layout, reliability
        graph = Graph(cut.update)
        self._graph_def = graph.part(graph.ancestors(layout.writers))
        self._variables: dict[str, Any] = {source.step.variables[i]: v for i, v in variables.items()}
        if reliability is not None:
            rates = {h.function for h in source.holes if h.kind == program_pb2.Hole.KIND_RATE}
            self._graph_def = multiply_rates(self._graph_def, rates)
        names = {node.name for node in self._graph_def.node}
        self._variables = {name: v for name, v in self._variables.items() if name in names}
        self._inputs = self._describe_inputs()
        self._used = [name in names for name in self._inputs]
        fused = all(vector.fused for vector in layout.vectors) and not layout.tables and not layout.loose
        self._run = self._import_compiled() if compiled and fused else self._import()

    def __call__(self, values: Sequence[tf.Tensor]) -> None:
        """Applies gradients.

        Args:
            values: A tensor for each vector, values and indices for each table with a gradient, and the extras.
        """
        # The whole batch is one worker's: its share is 1.
        given = [tf.constant(1.0)]
        for vector, value in zip(self._layout.vectors, values, strict=False):
            given += [value] if vector.fused else part(vector.entries, value)
        given += values[len(self._layout.vectors) :]
        self._run([value for value, used in zip(given, self._used, strict=True) if used])

    def _import(self) -> Callable[[Sequence[tf.Tensor]], None]:
        handles = dict(self._variables)
        if any(node.name == HANDLE for node in self._graph_def.node):
            handles[HANDLE] = self._reliability
        specs = {name: spec for (name, spec), used in zip(self._inputs.items(), self._used, strict=True) if used}
        function = import_function(self._filled(self._graph_def), specs, handles, [], self._layout.writers)

        def run(values: Sequence[tf.Tensor]) -> None:
            function(*values)

        return run

    def _import_compiled(self) -> Callable[[Sequence[tf.Tensor]], None]:
        types = {name: v.dtype.as_datatype_enum for name, v in self._variables.items()}
        pure = purify(self._graph_def, types | {HANDLE: tf.float32.as_datatype_enum})
        specs = {name: spec for (name, spec), used in zip(self._inputs.items(), self._used, strict=True) if used}
        for handle, value in pure.values.items():
            specs[value] = tf.TensorSpec([], tf.float32)
            if handle != HANDLE:
                specs[value] = tf.TensorSpec(self._variables[handle].shape, self._variables[handle].dtype)
        imported = import_function(self._filled(pure.graph_def), specs, {}, list(pure.results.values()), [])
        function = tf.function(lambda values: imported(*values), autograph=False, jit_compile=True)

        def run(values: Sequence[tf.Tensor]) -> None:
            now = [self._read(handle) for handle in pure.values]
            for handle, result in zip(pure.results, function([*values, *now]), strict=True):
                self._variables[handle].assign(result, read_value=False)

        return run

    def _read(self, handle: str) -> tf.Tensor:
        if handle == HANDLE:
            assert self._reliability is not None
            return tf.raw_ops.ReadVariableOp(resource=self._reliability.handle, dtype=tf.float32)
        return self._variables[handle].read_value()

    def _filled(self, graph_def: Any) -> Any:
        meta_graph = tf.compat.v1.MetaGraphDef.FromString(self._source.step.meta_graph)
        meta_graph.graph_def.CopyFrom(graph_def)
        fill_holes(self._source, meta_graph, self._fill)
        return meta_graph

    def _fill(self, position: int, hole: program_pb2.Hole) -> Callable[..., Sequence[tf.Tensor]] | None:
        is_rate = hole.kind == program_pb2.Hole.KIND_RATE
        return self._reliability.body if is_rate and self._reliability is not None else None

    def _describe_inputs(self) -> dict[str, tf.TensorSpec]:
        """Returns the placeholders that values come in through, in the order in which they come."""
        gradients, compute = self._cut.gradients, Graph(self._cut.compute)
        inputs = {self._source.step.inputs[0]: tf.TensorSpec([], tf.float32)}
        for vector in self._layout.vectors:
            if vector.fused:
                inputs[gradients[vector.entries[0].gradient].received[0]] = tf.TensorSpec([vector.length], vector.dtype)
            else:
                for entry in vector.entries:
                    inputs[gradients[entry.gradient].received[0]] = tf.TensorSpec(entry.shape, vector.dtype)
        for table in self._layout.tables:
            if table.gradient is not None:
                rows = gradients[table.gradient]
                inputs[rows.received[0]] = tf.TensorSpec([None, *table.shape[1:]], table.dtype)
                inputs[rows.received[1]] = tf.TensorSpec([None], tf.dtypes.as_dtype(compute.dtype(rows.computed[1])))
        for extra in self._cut.extras:
            inputs[extra.received] = tf.TensorSpec(None, tf.dtypes.as_dtype(compute.dtype(extra.computed)))
        return inputs
