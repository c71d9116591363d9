"""Runs the script's own optimizer on a shard's parameters and state."""

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from fdt.program.checked_writes import row_numbers
from fdt.program.node_graph import PASSING, Graph, Tensor, data_inputs
from fdt.program.step_program import fill_holes, import_function
from fdt.program.update.cut import Cut
from fdt.program.update.elementwise import ELEMENTWISE
from fdt.program.update.formula import Formula, formula
from fdt.program.update.pure import Pure, purify
from fdt.program.update.update_split import UpdateSplit, find_frontier
from fdt.v1 import program_pb2
from nfdt.compensation import Late
from nfdt.compiled import CompiledUpdate
from nfdt.gradients import Gradients
from nfdt.layout import ShardLayout, Table, Vector
from nfdt.one_pass import OfGiven, OnePass, TablePass
from nfdt.vectors import join

# The types for which formulas are compiled.
_TYPES = ("float32", "float64")
# What may lie between a gradient's row numbers and those of an operation that writes rows.
_OF_NUMBERS = PASSING | {"Unique", "UniqueV2", "Cast", "Reshape"}


class Update:
    """A shard's part of an update, called in a graph with gradients and extras.

    Fused vectors, and tables all of whose rows are updated, are updated in one pass if their optimizer's formula is compiled
    (`nfdt.one_pass`). XLA compiles what it can of the others: other optimizers, tensors whose update first reads the whole
    gradient (clipping by its norm). The rest runs as it was traced.
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
        """Imports the update.

        Args:
            source: The program.
            cut: The program's two parts.
            layout: The shard's layout.
            variables: The variables that the update works on, by their index in its graph.
            weighs_rates: Whether learning rates are multiplied by the gradient's reliability ρ.
            compiled: Whether it may be compiled. Compiled code fuses multiply and add, so the last bit may differ.
        """
        self._source, self._cut, self._layout, self._weighs_rates = source, cut, layout, weighs_rates
        self._rates = {h.function for h in source.holes if h.kind == program_pb2.Hole.KIND_RATE}
        self._graph = Graph(cut.update)
        self._variables = {source.step.variables[i]: v for i, v in variables.items()}
        self._inputs = self._describe_inputs()
        self._passes = [self._one_pass(number) if compiled else None for number in range(len(layout.vectors))]
        self._tables = [self._table_pass(table) if compiled else None for table in layout.tables]
        # The writers of fused vectors come first, in the vectors' order.
        by_pass = itertools.zip_longest(layout.writers, self._passes)
        done = [t.writers for t, table_pass in zip(layout.tables, self._tables, strict=True) if table_pass is not None]
        rest = [w for w, one_pass in by_pass if w is not None and one_pass is None and w not in done]
        chosen = [writers for writers in rest if compiled and self._can_be_compiled(writers)]
        update_split = self._update_split([w for writers in chosen for w in writers])
        if not chosen or update_split is None:
            chosen, update_split = [], None
        left = [w for writers in rest if writers not in chosen for w in writers]
        self._left = set(left)
        self._plain = self._import([*left, *layout.shared_writers]) if left or not chosen else None
        # Shared variables, which all parts read, are written by the part that runs last.
        self._compiled = self._compile(update_split, layout.shared_writers if left else ()) if update_split else None

    @property
    def is_compiled(self) -> bool:
        """Whether all of the update is compiled."""
        return self._plain is None

    def is_one_pass(self, number: int) -> bool:
        """Whether a vector is updated in one pass over memory, which may compensate its gradient too."""
        return self._passes[number] is not None

    @property
    def orders_rows(self) -> bool:
        """Whether the update needs the sorted order of a sparse gradient's rows."""
        return any(table_pass is not None for table_pass in self._tables)

    def writes_rows(self, table: Table) -> bool:
        """Whether the update of a table writes only rows for which its gradient has values."""
        if table.gradient is None or not table.writers or not self._left.issuperset(table.writers):
            return False
        handle = (self._source.step.variables[table.variable], 0)
        writing = [node for node in map(self._graph.nodes.get, table.writers) if handle in self._graph.writes(node)]
        return all(self._writes_rows(node, self._cut.gradients[table.gradient].received[1]) for node in writing)

    def _writes_rows(self, node: Any, numbers: str) -> bool:
        place = row_numbers(node)
        if place is None:
            return False
        edge = data_inputs(node)[place]
        while self._graph.nodes[edge[0]].op in _OF_NUMBERS and edge[1] == 0:
            edge = data_inputs(self._graph.nodes[edge[0]])[0]
        return edge == (numbers, 0)

    def __call__(
        self,
        gradients: Gradients,
        orders: Sequence[tf.Tensor | None],
        reliability: tf.Tensor,
        late: Sequence[Late | None],
    ) -> list[tf.Tensor]:
        """Applies gradients.

        Args:
            gradients: The gradients for the optimizer.
            orders: From `nfdt.rows.by_row`, for each pair of rows; read only if `orders_rows`.
            reliability: ρ, float32 scalar; read only if learning rates are multiplied by it.
            late: For each vector how to compensate its gradient first; None for no compensation.

        Returns:
            float32 [2], Σ c² and Σ g², of each vector that is updated in one pass.
        """
        # The step's input "share of the batch" reaches every hole of a learning rate, in branches and loops too, and no other
        # operation of an update, so it carries ρ. Nothing would ensure that a variable is read there after it is written.
        given = [reliability]
        for vector, tensors, one_pass in zip(self._layout.vectors, gradients.vectors, self._passes, strict=True):
            if one_pass is None:
                given += [join(vector.entries, tensors)] if vector.fused else tensors
            else:
                # Only the one-pass update reads this gradient; any tensor will do for the input.
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
        # Include the shared writers: they show whether a shared variable is read before or after it is written.
        return find_frontier(self._graph, [*writers, *shared], self._inputs, self._rates)

    def _one_pass(self, number: int) -> OnePass | None:
        """Returns the one-pass update of a vector; None if its formula is not compiled."""
        written = self._written_down(number)
        if written is None or written[0].name is None:
            return None
        (found, pure), vector = written, self._layout.vectors[number]
        scalars = self._scalars(found, pure, vector.dtype)
        variables = [self._variables[name] for name in self._kept_of(vector)]
        places = [entry.padded for entry in vector.entries]
        return None if scalars is None else OnePass(found, scalars, variables, places)

    def _table_pass(self, table: Table) -> TablePass | None:
        """Returns the one-pass update of a table; None if it does not begin with sums by row, or has no compiled formula."""
        written = self._table_written_down(table)
        if written is None or written[0].name is None:
            return None
        found, pure, update_split = written
        scalars = self._scalars(found, pure, table.dtype)
        summed = self._summed(table, update_split, found.gradients)
        variables = [self._variables[self._source.step.variables[i]] for i in (table.variable, *table.slots)]
        return None if scalars is None or summed is None else TablePass(found, scalars, variables, summed)

    def _written_down(self, number: int) -> tuple[Formula, Pure] | None:
        """Returns a vector's formula and the graph that computes its scalars; None if the update is no formula."""
        vector, update_split = self._layout.vectors[number], None
        if vector.fused and vector.dtype in _TYPES:
            update_split = self._update_split(self._layout.writers[number])
        if update_split is None or update_split.crossing:
            return None
        gradient = self._cut.gradients[vector.entries[0].gradient].received[0]
        return self._formula(update_split, [gradient], self._kept_of(vector))

    def _table_written_down(self, table: Table) -> tuple[Formula, Pure, UpdateSplit] | None:
        """Returns a table's formula, the graph of its scalars, and the split after its sums over rows; None as above."""
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
        """Returns the function that computes a formula's scalars; None if one is no scalar, or of another type."""
        scalars, outputs = self._of_given(pure, found.scalars)
        return scalars if all(o.dtype == dtype and o.shape.rank == 0 for o in outputs) else None

    def _summed(self, table: Table, update_split: UpdateSplit, crossing: Sequence[str]) -> OfGiven | None:
        """Returns a function for the values that a table's update first sums by row; None if it uses other results too."""
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
        # Accept values computed row by row only: each must have the gradient's shape.
        number = self._inputs[values].shape
        return found if all(output.shape.is_compatible_with(number) for output in outputs) else None

    def _of_given(self, pure: Pure, edges: Sequence[Tensor]) -> tuple[OfGiven, Sequence[tf.Tensor]]:
        """Returns a function from the update's inputs, and variables' current values, to tensors; and the traced outputs."""
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
        """Returns the function that runs before the compiled one, and its results' specs by the compiled one's placeholders."""
        # Made pure too, since the shape of a variable in a graph may be unknown.
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
        """Returns the specs of a part's inputs."""
        names = {node.name for node in graph_def.node}
        return {name: spec for name, spec in self._inputs.items() if name in names}

    def _handles(self, graph_def: Any) -> dict[str, Any]:
        """Returns a part's variables."""
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
        """Returns the specs of the update's inputs by their placeholders, in the order in which they are passed."""
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
