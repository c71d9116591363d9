"""Walks a step's graph, operation by operation, and builds the workers' graph."""

import contextlib
import dataclasses
import functools
import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.framework import tensor_util

from fdt.base.relaxation import BATCH_NORM, OWN_ROWS
from fdt.division import arithmetic, folding, output_shapes, shape_elements, state
from fdt.division.conversions import LARGE, Conversions, MustBeWholeError
from fdt.division.exchange import Exchange
from fdt.division.weights import Weights
from fdt.program.body import LOOKING, Body, Wire, attribute, is_stateful, names_functions
from fdt.program.graphs import Functions, Operation, functions_of, infer, is_call, writes
from fdt.program.layout import PARTIAL, WHOLE, Divided, Layout, Partial
from fdt.program.size import Conditions, Dim, value_of
from fdt.program.value import Shape, Value, known

# Types that have no NumPy form.
_NO_ARRAYS = (tf.variant, tf.resource, tf.string)
# Operations that read only a tensor's shape.
_OF_SHAPES = frozenset({"ZerosLike", "OnesLike", "Shape", "ShapeN", "Size", "Rank"})


@dataclasses.dataclass
class Scope:
    """The part of a walk that is inside one graph: the step's, or that of a function it calls."""

    graph: Any
    # The calls that lead here, since operations of a function have the same names in each call.
    path: str
    values: dict[str, Value] = dataclasses.field(default_factory=dict)
    # For each operation of this graph the nodes written for it.
    made: dict[str, list[str]] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Node:
    """An operation of the script's step, to be divided."""

    walk: "Walk"
    op: Operation
    inputs: list[Value]

    @property
    def layouts(self) -> list[Layout]:
        """The layouts of its inputs."""
        return [value.layout for value in self.inputs]

    @property
    def num_local(self) -> int:
        """How many workers' parts this graph holds."""
        return len(self.walk.exchange.ranks)

    def attr(self, name: str) -> Any:
        """Returns an attribute of the operation."""
        return self.op.get_attr(name)

    def rank_of(self, index: int) -> int | None:
        """Returns the rank of an input; None if it is not known."""
        shape = self.inputs[index].shape
        return None if shape is None else len(shape)

    @functools.cached_property
    def shapes(self) -> list[Shape]:
        """The shapes of its outputs."""
        return output_shapes.shapes(self)

    def constant(self, index: int) -> np.ndarray | None:
        """Returns an input's elements, among which may be sizes; None if they are not known."""
        return self.inputs[index].elements_known

    def whole(self, index: int) -> tuple[Wire, ...]:
        """Returns an input as a whole tensor."""
        return self.local(index, WHOLE)

    def local(self, index: int, layout: Layout) -> tuple[Wire, ...]:
        """Returns an input in a layout, one tensor for each worker whose part is built."""
        return self.walk.tensors(self.held(index, layout))

    def held(self, index: int, layout: Layout) -> Value:
        """Returns an input in a layout."""
        return self.walk.converted(self.inputs[index], layout, self.op.name)

    def own(self, index: int) -> tuple[Wire, ...]:
        """Returns an input in its current layout."""
        return self.walk.tensors(self.inputs[index])

    def constants(self, index: int, make: Callable[[int], Iterable[Any]]) -> tuple[Wire, ...]:
        """Returns what replaces an input of numbers for each worker whose part is built.

        Args:
            index: The input, whose type it has.
            make: Returns its elements for a rank.
        """
        dtype = self.inputs[index].dtype
        each = [np.array([*make(rank)], object) for rank in self.walk.exchange.ranks]
        return tuple(self.walk.constant(elements, dtype) for elements in each)

    def own_shapes(self, index: int, whole: Iterable[Any], layout: Divided) -> tuple[Wire, ...]:
        """Returns the shape of each worker's part in place of an input, given the whole tensor's shape."""
        of = [*whole]
        return self.constants(index, lambda r: [*of[: layout.dim], layout.sizes[r], *of[layout.dim + 1 :]])

    def emit(self, inputs: Sequence[Wire], **attributes: Any) -> list[Wire]:
        """Writes the operation once, with these inputs; given attributes replace the script's."""
        return self.walk.emit(self.op, inputs, attributes)

    def run(
        self, inputs: Sequence[tuple[Wire, ...]], layouts: Layout | Sequence[Layout], **attributes: Any
    ) -> list[Value]:
        """Writes the operation for each worker whose part is built; once if all outputs are whole.

        Args:
            inputs: For each input one tensor for each worker.
            layouts: The outputs' layouts: one for all of them, or one each.
            attributes: Attributes that replace the script's; see `attribute`.
        """
        num_outputs = len(self.op.outputs)
        each = list(layouts) if isinstance(layouts, Sequence) else [layouts] * num_outputs
        alike = all(layout == WHOLE for layout in each) and self.walk.own_rows is None
        runs = [self.emit([given[i] for given in inputs], **attributes) for i in range(1 if alike else self.num_local)]
        self.walk.count(self.op, is_divided=not alike or any(layout != WHOLE for layout in self.layouts))
        return [self.value(layout, [run[k] for run in runs], k) for k, layout in enumerate(each)]

    def run_with(self, data: int, layouts: Layout | Sequence[Layout], **attributes: Any) -> list[Value]:
        """Writes the operation with one input in its current layout and all others whole."""
        inputs = [self.own(i) if i == data else self.whole(i) for i in range(len(self.inputs))]
        return self.run(inputs, layouts, **attributes)

    def value(self, layout: Layout, tensors: Sequence[Wire], output: int = 0) -> Value:
        """Returns an output of the operation; a whole output may have a single tensor."""
        made = self.op.outputs[output]
        shape = self.shapes[output]
        if isinstance(layout, Divided) and shape is not None and made.dtype != tf.variant:
            shape = (*shape[: layout.dim], layout.size, *shape[layout.dim + 1 :])
        each = tuple(tensors) * (self.num_local if len(tensors) == 1 else 1)
        handle = self.op.made.outputs[output] if made.dtype == tf.resource else None
        return Value(layout, self.op.name, shape, made.dtype, each, handle=handle)

    def known(self, constants: Sequence[np.ndarray]) -> list[Value]:
        """Returns outputs of the operation whose elements are known: numbers, or numbers and sizes."""
        pairs = zip(constants, self.op.outputs, strict=True)
        return [known(constant, self.op.name, output.dtype) for constant, output in pairs]

    def computed(
        self, make: Callable[..., Any], values: Sequence[Value], layout: Layout, key: Any = None, output: int = 0
    ) -> Value:
        """Returns an output of the operation, computed by other operations; see `Conversions.computed`."""
        (tensors,) = self.walk.computed(make, values, key and (self.op.type, key))
        return self.value(layout, tensors, output)

    def all_whole(self) -> list[Value]:
        """Computes the operation with whole inputs on every worker, which is correct for every operation."""
        for value in self.inputs:
            if value.layout != WHOLE and value.dtype in (tf.resource, tf.variant):
                raise MustBeWholeError(value)
        folded = self.walk.folded(self)
        if folded is not None:
            return folded
        if any(isinstance(layout, Divided) for layout in self.layouts):
            self.walk.computed_whole.append(self.op)
        inputs = [self.whole(i) for i in range(len(self.inputs))]
        # Where workers use their own rows as the batch, whole values differ between them.
        count = 1 if self.walk.own_rows is None or writes(self.op) else self.num_local
        runs = [self.emit([tensors[i] for tensors in inputs]) for i in range(count)]
        self.walk.count(self.op, is_divided=False)
        outputs = [self.value(WHOLE, [run[k] for run in runs], k) for k in range(len(self.op.outputs))]
        if not any(isinstance(layout, Divided) for layout in self.layouts) or self.walk.own_rows is not None:
            return outputs
        # Large outputs can be divided again.
        return [self.in_parts(value) if value.num_bytes > LARGE else value for value in outputs]

    def in_parts(self, value: Value) -> Value:
        """Returns a whole value divided, if it has as many rows as the batch; it also stays available whole."""
        sizes = self.walk.rows.get(value.shape[0]) if value.shape and value.shape[0] is not None else None
        if sizes is None:
            return value
        layout = Divided(0, sizes)
        part = value.held(layout, self.walk.tensors(self.walk.converted(value, layout, self.op.name)))
        part.whole = lambda: value.tensors[0]
        return part

    def whole_until_cut(self, cut: Callable[[Divided], Value | None]) -> list[Value]:
        """Computes an operation of whole inputs and one output, entry by entry; see `Value.cut`."""
        (value,) = self.all_whole()
        value.cut = cut
        return [value]


Rule = Callable[[Node], list[Value] | None]
# A rule for an operation with a divided input of known rank.
DividedRule = Callable[[Node, Divided, tuple[Dim | None, ...]], list[Value] | None]


def for_divided(data: int = 0, linear: bool = False) -> Callable[[DividedRule], Rule]:
    """Makes a `Rule` from a rule for a divided input.

    Args:
        data: Index of that input; the rule makes the others whole.
        linear: Whether the operation, applied to the parts of a sum, gives the parts of the result.
    """

    def decorate(rule: DividedRule) -> Rule:
        @functools.wraps(rule)
        def decorated(node: Node) -> list[Value] | None:
            layout, shape = node.layouts[data], node.inputs[data].shape
            if linear and layout == PARTIAL:
                return node.run_with(data, PARTIAL)
            return rule(node, layout, shape) if isinstance(layout, Divided) and shape is not None else None

        return decorated

    return decorate


class Walk(Conversions):
    """One division of one step, in progress.

    Attributes:
        computed_whole: The script's operations whose divided inputs were made whole because no rule applied.
        flops_divided: Arithmetic of divided operations; each operation counts once, also in a loop.
        flops_whole: Arithmetic of operations that every worker computes in full.
        must_be_whole: Sources of variables and lists that must not be divided.
        functions: The graphs of the step's functions.
        library: The FunctionDefs written so far, which the step calls.
        loops: The fixed points of loops, by place and the layouts of their inputs.
        rows: From a number of rows of the batch to the numbers of rows of each worker.
        owners: For functions that receive gradients: of each gradient its variable's layout, and whether it is rows and ids.
        joined: From the size of tensors that were concatenated along rows to their layout.
        weights: Weights in parts that were put together.
        variances: By path and operation, variances that were found together with means; see `moments.py`.
        numbers_drawn: How many random numbers every worker draws for all workers.
        fixing: The script's operations that need the number of a size that differs from batch to batch.
    """

    def __init__(
        self,
        exchange: Exchange,
        rules: Mapping[str, Rule],
        functions: Functions,
        is_dry: bool,
        whole: Collection[str] = (),
        wanted: Collection[str] = (),
        gradients: Collection[str] = (),
        marks: Collection[str] = (),
        relaxed: frozenset[str] = frozenset(),
        conditions: Conditions | None = None,
    ) -> None:
        """Begins a division.

        Args:
            exchange: See `Exchange`.
            rules: By operation type. A rule returns None if the operation needs whole inputs.
            functions: See the class.
            is_dry: Whether only layouts are computed, and nothing is written.
            whole: Sources of variables and lists that must not be divided.
            wanted: See `Conversions`.
            gradients: See `Conversions`.
            marks: Names of functions that receive gradients for an optimizer.
            relaxed: What need not be exact; see `fdt.base.relaxation`.
            conditions: Where sizes that differ from batch to batch record what they are taken for; None if all are the same.
        """
        super().__init__(exchange, Body(None, is_dry, exchange.in_turn), wanted, gradients)
        self.computed_whole: list[Operation] = []
        self.flops_divided = self.flops_whole = 0
        self.must_be_whole = frozenset(whole)
        self.marks, self.relaxed, self.conditions = frozenset(marks), relaxed, conditions
        self.numbers_drawn = 0
        self.fixing: list[Operation] = []
        self.functions = functions
        self.library: dict[str, Any] = {}
        self.loops: dict[Any, Any] = {}
        self.rows: dict[Dim, tuple[Dim, ...]] = {}
        self.owners: dict[str, list[tuple[Layout, bool]]] = {}
        self.joined: dict[Dim, Divided] = {}
        self.weights = Weights()
        self.variances: dict[tuple[str, str], tuple[Wire, ...]] = {}
        self._rules = rules
        self._paths: list[str] = []

    # ---- graphs -----------------------------------------------------------------------------------------------------

    def function(self, graph: Any, arguments: Sequence[Value], name: str = "") -> list[Value]:
        """Writes a graph's operations into the current function.

        Args:
            graph: FuncGraph whose inputs are its arguments, captured ones last.
            arguments: One for each input of the graph.
            name: Name of the operation that calls it.

        Returns:
            Its outputs.
        """
        self._paths.append(name)
        scope = Scope(graph, self.path)
        for placeholder, argument in zip(graph.inputs, arguments, strict=True):
            scope.values[placeholder.name] = argument
            scope.made[placeholder.op.name] = []
        outer, controls = self._made, self.body.controls
        everything: list[str] = []
        for op in self.functions.in_order(graph):
            if op.name in scope.made:
                continue
            self._made = []
            # What the call waits for, its reads and writes of variables wait for.
            first = controls if op.type in LOOKING or is_stateful(op.type) or is_call(op) else []
            before = list(dict.fromkeys(itertools.chain(first, *(scope.made[name] for name in op.controls))))
            self.body.controls = before
            num_equal = self.conditions.num_equal if self.conditions is not None else 0
            values = self._divided(op, scope)
            if self.conditions is not None and self.conditions.num_equal > num_equal and not names_functions(op.type):
                self.fixing.append(op)
            self.body.controls = controls
            for index, (output, value) in enumerate(zip(op.outputs, values, strict=True)):
                scope.values[output.name] = self._keyed(value, f"{scope.path}/{op.name}:{index}")
            scope.made[op.name] = self._made or before
            everything += self._made
        self._made = [*outer, *everything]
        self._paths.pop()
        return [scope.values[output.name] for output in graph.outputs]

    def _divided(self, op: Operation, scope: Scope) -> list[Value]:
        if op.type == "Const" and op.outputs[0].dtype not in _NO_ARRAYS:
            if not op.folded:
                op.folded[()] = [tensor_util.MakeNdarray(op.get_attr("value"))]
            return [known(op.folded[()][0], op.name)]
        inputs = self._given(op, [scope.values[name] for name in op.inputs])
        node = Node(self, op, inputs)
        folded = self.folded(node)
        if folded is not None:
            return folded
        if not all(output.is_known for output in op.outputs):
            infer(op, inputs)
        node = Node(self, op, state.given(self, op, inputs))
        rule = self._rules.get(op.type)
        result = rule(node) if rule is not None else None
        if result is None:
            result = node.all_whole()
        elif self.own_rows is None:
            for place, value in enumerate(result):
                if _follows(node, value):
                    value.again = functools.partial(self._again, node, place)
        return self._marked(node, self._of_sizes(node, result))

    def _of_sizes(self, node: Node, result: list[Value]) -> list[Value]:
        if self.conditions is not None and (node.op.type in _OF_SHAPES or any(map(_is_of_sizes, node.inputs))):
            for value in result:
                value.is_of_sizes = value.elements_known is None
        return result

    @contextlib.contextmanager
    def on_own_rows(self, function: str, inputs: Sequence[Value]) -> Iterator[None]:
        """Makes workers use their own rows as the batch in this context, if the called function is marked OWN_ROWS."""
        before = self.own_rows
        if BATCH_NORM in self.relaxed and OWN_ROWS in function:
            sizes = (v.layout.sizes for v in inputs if isinstance(v.layout, Divided))
            self.own_rows = next((tuple(map(int, each)) for each in sizes), None)
        yield
        self.own_rows = before

    def _given(self, op: Operation, inputs: list[Value]) -> list[Value]:
        """Returns an operation's inputs; the workers' mean of values that differ between workers, where they must be equal."""
        writes_whole = writes(op) and inputs and inputs[0].layout == WHOLE
        if is_call(op) or op.type in _OF_SHAPES or (self.own_rows is not None and not writes_whole):
            return inputs
        return [self._mean(value, op.name) if value.own_rows is not None else value for value in inputs]

    def _mean(self, value: Value, reader: str) -> Value:
        assert value.own_rows is not None
        here, self.own_rows, shares = self.own_rows, None, value
        if value.layout == WHOLE:
            shares = self.of_own_rows(value, value.own_rows)
            shares.key = f"{value.key}:mean"
        elif here is None:
            return value
        mean = self.converted(shares, WHOLE, reader)
        self.own_rows = here
        return mean

    def _marked(self, node: Node, result: list[Value]) -> list[Value]:
        if self.own_rows is None or is_call(node.op):
            return result
        partial = [value for value in node.inputs if isinstance(value.layout, Partial)]
        for value in result:
            if value.layout == PARTIAL and all(v.own_rows is not None for v in partial):
                value.own_rows = self.own_rows
            if value.layout == WHOLE and any(v.own_rows is not None for v in node.inputs):
                value.own_rows = self.own_rows
        return result

    def _again(self, node: Node, place: int) -> Value:
        return node.all_whole()[place]

    def _keyed(self, value: Value, key: str) -> Value:
        if not value.key:
            value.key = key
            self.announce(value)
        return value

    @property
    def path(self) -> str:
        """The path of calls to the current place in the step."""
        return "/".join(self._paths)

    @contextlib.contextmanager
    def trial(self) -> Iterator[None]:
        """Makes a walk in this context a dry run, which finds layouts and writes nothing."""
        state = self._num_exchanges, self.flops_divided, self.flops_whole
        lengths = len(self.exchanged), len(self.computed_whole)
        with self.apart(is_dry=True):
            yield
        self._num_exchanges, self.flops_divided, self.flops_whole = state
        del self.exchanged[lengths[0] :], self.computed_whole[lengths[1] :]

    @contextlib.contextmanager
    def apart(self, is_dry: bool = False) -> Iterator[Body]:
        """Writes a separate function in this context; nodes of outer functions do not wait for its nodes."""
        outer = self.body, self._made, self._ready
        self.body = Body(self.body, is_dry or self.body.is_dry, self.exchange.in_turn)
        self._made, self._ready = [], []
        yield self.body
        self.body, self._made, self._ready = outer

    def likely(self, size: Dim) -> list[Divided]:
        """Returns the layouts known so far for dimensions of a size."""
        found = [self.joined[size]] if size in self.joined else []
        return [*found, *([Divided(0, self.rows[size])] if size in self.rows else [])]

    # ---- operations -------------------------------------------------------------------------------------------------

    def emit(self, op: Operation, inputs: Sequence[Wire], attributes: Mapping[str, Any]) -> list[Wire]:
        """Writes a copy of one of the script's operations with these inputs."""
        if self.body.is_dry:
            return [self.body.nothing] * len(op.outputs)
        node = op.node_def
        if names_functions(op.type):
            self.library.update(self.functions.needed(functions_of(node.attr)))
        for name, value in attributes.items():
            node.attr[name].CopyFrom(attribute(value))
        return self.write(node, inputs)

    def write(self, node: Any, inputs: Sequence[Wire]) -> list[Wire]:
        """Writes a node; see `Body.add`."""
        outputs = self.body.add(node, inputs)
        self._made.append(node.name)
        return outputs

    def count(self, op: Operation, is_divided: bool) -> None:
        """Counts an operation's arithmetic."""
        if self.body.is_dry:
            return
        flops = arithmetic.flops(op.made, max(map(value_of, self.rows), default=1) or 1)
        if is_divided:
            self.flops_divided += flops
        else:
            self.flops_whole += flops

    def folded(self, node: Node) -> list[Value] | None:
        """Returns an operation's outputs, if they can be computed now from constants and sizes."""
        if any(value.sizes is not None for value in node.inputs):
            elements = shape_elements.elements(node)
            return None if elements is None else node.known(elements)
        inputs = [value.constant for value in node.inputs]
        if not folding.folds(node.op, inputs):
            return None
        return node.known(folding.fold(node.op, inputs))  # type: ignore[arg-type]


def _is_of_sizes(value: Value) -> bool:
    return value.is_of_sizes or value.sizes is not None


def _follows(node: Node, value: Value) -> bool:
    """Whether a partial sum is computed from one that is no larger, so that exchanging that one may serve several."""
    partial = [given for given in node.inputs if given.layout != WHOLE]
    if value.layout != PARTIAL or len(partial) != 1 or partial[0].layout != PARTIAL or value is partial[0]:
        return False
    if names_functions(node.op.type):
        return False
    return 0 < partial[0].num_bytes <= value.num_bytes
