"""Walks a step's graph, operation by operation, and builds what the workers run in its place."""

import collections
import contextlib
import dataclasses
import functools
import heapq
import itertools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.core.framework import attr_value_pb2
from tensorflow.python.framework import func_graph, function_def_to_graph, tensor_util

from fdt.division import arithmetic, folding
from fdt.division.exchange import Exchange, Exchanged
from fdt.division.layout import PARTIAL, WHOLE, Combine, Divided, Layout, Partial
from fdt.division.value import Value

# What has no form as an array.
_NO_ARRAYS = (tf.variant, tf.resource, tf.string)
# A value that is larger is computed in parts where parts are needed, instead of cut.
_CUT_BYTES = 1 << 14
# Stateful for TensorFlow, and without effect.
_LOOKING = (
    "ReadVariableOp",
    "ResourceGather",
    "ResourceGatherNd",
    "VariableShape",
    "VarIsInitializedOp",
    "Placeholder",
)
# Attributes that describe the place of an operation in the script's graph.
_LEFT_OUT = ("_output_shapes", "_class", "_has_manual_control_dependencies", "_XlaMustCompile")


class MustBeWholeError(Exception):
    """An operation needs a variable or a list whole that the workers hold in part; the division begins anew without that."""

    def __init__(self, value: Value) -> None:
        super().__init__(f"{value.source!r} must be whole.")
        self.source = value.source


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
        alike = all(layout == WHOLE for layout in each)
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
        outputs = self.emit([tensors[0] for tensors in inputs])
        self.walk.count(outputs, is_divided=False)
        return [self.value(WHOLE, [output]) for output in outputs]

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


class Walk:
    """One division of one step, in progress.

    Attributes:
        exchange: Fills the places where workers exchange values.
        exchanged: What they exchange, in the order of the step.
        computed_whole: Operations of the script's that got divided inputs whole, for want of a rule.
        flops_divided: Of a worker, in operations of which each does its part; each once, also in a loop.
        flops_whole: Of a worker, in operations that all compute alike.
        made_whole: Keys of values that were exchanged.
        must_be_whole: Sources of lists that must not be divided.
        gradients: Keys of values that are gradients, as they come to an optimizer.
        planning: Whether what is built is thrown away, so that loops need not be.
        loops: What was found out about loops, by where they are and how their variables come in.
        rows: For numbers of rows of the batch, how many each worker has.
    """

    def __init__(
        self,
        exchange: Exchange,
        rules: Mapping[str, Rule],
        whole: Collection[str] = (),
        wanted: Collection[str] = (),
        gradients: Collection[str] = (),
        marks: Collection[str] = (),
    ) -> None:
        """Begins a division.

        Args:
            exchange: See `Exchange`.
            rules: By the type of an operation. A rule returns None where it has nothing better than whole inputs.
            whole: Sources of lists that must not be divided.
            wanted: Keys of partial values that some operation will need whole: those that are there when the first of them is
                needed are exchanged together.
            gradients: See the class.
            marks: Names of functions that are given gradients, as they come to an optimizer.
        """
        self.exchange = exchange
        self.exchanged: list[Exchanged] = []
        self.computed_whole: list[Any] = []
        self.flops_divided = self.flops_whole = 0
        self.made_whole: set[str] = set()
        self.must_be_whole = frozenset(whole)
        self.gradients, self.marks = set(gradients), frozenset(marks)
        self.planning = False
        self.loops: dict[Any, Any] = {}
        self.rows: dict[int | None, tuple[int, ...]] = {}
        self._rules, self._wanted = rules, frozenset(wanted)
        self._num_exchanges = 0
        # Partial values that will be needed whole, made in the current graph and not exchanged yet.
        self._ready: list[Value] = []
        self._paths: list[str] = []
        self._made: list[tf.Operation] = []

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
        inputs = [scope.values[tensor.name] for tensor in op.inputs]
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
                return node.all_whole()
            for place, value in enumerate(result):
                if _follows(node, value):
                    value.again = functools.partial(self._again, node, place)
            return result

    def _again(self, node: Node, place: int) -> Value:
        return node.all_whole()[place]

    def _keyed(self, value: Value, key: str) -> Value:
        if not value.key:
            value.key = key
            is_wanted = key in self._wanted and isinstance(value.layout, Partial) and not self.has(value, WHOLE)
            if is_wanted and all(other.others is not value.others for other in self._ready):
                self._ready.append(value)
        return value

    def settle(self) -> None:
        """Exchanges what is ready: a branch or loop is about to be built, and each would do it for itself."""
        while self._ready:
            self.converted(self._ready[0], WHOLE, "")

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

    def note(self, op: tf.Operation) -> None:
        """Takes note of an operation that was made without `emit`."""
        self._made.append(op)

    def called(self, op: Any, name: str) -> Any:
        """Returns the FuncGraph of a function that an operation names in an attribute."""
        return self.function_graph(op.graph, op.get_attr(name).name)

    def function_graph(self, around: Any, name: str) -> Any:
        """Returns the FuncGraph of a function that a graph, or one around it, knows."""
        owner = next(graph for graph in _with_those_around(around) if graph._get_function(name) is not None)
        function = owner._get_function(name)
        graph = getattr(function, "graph", None)
        if graph is not None:
            return graph
        definition = getattr(function, "cached_definition", None) or function.definition
        # Whose functions it may call.
        with owner.as_default():
            return function_def_to_graph.function_def_to_graph(definition)

    # ---- operations -------------------------------------------------------------------------------------------------

    def emit(self, op: Any, inputs: Sequence[tf.Tensor], attributes: Mapping[str, Any]) -> list[tf.Tensor]:
        """Builds an operation like one of the script's on these inputs."""
        graph: Any = tf.compat.v1.get_default_graph()
        if graph is not op.graph and any(map(_names_functions, op.node_def.attr.values())):
            for function in itertools.chain(*(owner._functions.values() for owner in _with_those_around(op.graph))):
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

    def refusal(self, value: Value) -> MustBeWholeError:
        """Returns what to raise where a value cannot have another layout."""
        return MustBeWholeError(value)

    def folds(self, node: Node) -> bool:
        """Whether the operation's outputs can be computed now."""
        return folding.folds(node.op, [value.constant for value in node.inputs])

    def folded(self, node: Node) -> list[Value]:
        """Returns the outputs of an operation on constants."""
        inputs = [value.constant for value in node.inputs]
        return [Value(WHOLE, node.op.name, constant=c) for c in folding.fold(node.op, inputs)]  # type: ignore[arg-type]

    def tensors(self, value: Value) -> tuple[tf.Tensor, ...]:
        """Returns a value's tensors; those of a constant are made where they are used."""
        if value.constant is not None and not value.tensors:
            return (tf.constant(value.constant),) * len(self.exchange.ranks)
        return value.tensors

    # ---- layouts ----------------------------------------------------------------------------------------------------

    def converted(self, value: Value, layout: Layout, reader: str) -> Value:
        """Returns a value in another layout; workers exchange what it takes."""
        if value.layout == layout:
            return value
        if value.remake is not None:
            return value.remake(layout)
        for known in value.others.get(layout, ()):
            if _visible(known):
                return known
        made = self._convert(value, layout, reader)
        if not self.has(value, layout):
            value.others.setdefault(layout, []).append(made)
        return made

    def has(self, value: Value, layout: Layout) -> bool:
        """Whether a value is there in a layout already."""
        return value.layout == layout or any(map(_visible, value.others.get(layout, ())))

    def _convert(self, value: Value, layout: Layout, reader: str) -> Value:
        if value.dtype in (tf.resource, tf.variant):
            raise MustBeWholeError(value)
        if layout == WHOLE:
            return self._made_whole(value, reader)
        if isinstance(layout, Divided) and value.cut is not None and value.num_bytes > _CUT_BYTES:
            part = value.cut(layout)
            if part is not None:
                return part
        whole = self.converted(value, WHOLE, reader)
        tensors = self.tensors(whole)
        ranks = self.exchange.ranks
        if isinstance(layout, Divided):
            cut = [_slice(t, layout.dim, layout.start(r), layout.sizes[r]) for t, r in zip(tensors, ranks, strict=True)]
        else:
            assert isinstance(layout, Partial)
            cut = [t if r == 0 else neutral(t, layout.combine) for t, r in zip(tensors, ranks, strict=True)]
        return Value(layout, value.source, tuple(cut))

    def _made_whole(self, value: Value, reader: str) -> Value:
        if value.whole is not None:
            return Value(WHOLE, value.source, (value.whole(),) * len(self.exchange.ranks))
        if value.again is not None and value.key not in self.gradients:
            return value.again()
        self.made_whole.add(value.key)
        if isinstance(value.layout, Partial):
            mine = next((ready for ready in self._ready if ready.others is value.others), None)
            if mine is None:
                return self._reduced([value], reader)[0]
            together = [other for other in self._ready if self._goes_with(mine, other)]
            self._ready = [other for other in self._ready if other not in together]
            return self._reduced(together, reader)[together.index(mine)]
        assert isinstance(value.layout, Divided)
        with tf.control_dependencies(None):
            front = [_to_front(t, value.layout.dim) for t in value.tensors]
            gathered = self.exchange.gather(front, value.layout.sizes, self._next_name(), value.key in self.gradients)
            tensor = _from_front(gathered, value.layout.dim)
        tensor.set_shape(value.shape)
        return self._exchanged(value, tensor, "gather", reader)

    def _goes_with(self, value: Value, other: Value) -> bool:
        alike = value.layout == other.layout and value.dtype == other.dtype
        return alike and (value.key in self.gradients) == (other.key in self.gradients)

    def _reduced(self, values: Sequence[Value], reader: str) -> list[Value]:
        layout = values[0].layout
        assert isinstance(layout, Partial)
        with tf.control_dependencies(None):
            tensors = self.exchange.reduce(
                [v.tensors for v in values], layout.combine, self._next_name(), values[0].key in self.gradients
            )
        whole = []
        for value, tensor in zip(values, tensors, strict=True):
            tensor.set_shape(value.tensors[0].shape)
            whole.append(self._exchanged(value, tensor, layout.combine.value, reader))
            value.others.setdefault(WHOLE, []).append(whole[-1])
        return whole

    def _next_name(self) -> str:
        self._num_exchanges += 1
        return f"exchange_{self._num_exchanges}"

    def _exchanged(self, value: Value, tensor: tf.Tensor, kind: str, reader: str) -> Value:
        self.exchanged.append(Exchanged(kind, value.num_bytes, value.source, reader))
        self._made.append(tensor.op)
        return Value(WHOLE, value.source, (tensor,) * len(self.exchange.ranks))


def _follows(node: Node, value: Value) -> bool:
    """Whether a sum in parts follows from another, no larger one: several may, and one exchange serves all."""
    partial = [given for given in node.inputs if given.layout != WHOLE]
    if value.layout != PARTIAL or len(partial) != 1 or partial[0].layout != PARTIAL or value is partial[0]:
        return False
    if any(map(_names_functions, node.op.node_def.attr.values())):
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


def in_order(graph: Any) -> list[Any]:
    """Returns the operations of a function that are run, each after those it needs, else as they were made.

    As they were made is not enough: the gradient of a loop gives the loop further inputs.
    """
    operations = _run(graph)
    place = {op.name: i for i, op in enumerate(operations)}
    waiting = {
        op.name: len({*(t.op.name for t in op.inputs), *(c.name for c in op.control_inputs)}) for op in operations
    }
    users = collections.defaultdict(list)
    for op in operations:
        for name in {*(t.op.name for t in op.inputs), *(c.name for c in op.control_inputs)}:
            users[name].append(op.name)
    ready = [i for i, op in enumerate(operations) if not waiting[op.name]]
    heapq.heapify(ready)
    ordered = []
    while ready:
        op = operations[heapq.heappop(ready)]
        ordered.append(op)
        for name in users[op.name]:
            waiting[name] -= 1
            if not waiting[name]:
                heapq.heappush(ready, place[name])
    return ordered


def _run(graph: Any) -> list[Any]:
    """Returns what a function runs: what its outputs need, and what does something besides giving its outputs."""
    everything = graph.get_operations()
    waiting = [tensor.op for tensor in graph.outputs] + list(graph.control_outputs)
    waiting += [op for op in everything if op.type not in _LOOKING and op._is_stateful]
    needed = {tensor.op.name for tensor in graph.inputs}
    while waiting:
        op = waiting.pop()
        if op.name not in needed:
            needed.add(op.name)
            waiting += [*(tensor.op for tensor in op.inputs), *op.control_inputs]
    return [op for op in everything if op.name in needed]


def neutral(tensor: tf.Tensor, combine: Combine) -> tf.Tensor:
    """Returns what changes nothing when it is put together with others."""
    if combine is Combine.SUM:
        return tf.zeros_like(tensor)
    if tensor.dtype == tf.bool:
        return (tf.zeros_like if combine is Combine.MAX else tf.ones_like)(tensor)
    limit = tensor.dtype.min if combine is Combine.MAX else tensor.dtype.max
    if tensor.dtype.is_floating:
        limit = -np.inf if combine is Combine.MAX else np.inf
    return tf.fill(tf.shape(tensor), tf.cast(limit, tensor.dtype))


def _slice(tensor: tf.Tensor, dim: int, start: int, size: int) -> tf.Tensor:
    picked = [slice(None)] * dim + [slice(start, start + size)]
    return tensor[tuple(picked)]


def _to_front(tensor: tf.Tensor, dim: int) -> tf.Tensor:
    if dim == 0:
        return tensor
    order = [dim, *(d for d in range(tensor.shape.rank) if d != dim)]
    return tf.transpose(tensor, order)


def _from_front(tensor: tf.Tensor, dim: int) -> tf.Tensor:
    if dim == 0:
        return tensor
    order = [*range(1, dim + 1), 0, *range(dim + 1, tensor.shape.rank)]
    return tf.transpose(tensor, order)


def _visible(value: Value) -> bool:
    """Whether a value can be used in the current graph: its tensors are of this graph, or of those around it."""
    around = list(_with_those_around(tf.compat.v1.get_default_graph()))
    return all(any(tensor.graph is graph for graph in around) for tensor in value.tensors)


def _with_those_around(graph: Any) -> Iterator[Any]:
    while graph is not None:
        yield graph
        graph = getattr(graph, "outer_graph", None)


def _names_functions(attribute: Any) -> bool:
    return attribute.HasField("func") or bool(attribute.list.func)
