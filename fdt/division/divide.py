"""Divides a step: finds layouts in dry runs, then writes the divided function."""

import contextlib
import dataclasses
import functools
import itertools
import weakref
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.core.framework import function_pb2, graph_pb2
from tensorflow.python.eager import context

from fdt.division.conversions import MustBeWholeError, Numbers
from fdt.division.exchange import Exchange
from fdt.division.table import RULES
from fdt.division.walker import Walk
from fdt.program.body import Wire, attribute, named
from fdt.program.graphs import Description, Functions, sized
from fdt.program.layout import WHOLE, Divided, Layout
from fdt.program.size import Conditions, value_of
from fdt.program.value import Shape, Value

# With each try one more list or variable becomes whole; scripts have a handful of them.
_MAX_TRIES = 64
_numbers = itertools.count()


@dataclasses.dataclass(frozen=True)
class Input:
    """The layout and shape of a step's input.

    Attributes:
        layout: What a worker holds of it; for a variable's handle, what it holds of the variable.
        shape: The whole tensor's shape.
        handle: For a resource, its handle tensor, which has the type and shape of its content.
        is_readable: Whether every worker can also read it whole.
    """

    layout: Layout
    shape: Shape
    handle: Any = None
    is_readable: bool = False


@dataclasses.dataclass(frozen=True)
class Gradient:
    """A gradient that the step hands to its optimizer.

    Attributes:
        variable: Number of the step's input that is its variable's handle.
        is_sparse: Whether it comes as rows and their ids.
    """

    variable: int
    is_sparse: bool


@dataclasses.dataclass(frozen=True)
class Feed:
    """An input of a divided step.

    Attributes:
        parts: One tensor for each worker in `Exchange.ranks`, in the input's layout.
        whole: Returns the whole tensor; None if that takes an exchange.
    """

    parts: Sequence[tf.Tensor]
    whole: Callable[[], tf.Tensor] | None = None


class Registered:
    """Functions that are in TensorFlow's context for as long as this object lives."""

    def __init__(self, library: Sequence[Any]) -> None:
        """Registers FunctionDefs."""
        runtime, names = context.context(), []
        for function in library:
            name = function.signature.name
            if not runtime.has_function(name):
                runtime.add_function_def(function)
                names.append(name)
        weakref.finalize(self, _forget, names).atexit = False


@dataclasses.dataclass(frozen=True)
class DividedStep:
    """A divided step.

    Attributes:
        layouts: The inputs' layouts; WHOLE for those that cannot be divided.
        walk: The walk that wrote it, with exchanges and operations computed whole.
        sources: For each argument of the function, the numbers of its input and of its worker; None for a whole input.
        types: The outputs' types.
        library: Its FunctionDefs; the last is the step itself.
        registered: What keeps them registered once it has been called: it must live as long as the calling graph.
    """

    layouts: tuple[Layout, ...]
    walk: Walk
    sources: list[tuple[int, int | None]]
    types: list[tf.DType]
    library: list[Any]
    registered: list[Registered] = dataclasses.field(default_factory=list)

    @property
    def numbers(self) -> Numbers:
        """The numbers that sizes have for a batch."""
        assert self.walk.numbers is not None
        return self.walk.numbers

    @property
    def part_divided(self) -> float:
        """The fraction of the arithmetic (see `flops`) that is divided between workers; 1 for a step without arithmetic."""
        both = self.walk.flops_divided + self.walk.flops_whole
        return self.walk.flops_divided / both if both else 1.0

    def __call__(self, feeds: Sequence[Feed]) -> list[tf.Tensor]:
        """Calls the step in the current graph; returns its whole outputs.

        Args:
            feeds: For each input of the step; behind them `numbers`, if it was divided for batches of several sizes.
        """
        given = []
        for number, place in self.sources:
            whole = feeds[number].whole
            if place is None:
                assert whole is not None
            given.append(whole() if place is None and whole is not None else feeds[number].parts[place or 0])
        graph = graph_pb2.GraphDef(library=function_pb2.FunctionDefLibrary(function=self.library))
        if not self.registered:
            self.registered.append(Registered(self.library))
        call = graph.node.add(name="step", op="StatefulPartitionedCall")
        call.attr["f"].CopyFrom(named(self.library[-1].signature.name))
        call.attr["Tin"].CopyFrom(attribute([tensor.dtype for tensor in given]))
        call.attr["Tout"].CopyFrom(attribute(self.types))
        inputs = {}
        for i, tensor in enumerate(given):
            node = graph.node.add(name=f"given_{i}", op="Placeholder")
            node.attr["dtype"].CopyFrom(attribute(tensor.dtype))
            call.input.append(node.name)
            inputs[f"{node.name}:0"] = tensor
        outputs = [f"step:{i}" for i in range(len(self.types))]
        made: list[tf.Tensor] = tf.graph_util.import_graph_def(graph, inputs, outputs, name="divided")
        return made


def _forget(names: Sequence[str]) -> None:
    for name in names:
        context.context().remove_function(name)


def divide(
    description: Description,
    exchange: Exchange,
    inputs: Sequence[Input],
    marks: Collection[str] = (),
    relaxed: frozenset[str] = frozenset(),
    conditions: Conditions | None = None,
    gradients: Mapping[str, Sequence[Gradient]] | None = None,
) -> DividedStep:
    """Divides a step: walks it without writing until layouts settle, then writes it.

    Args:
        description: The step.
        exchange: See `Exchange`.
        inputs: The layout and shape of each of its inputs.
        marks: See `Walk`.
        relaxed: See `fdt.base.relaxation`.
        conditions: See `Walk`.
        gradients: For the functions in `marks` the gradients that they receive.
    """
    owners = functools.partial(_owners, gradients or {})
    with tf.init_scope():
        shapes = [each.shape and tuple(map(value_of, each.shape)) for each in inputs]
        graph = sized(description, shapes, [each.handle for each in inputs])
        layouts = [each.layout for each in inputs]
        whole: set[str] = set()
        functions = Functions(description)
        names = [placeholder.op.name for placeholder in graph.inputs]
        for _ in range(_MAX_TRIES):
            seen = Walk(exchange, RULES, functions, True, whole, marks=marks, relaxed=relaxed, conditions=conditions)
            seen.owners = owners(layouts)
            try:
                # The walk that writes asks all that it follows.
                with conditions.trial() if conditions is not None else contextlib.nullcontext():
                    _walked(seen, graph, inputs, layouts)
                break
            except MustBeWholeError as error:
                if error.source in names:
                    layouts[names.index(error.source)] = WHOLE
                elif error.source in whole:
                    raise
                whole.add(error.source)
        else:
            raise AssertionError(f"After {_MAX_TRIES} tries there are lists that cannot be divided: {sorted(whole)}")
        walk = Walk(
            exchange, RULES, functions, False, whole, seen.made_whole, seen.gradients, marks, relaxed, conditions
        )
        walk.loops, walk.owners = dict(seen.loops), owners(layouts)
        sources, outputs = _walked(walk, graph, inputs, layouts)
    function = walk.body.finished(f"fdt_divided_{next(_numbers)}", outputs, [])
    types = [tensor.dtype for tensor in graph.outputs]
    return DividedStep(tuple(layouts), walk, sources, types, [*walk.library.values(), function])


def _owners(
    gradients: Mapping[str, Sequence[Gradient]], layouts: Sequence[Layout]
) -> dict[str, list[tuple[Layout, bool]]]:
    return {name: [(layouts[g.variable], g.is_sparse) for g in given] for name, given in gradients.items()}


def _walked(walk: Walk, graph: Any, inputs: Sequence[Input], layouts: Sequence[Layout]) -> tuple[Any, list[Any]]:
    """Walks a step; returns the sources of its function's arguments, and its outputs."""
    walk.rows = {layout.size: layout.sizes for layout in layouts if isinstance(layout, Divided) and not layout.of_state}
    sources: list[tuple[int, int | None]] = []
    step, ranks = walk.body, walk.exchange.ranks

    def argument(number: int, place: int | None) -> Wire:
        sources.append((number, place))
        return step.argument(graph.inputs[number].dtype)

    def numbers() -> Wire:
        sources.append((len(inputs), 0))
        return step.argument(tf.int64)

    walk.numbers = Numbers(numbers)

    arguments = []
    for number, (placeholder, given, layout) in enumerate(zip(graph.inputs, inputs, layouts, strict=True)):
        places = [0] if layout == WHOLE else range(len(ranks))
        parts = tuple(argument(number, place) for place in places) * (len(ranks) if layout == WHOLE else 1)
        handle = placeholder if placeholder.dtype == tf.resource else None
        value = Value(layout, placeholder.op.name, given.shape, placeholder.dtype, parts, handle=handle)
        if given.is_readable:
            value.whole = functools.cache(functools.partial(argument, number, None))
        arguments.append(value)
    values = walk.function(graph, arguments)
    return sources, [walk.tensors(walk.converted(value, WHOLE, "the step's outputs"))[0] for value in values]
