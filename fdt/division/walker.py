"""Walks a step's graph, operation by operation, and builds what the workers run in its place."""

import contextlib
import dataclasses
import functools
import itertools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.core.framework import attr_value_pb2
from tensorflow.python.framework import func_graph, tensor_util

from fdt.division import arithmetic, folding, own_rows
from fdt.division.conversions import LARGE, Conversions, MustBeWholeError
from fdt.division.exchange import Exchange
from fdt.division.graphs import function_graph, graphs_around, in_order, is_call, names_functions, writes
from fdt.division.layout import PARTIAL, WHOLE, Divided, Layout, Partial
from fdt.division.value import Value
from fdt.relaxation import BATCH_NORM, OWN_ROWS

# What has no form as an array.
_NO_ARRAYS = (tf.variant, tf.resource, tf.string)
# They look at the shape alone.
_OF_SHAPES = frozenset({"ZerosLike", "OnesLike", "Shape", "ShapeN", "Size", "Rank"})
# Attributes that describe the place of an operation in the script's graph.
_LEFT_OUT = ("_output_shapes", "_class", "_has_manual_control_dependencies", "_XlaMustCompile")


@dataclasses.dataclass
class Scope:
    """The part of a walk that is inside one graph: the step's, or that of a function it calls."""

    graph: Any
    # Through which calls it was come to: operations of a function have the same names in each call.
    path: str
    values: dict[str, Value] = dataclasses.field(default_factory=dict)
    # For each operation of this graph those that were made in its place.
    made: dict[str, list[tf.Operation]] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Node:
    """An operation of the script's step, to be divided."""

    walk: "Walk"
    op: Any
    inputs: list[Value]

    @property
    def layouts(self) -> list[Layout]:
        """The layouts of its inputs."""
        return [value.layout for value in self.inputs]

    @property
    def num_local(self) -> int:
        """Workers whose parts are built."""
        return len(self.walk.exchange.ranks)

    def attr(self, name: str) -> Any:
        """Returns an attribute of the operation."""
        return self.op.get_attr(name)

    def rank_of(self, index: int) -> int | None:
        """Returns the rank of an input; None if it is not known."""
        shape = self.inputs[index].shape
        return None if shape is None else len(shape)

    def constant(self, index: int) -> np.ndarray | None:
        """Returns an input's elements where they are known."""
        return self.inputs[index].constant

    def whole(self, index: int) -> tuple[tf.Tensor, ...]:
        """Returns an input as a whole tensor."""
        return self.walk.tensors(self.walk.converted(self.inputs[index], WHOLE, self.op.name))

    def local(self, index: int, layout: Layout) -> tuple[tf.Tensor, ...]:
        """Returns an input in a layout, one tensor for each worker whose part is built."""
        return self.walk.tensors(self.walk.converted(self.inputs[index], layout, self.op.name))

    def own(self, index: int) -> tuple[tf.Tensor, ...]:
        """Returns an input as it is."""
        return self.walk.tensors(self.inputs[index])

    def constants(self, make: Callable[[int], Any]) -> tuple[tf.Tensor, ...]:
        """Returns a constant for each worker whose part is built, made from its rank."""
        return tuple(tf.constant(make(rank)) for rank in self.walk.exchange.ranks)

    def own_shapes(self, whole: np.ndarray, layout: Divided) -> tuple[tf.Tensor, ...]:
        """Returns a whole tensor's shape as it is of each worker's own entries."""
        of = [*whole.tolist()]
        return self.constants(
            lambda r: np.array([*of[: layout.dim], layout.sizes[r], *of[layout.dim + 1 :]], whole.dtype)
        )

    def emit(self, inputs: Sequence[tf.Tensor], **attributes: int) -> list[tf.Tensor]:
        """Builds the operation once, on these inputs and with these attributes in the place of the script's."""
        return self.walk.emit(self.op, inputs, attributes)

    def run(
        self, inputs: Sequence[tuple[tf.Tensor, ...]], layouts: Layout | Sequence[Layout], **attributes: int
    ) -> list[Value]:
        """Builds the operation for each worker whose part is built; once if all outputs are whole.

        Args:
            inputs: For each input one tensor for each worker.
            layouts: Of the outputs; one for all of them, or one each.
            attributes: Integers, where they differ from the script's.
        """
        num_outputs = len(self.op.outputs)
        each = list(layouts) if isinstance(layouts, Sequence) else [layouts] * num_outputs
        alike = all(layout == WHOLE for layout in each) and self.walk.own_rows is None
        runs = [self.emit([given[i] for given in inputs], **attributes) for i in range(1 if alike else self.num_local)]
        self.walk.count(runs[0], is_divided=not alike or any(layout != WHOLE for layout in self.layouts))
        return [self.value(layout, [run[k] for run in runs]) for k, layout in enumerate(each)]

    def run_with(self, data: int, layouts: Layout | Sequence[Layout], **attributes: int) -> list[Value]:
        """Builds the operation on one input as it is and all others whole."""
        inputs = [self.own(i) if i == data else self.whole(i) for i in range(len(self.inputs))]
        return self.run(inputs, layouts, **attributes)

    def value(self, layout: Layout, tensors: Sequence[tf.Tensor]) -> Value:
        """Returns an output of the operation; of a whole one a single tensor is enough."""
        return Value(layout, self.op.name, tuple(tensors) * (self.num_local if len(tensors) == 1 else 1))

    def all_whole(self) -> list[Value]:
        """Computes the operation on whole inputs, by all workers alike: what is right for every operation."""
        for value in self.inputs:
            if value.layout != WHOLE and value.dtype in (tf.resource, tf.variant):
                raise MustBeWholeError(value)
        if self.walk.folds(self):
            return self.walk.folded(self)
        if any(isinstance(layout, Divided) for layout in self.layouts):
            self.walk.computed_whole.append(self.op)
        inputs = [self.whole(i) for i in range(len(self.inputs))]
        # Where workers take their own rows for the batch, what is whole differs between them.
        count = 1 if self.walk.own_rows is None or writes(self.op) else self.num_local
        runs = [self.emit([tensors[i] for tensors in inputs]) for i in range(count)]
        self.walk.count(runs[0], is_divided=False)
        outputs = [self.value(WHOLE, [run[k] for run in runs]) for k in range(len(self.op.outputs))]
        if not any(isinstance(layout, Divided) for layout in self.layouts) or self.walk.own_rows is not None:
            return outputs
        # What comes of it can be divided again.
        return [self.in_parts(value) if value.num_bytes > LARGE else value for value in outputs]

    def in_parts(self, value: Value) -> Value:
        """Returns a whole value as divided, where it has as many rows as the batch; who needs it whole has it."""
        sizes = self.walk.rows.get(value.shape[0]) if value.shape else None
        if sizes is None:
            return value
        layout = Divided(0, sizes)
        part = self.walk.converted(value, layout, self.op.name)
        return Value(layout, self.op.name, part.tensors, whole=lambda: value.tensors[0])

    def whole_until_cut(self, cut: Callable[[Divided], Value | None]) -> list[Value]:
        """Computes an operation of whole inputs and one output, entry by entry; see `Value.cut`."""
        (value,) = self.all_whole()
        value.cut = cut
        return [value]


Rule = Callable[[Node], list[Value] | None]
# What to do about an input that is divided, and whose rank is known.
DividedRule = Callable[[Node, Divided, tuple[int | None, ...]], list[Value] | None]


def for_divided(data: int = 0, linear: bool = False) -> Callable[[DividedRule], Rule]:
    """Makes a rule of one for a divided input.

    Args:
        data: Place of that input; the others are made whole by the rule.
        linear: Whether of a partial sum the operation makes the sum of what it makes of the parts.
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
        computed_whole: Operations of the script's that got divided inputs whole, for want of a rule.
        flops_divided: Of a worker, in operations of which each does its part; each once, also in a loop.
        flops_whole: Of a worker, in operations that all compute alike.
        must_be_whole: Sources of lists that must not be divided.
        planning: Whether what is built is thrown away, so that loops need not be.
        loops: What was found out about loops, by where they are and how their variables come in.
        rows: For numbers of rows of the batch, how many each worker has.
        joined: For sizes of tensors that are put one behind the other along their rows, how that is divided.
        numbers_drawn: Random numbers that every worker draws for all.
    """

    def __init__(
        self,
        exchange: Exchange,
        rules: Mapping[str, Rule],
        whole: Collection[str] = (),
        wanted: Collection[str] = (),
        gradients: Collection[str] = (),
        marks: Collection[str] = (),
        relaxed: frozenset[str] = frozenset(),
    ) -> None:
        """Begins a division.

        Args:
            exchange: See `Exchange`.
            rules: By the type of an operation. A rule returns None where it has nothing better than whole inputs.
            whole: Sources of lists that must not be divided.
            wanted: See `Conversions`.
            gradients: See `Conversions`.
            marks: Names of functions that are given gradients, as they come to an optimizer.
            relaxed: What workers may do each for itself; see `fdt.relaxation`.
        """
        super().__init__(exchange, wanted, gradients)
        self.computed_whole: list[Any] = []
        self.flops_divided = self.flops_whole = 0
        self.must_be_whole = frozenset(whole)
        self.marks, self.relaxed = frozenset(marks), relaxed
        self.numbers_drawn = 0
        self.planning = False
        self.loops: dict[Any, Any] = {}
        self.rows: dict[int | None, tuple[int, ...]] = {}
        self.joined: dict[int, Divided] = {}
        self._rules = rules
        self._paths: list[str] = []

    # ---- graphs -----------------------------------------------------------------------------------------------------

    def function(self, graph: Any, arguments: Sequence[Value], name: str = "") -> list[Value]:
        """Builds a graph's operations in the current graph.

        Args:
            graph: FuncGraph whose inputs are its arguments, captured ones last.
            arguments: As many.
            name: Of the operation that calls it.

        Returns:
            Its outputs.
        """
        self._paths.append(name)
        scope = Scope(graph, self.path)
        for placeholder, argument in zip(graph.inputs, arguments, strict=True):
            scope.values[placeholder.name] = argument
            scope.made[placeholder.op.name] = []
        outer = self._made
        everything: list[tf.Operation] = []
        for op in in_order(graph):
            if op.name in scope.made:
                continue
            self._made = []
            for index, (output, value) in enumerate(zip(op.outputs, self._divided(op, scope), strict=True)):
                _tell_shape(value, output.shape)
                scope.values[output.name] = self._keyed(value, f"{scope.path}/{op.name}:{index}")
            before = [scope.made.get(c.name, []) for c in op.control_inputs] if not self._made else []
            scope.made[op.name] = list(dict.fromkeys([*self._made, *itertools.chain(*before)]))
            everything += self._made
        self._made = [*outer, *everything]
        self._paths.pop()
        return [scope.values[output.name] for output in graph.outputs]

    def _divided(self, op: Any, scope: Scope) -> list[Value]:
        inputs = self._given(op, [scope.values[tensor.name] for tensor in op.inputs])
        if op.type == "Const" and op.outputs[0].dtype not in _NO_ARRAYS:
            return [Value(WHOLE, op.name, constant=tensor_util.MakeNdarray(op.get_attr("value")))]
        controls = list(itertools.chain(*(scope.made.get(c.name, []) for c in op.control_inputs)))
        graph = tf.compat.v1.get_default_graph()
        with tf.control_dependencies([c for c in controls if c.graph is graph]):
            node = Node(self, op, inputs)
            if self.folds(node):
                return self.folded(node)
            rule = self._rules.get(op.type)
            result = rule(node) if rule is not None else None
            if result is None:
                result = node.all_whole()
            elif self.own_rows is None:
                for place, value in enumerate(result):
                    if _follows(node, value):
                        value.again = functools.partial(self._again, node, place)
            return self._marked(node, result)

    @contextlib.contextmanager
    def on_own_rows(self, function: str, inputs: Sequence[Value]) -> Iterator[None]:
        """Within it workers take their own rows for the batch, if the function that is called is such a part of the step."""
        before = self.own_rows
        if BATCH_NORM in self.relaxed and OWN_ROWS in function:
            self.own_rows = next((v.layout.sizes for v in inputs if isinstance(v.layout, Divided)), None)
        yield
        self.own_rows = before

    def _given(self, op: Any, inputs: list[Value]) -> list[Value]:
        """Returns an operation's inputs; the mean of what differs from worker to worker, where that must not be."""
        writes_whole = writes(op) and inputs and inputs[0].layout == WHOLE
        if is_call(op) or op.type in _OF_SHAPES or (self.own_rows is not None and not writes_whole):
            return inputs
        return [self._mean(value, op.name) if value.own_rows is not None else value for value in inputs]

    def _mean(self, value: Value, reader: str) -> Value:
        assert value.own_rows is not None
        here, self.own_rows, shares = self.own_rows, None, value
        if value.layout == WHOLE:
            shares = own_rows.converted(value, self.tensors(value), value.own_rows, self.exchange.ranks)
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

    @contextlib.contextmanager
    def trial(self) -> Iterator[None]:
        """Builds a part that is thrown away, to see which layouts come out of it."""
        graph = func_graph.FuncGraph("trial")
        graph._outer_graph = tf.compat.v1.get_default_graph()
        state = self._num_exchanges, self._made, self._ready
        lengths = len(self.exchanged), len(self.computed_whole)
        flops = self.flops_divided, self.flops_whole
        self._ready = []
        with graph.as_default():
            yield
        self._num_exchanges, self._made, self._ready = state
        self.flops_divided, self.flops_whole = flops
        del self.exchanged[lengths[0] :], self.computed_whole[lengths[1] :]

    @property
    def path(self) -> str:
        """Through which calls the walk has come to where it is."""
        return "/".join(self._paths)

    @contextlib.contextmanager
    def apart(self) -> Iterator[None]:
        """Builds a part in a graph of its own, whose operations those around it do not wait for."""
        outer = self._made, self._ready
        self._made, self._ready = [], []
        yield
        self._made, self._ready = outer

    def likely(self, size: int) -> list[Divided]:
        """Returns how a dimension of a size may be divided, by what is known of the step so far."""
        found = [self.joined[size]] if size in self.joined else []
        return [*found, *([Divided(0, self.rows[size])] if size in self.rows else [])]

    def note(self, op: tf.Operation) -> None:
        """Takes note of an operation that was made without `emit`."""
        self._made.append(op)

    def called(self, op: Any, name: str) -> Any:
        """Returns the FuncGraph of a function that an operation names in an attribute."""
        return function_graph(op.graph, op.get_attr(name).name)

    # ---- operations -------------------------------------------------------------------------------------------------

    def emit(self, op: Any, inputs: Sequence[tf.Tensor], attributes: Mapping[str, Any]) -> list[tf.Tensor]:
        """Builds an operation like one of the script's on these inputs."""
        graph: Any = tf.compat.v1.get_default_graph()
        if graph is not op.graph and any(map(names_functions, op.node_def.attr.values())):
            for function in itertools.chain(*(owner._functions.values() for owner in graphs_around(op.graph))):
                graph._add_function_recursive(function)
        copied = {name: value for name, value in op.node_def.attr.items() if name not in _LEFT_OUT}
        copied.update({name: attr_value_pb2.AttrValue(i=value) for name, value in attributes.items()})
        types = [output.dtype for output in op.outputs]
        made = graph._create_op_internal(op.type, list(inputs), types, name=op.name, attrs=copied)
        self._made.append(made)
        return list(made.outputs)

    def count(self, outputs: Sequence[tf.Tensor], is_divided: bool) -> None:
        """Takes note of what an operation computes."""
        if self.planning or not outputs:
            return
        if is_divided:
            self.flops_divided += arithmetic.flops(outputs[0].op)
        else:
            self.flops_whole += arithmetic.flops(outputs[0].op)

    def folds(self, node: Node) -> bool:
        """Whether the operation's outputs can be computed now."""
        return folding.folds(node.op, [value.constant for value in node.inputs])

    def folded(self, node: Node) -> list[Value]:
        """Returns the outputs of an operation on constants."""
        inputs = [value.constant for value in node.inputs]
        return [Value(WHOLE, node.op.name, constant=c) for c in folding.fold(node.op, inputs)]  # type: ignore[arg-type]


def _follows(node: Node, value: Value) -> bool:
    """Whether a sum in parts follows from another, no larger one: several may, and one exchange serves all."""
    partial = [given for given in node.inputs if given.layout != WHOLE]
    if value.layout != PARTIAL or len(partial) != 1 or partial[0].layout != PARTIAL or value is partial[0]:
        return False
    if any(map(names_functions, node.op.node_def.attr.values())):
        return False
    return 0 < partial[0].num_bytes <= value.num_bytes


def _tell_shape(value: Value, whole: tf.TensorShape) -> None:
    """Tells a value's tensors what the script's graph knows of the whole one's shape: that of a list's element, for example."""
    if whole.rank is None or value.constant is not None or value.dtype in (tf.variant, tf.resource):
        return
    for tensor in dict.fromkeys(t.ref() for t in value.tensors):
        own = tensor.deref()
        if not own.shape.is_fully_defined():
            dims = whole.as_list()
            if isinstance(value.layout, Divided):
                dims[value.layout.dim] = None
            own.set_shape(dims)
