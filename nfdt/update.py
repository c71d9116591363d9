"""Runs the script's own optimizer on what a shard keeps."""

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from fdt.program.step_program import fill_holes, import_function
from fdt.v1 import program_pb2
from nfdt.compensation import Late
from nfdt.compiled import CompiledUpdate
from nfdt.cut import Cut
from nfdt.formula import Formula, formula
from nfdt.gradients import Gradients
from nfdt.graph import PASSING, Graph, Tensor, data_inputs
from nfdt.layout import ShardLayout, Table, Vector
from nfdt.one_pass import OfGiven, OnePass, TablePass
from nfdt.parameter_groups import ELEMENTWISE
from nfdt.pure import Pure, purify
from nfdt.update_split import UpdateSplit, find_frontier
from nfdt.vectors import join

# Of which formulas are compiled.
_TYPES = ("float32", "float64")


class Update:
    """A shard's part of an update, called in a graph with gradients and extras.

    Fused vectors, and tables all of whose rows are updated, are updated in one pass if their optimizer is a usual one
    (`nfdt.one_pass`). Of the rest XLA compiles what it can: other optimizers, tensors whose update looks at the whole of the
    gradient first (clipping by its norm). What is left runs as it was traced.
    """

    def __init__(
        self,
        source: program_pb2.StepProgram,
        cut: Cut,
        layout: ShardLayout,
        variables: Mapping[int, tf.Variable],
        weighs_rates: bool,
        compiled: bool,
    ):
        """Imports it.

        Args:
            source: The program.
            cut: Its two parts.
            layout: Of the shard.
            variables: What the update works on, by the indices that it knows them by.
            weighs_rates: Whether learning rates are multiplied by how much a gradient is believed.
            compiled: Whether it may be compiled. Compiled code multiplies and adds at once, so the last bit may differ.
        """
        self._source, self._cut, self._layout, self._weighs_rates = source, cut, layout, weighs_rates
        self._rates = {h.function for h in source.holes if h.kind == program_pb2.Hole.KIND_RATE}
        self._graph = Graph(cut.update)
        self._variables = {source.step.variables[i]: v for i, v in variables.items()}
        self._inputs = self._describe_inputs()
        self._passes = [self._one_pass(number) if compiled else None for number in range(len(layout.vectors))]
        self._tables = [self._table_pass(table) if compiled else None for table in layout.tables]
        # Those of fused vectors come first, in their order.
        by_pass = itertools.zip_longest(layout.writers, self._passes)
        done = [t.writers for t, table_pass in zip(layout.tables, self._tables, strict=True) if table_pass is not None]
        rest = [w for w, one_pass in by_pass if w is not None and one_pass is None and w not in done]
        chosen = [writers for writers in rest if compiled and self._can_be_compiled(writers)]
        update_split = self._update_split([w for writers in chosen for w in writers])
        if not chosen or update_split is None:
            chosen, update_split = [], None
        left = [w for writers in rest if writers not in chosen for w in writers]
        self._plain = self._import([*left, *layout.shared_writers]) if left or not chosen else None
        # What all parts look at is written by the last of them.
        self._compiled = self._compile(update_split, layout.shared_writers if left else ()) if update_split else None

    @property
    def is_compiled(self) -> bool:
        """Whether all of it is."""
        return self._plain is None

    def is_one_pass(self, number: int) -> bool:
        """Whether a vector is updated in one pass over memory, which may compensate its gradient too."""
        return self._passes[number] is not None

    @property
    def orders_rows(self) -> bool:
        """Whether it has to be told in which order a table's rows come."""
        return any(table_pass is not None for table_pass in self._tables)

    def __call__(
        self,
        gradients: Gradients,
        orders: Sequence[tf.Tensor | None],
        reliability: tf.Tensor,
        late: Sequence[Late | None],
    ) -> list[tf.Tensor]:
        """Applies gradients.

        Args:
            gradients: As they go to the optimizer.
            orders: Of `nfdt.rows.by_row`, for each pair of rows; looked at where `orders_rows`.
            reliability: How much they are believed, float32 scalar; looked at where learning rates are multiplied by it.
            late: For each vector what its gradient is compensated by first; None for nothing.

        Returns:
            float32 [2], Σ c² and Σ g², of each vector that is updated in one pass.
        """
        # What a step calls its share of a batch comes to every call for a learning rate, in branches and loops too, and to
        # nothing else of an update. A variable would have to be read there after it was written, which nothing ensures.
        given = [reliability]
        for vector, tensors, one_pass in zip(self._layout.vectors, gradients.vectors, self._passes, strict=True):
            if one_pass is None:
                given += [join(vector.entries, tensors)] if vector.fused else tensors
            else:
                # Nothing else looks at it.
                given.append(tensors[0])
        given += tf.nest.flatten([gradients.rows, gradients.extras])
        by_name = dict(zip(self._inputs, given, strict=True))
        squares = []
        for tensors, one_pass, by in zip(gradients.vectors, self._passes, late, strict=True):
            if one_pass is not None:
                squares.append(one_pass(tensors, by_name, by))
        sparse = (p for table, p in zip(self._layout.tables, self._tables, strict=True) if table.gradient is not None)
        for rows, order, table_pass in zip(gradients.rows, orders, sparse, strict=True):
            if table_pass is not None:
                assert order is not None
                table_pass(rows[1], order, by_name)
        if self._compiled is not None:
            self._compiled(by_name)
        if self._plain is not None:
            self._plain(by_name)
        return squares

    def _update_split(self, writers: Sequence[str]) -> UpdateSplit | None:
        shared = self._layout.shared_writers
        # Shared variables may be read before they are written, or after: their writers show which.
        return find_frontier(self._graph, [*writers, *shared], self._inputs, self._rates)

    def _one_pass(self, number: int) -> OnePass | None:
        """Returns the update of a vector, if what is done to its entries is compiled."""
        written = self._written_down(number)
        if written is None or written[0].name is None:
            return None
        (found, pure), vector = written, self._layout.vectors[number]
        scalars = self._scalars(found, pure, vector.dtype)
        variables = [self._variables[name] for name in self._kept_of(vector)]
        places = [entry.padded for entry in vector.entries]
        return None if scalars is None else OnePass(found, scalars, variables, places)

    def _table_pass(self, table: Table) -> TablePass | None:
        """Returns the update of a table, if it sums rows up and what it then does to entries is compiled."""
        written = self._table_written_down(table)
        if written is None or written[0].name is None:
            return None
        found, pure, update_split = written
        scalars = self._scalars(found, pure, table.dtype)
        summed = self._summed(table, update_split, found.gradients)
        variables = [self._variables[self._source.step.variables[i]] for i in (table.variable, *table.slots)]
        return None if scalars is None or summed is None else TablePass(found, scalars, variables, summed)

    def _written_down(self, number: int) -> tuple[Formula, Pure] | None:
        """Returns what is done to a vector's entries, and the graph that its scalars are in; None if that is no formula."""
        vector, update_split = self._layout.vectors[number], None
        if vector.fused and vector.dtype in _TYPES:
            update_split = self._update_split(self._layout.writers[number])
        if update_split is None or update_split.crossing:
            return None
        gradient = self._cut.gradients[vector.entries[0].gradient].received[0]
        return self._formula(update_split, [gradient], self._kept_of(vector))

    def _table_written_down(self, table: Table) -> tuple[Formula, Pure, UpdateSplit] | None:
        """Returns the same of a table's, and where sums over rows cross."""
        update_split = self._update_split(table.writers) if table.writers and table.dtype in _TYPES else None
        if update_split is None or not update_split.crossing:
            return None
        kept = [self._source.step.variables[i] for i in (table.variable, *table.slots)]
        if any(self._variables[name].shape != table.shape for name in kept):
            return None
        written = self._formula(update_split, list(update_split.crossing.values()), kept)
        return None if written is None else (*written, update_split)

    def _formula(
        self, update_split: UpdateSplit, gradients: Sequence[str], kept: Sequence[str]
    ) -> tuple[Formula, Pure] | None:
        types = {name: v.dtype.as_datatype_enum for name, v in self._handles(update_split.after).items()}
        pure = purify(update_split.after, types)
        if not set(kept) <= set(pure.results):
            return None
        values, results = [pure.values[name] for name in kept], [pure.results[name] for name in kept]
        found = formula(Graph(pure.graph_def), gradients, values, results)
        return None if found is None else (found, pure)

    def _scalars(self, found: Formula, pure: Pure, dtype: str) -> OfGiven | None:
        """Returns what computes a formula's scalars; None if they are none, or of another type."""
        scalars, outputs = self._of_given(pure, found.scalars)
        return scalars if all(o.dtype == dtype and o.shape.rank == 0 for o in outputs) else None

    def _summed(self, table: Table, update_split: UpdateSplit, crossing: Sequence[str]) -> OfGiven | None:
        """Returns what a table's update adds up, row by row, before anything else; None if that is not all that crosses."""
        assert table.gradient is not None
        values, indices = self._cut.gradients[table.gradient].received
        types = {name: v.dtype.as_datatype_enum for name, v in self._handles(update_split.before).items()}
        pure = purify(update_split.before, types)
        graph = Graph(pure.graph_def)
        crossed = {name: edge for edge, name in update_split.crossing.items()}
        sums = [graph.nodes[crossed[name][0]] for name in crossing]
        if any(node.op != "UnsortedSegmentSum" or graph.value(data_inputs(node)[1]) != (indices, 0) for node in sums):
            return None
        edges = [data_inputs(node)[0] for node in sums]
        for node in (graph.nodes[name] for name in graph.ancestors(edge[0] for edge in edges)):
            is_rate = node.op == "PartitionedCall" and node.attr["f"].func.name in self._rates
            if not is_rate and node.op not in ELEMENTWISE | PASSING | {"Placeholder", "Const"}:
                return None
        found, outputs = self._of_given(pure, edges)
        # Each row by itself: nothing beside the values has rows.
        number = self._inputs[values].shape
        return found if all(output.shape.is_compatible_with(number) for output in outputs) else None

    def _of_given(self, pure: Pure, edges: Sequence[Tensor]) -> tuple[OfGiven, Sequence[tf.Tensor]]:
        """Returns a function of what comes in, and of variables as they are, and the outputs of its trace."""
        graph = Graph(pure.graph_def)
        part = graph.part(graph.ancestors(edge[0] for edge in edges))
        there = {node.name for node in part.node}
        read = {value: self._variables[name] for name, value in pure.values.items() if value in there}
        specs = self._specs(part)
        values = {value: tf.TensorSpec(variable.shape, variable.dtype) for value, variable in read.items()}
        outputs = [f"{name}:{index}" for name, index in edges]
        function = import_function(self._filled(part), specs | values, {}, outputs, [])

        def run(given: Mapping[str, tf.Tensor]) -> Sequence[tf.Tensor]:
            now = [variable.read_value() for variable in read.values()]
            return function(*(given[name] for name in specs), *now)  # type: ignore[no-any-return]

        return run, function.outputs

    def _kept_of(self, vector: Vector) -> list[str]:
        """Returns the placeholders of a fused vector's variables, the parameters first."""
        first = vector.entries[0]
        return [self._source.step.variables[i] for i in (first.variable, *first.slots)]

    def _can_be_compiled(self, writers: Sequence[str]) -> bool:
        update_split = self._update_split(writers)
        return update_split is not None and all(
            s.shape.is_fully_defined() for s in self._before(update_split)[1].values()
        )

    def _before(self, update_split: UpdateSplit) -> tuple[OfGiven, dict[str, tf.TensorSpec]]:
        """Returns what runs before the compiled function, and what it returns by the placeholders of that."""
        # As a function of values too: of a variable in a graph the shape may not be known.
        handles = self._handles(update_split.before)
        pure = purify(update_split.before, {name: v.dtype.as_datatype_enum for name, v in handles.items()})
        run, outputs = self._of_given(pure, list(update_split.crossing))
        described = [tf.TensorSpec(output.shape, output.dtype) for output in outputs]
        return run, dict(zip(update_split.crossing.values(), described, strict=True))

    def _compile(
        self, update_split: UpdateSplit, unwritten: Sequence[str]
    ) -> Callable[[Mapping[str, tf.Tensor]], None]:
        before, crossing = self._before(update_split)
        handles = self._handles(update_split.after)
        pure = purify(update_split.after, {name: v.dtype.as_datatype_enum for name, v in handles.items()})
        inputs = self._specs(pure.graph_def) | crossing
        shared = {handle[0] for w in unwritten for handle in self._graph.writes(self._graph.nodes[w])}
        function = CompiledUpdate(pure, self._filled(pure.graph_def), inputs, handles, shared)

        def run(given: Mapping[str, tf.Tensor]) -> None:
            crossed = zip(crossing, before(given), strict=True) if crossing else ()
            function({**given, **dict(crossed)})

        return run

    def _import(self, writers: Sequence[str]) -> Callable[[Mapping[str, tf.Tensor]], None]:
        graph_def = self._graph.part(self._graph.ancestors(writers))
        specs, handles = self._specs(graph_def), self._handles(graph_def)
        function = import_function(self._filled(graph_def), specs, handles, [], writers)

        def run(given: Mapping[str, tf.Tensor]) -> None:
            function(*(given[name] for name in specs))

        return run

    def _specs(self, graph_def: Any) -> dict[str, tf.TensorSpec]:
        """Returns the inputs that a part of the update has."""
        names = {node.name for node in graph_def.node}
        return {name: spec for name, spec in self._inputs.items() if name in names}

    def _handles(self, graph_def: Any) -> dict[str, Any]:
        """Returns the variables that a part of the update has."""
        names = {node.name for node in graph_def.node}
        return {name: variable for name, variable in self._variables.items() if name in names}

    def _filled(self, graph_def: Any) -> Any:
        meta_graph = tf.compat.v1.MetaGraphDef.FromString(self._source.step.meta_graph)
        meta_graph.graph_def.CopyFrom(graph_def)
        fill_holes(self._source, meta_graph, self._fill)
        return meta_graph

    def _fill(self, position: int, hole: program_pb2.Hole) -> Callable[..., Sequence[tf.Tensor]] | None:
        is_rate = hole.kind == program_pb2.Hole.KIND_RATE
        return _multiplied if is_rate and self._weighs_rates else None

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


def _multiplied(share: tf.Tensor, rate: tf.Tensor) -> Sequence[tf.Tensor]:
    return [rate * tf.cast(share, rate.dtype)]
