"""Divides a step."""

import dataclasses
from collections.abc import Callable, Collection, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.framework import func_graph
from tensorflow.python.ops import handle_data_util

from fdt.division.conversions import MustBeWholeError
from fdt.division.exchange import Exchange, Exchanged
from fdt.division.layout import WHOLE, Divided, Layout
from fdt.division.table import RULES
from fdt.division.value import Value
from fdt.division.walker import Walk

# Each time one list or variable more is whole; scripts have a handful of them.
_MAX_TRIES = 64


@dataclasses.dataclass(frozen=True)
class Input:
    """How an input of a step comes in.

    Attributes:
        layout: What a worker has of it; a variable's handle that is partial is held in part.
        shape: Of the whole tensor.
        is_readable: Whether every worker can read it whole, too.
    """

    layout: Layout
    shape: tf.TensorShape
    is_readable: bool = False


@dataclasses.dataclass(frozen=True)
class Feed:
    """An input of a divided step.

    Attributes:
        parts: One tensor for each worker in `Exchange.ranks`, in the input's layout.
        whole: Reads it whole; None if that takes an exchange.
    """

    parts: Sequence[tf.Tensor]
    whole: Callable[[], tf.Tensor] | None = None


@dataclasses.dataclass(frozen=True)
class Plan:
    """What was found out about a step before it is built.

    Attributes:
        layouts: Of its inputs.
        whole: Lists that must be whole.
        wanted: Partial values that somebody needs whole.
        gradients: See `Walk.gradients`.
        loops: See `Walk.loops`.
    """

    layouts: tuple[Layout, ...]
    whole: frozenset[str]
    wanted: frozenset[str]
    gradients: frozenset[str]
    loops: dict[Any, Any]


@dataclasses.dataclass(frozen=True)
class Built:
    """A divided step.

    Attributes:
        outputs: Of the step, whole.
        exchanged: What its workers exchange.
        computed_whole: Operations of the script's that got divided inputs whole, for want of a rule.
        flops_divided: See `Walk`.
        flops_whole: See `Walk`.
        numbers_drawn: See `Walk`.
    """

    outputs: list[tf.Tensor]
    exchanged: list[Exchanged]
    computed_whole: list[Any]
    flops_divided: int
    flops_whole: int
    numbers_drawn: int

    def part_divided(self, num_workers: int) -> float:
        """Returns the part of the arithmetic (see `flops`) of which each worker does its share; 1 of a step without any."""
        divided = self.flops_divided * num_workers
        return divided / (divided + self.flops_whole) if divided + self.flops_whole else 1.0


def plan(
    graph: Any,
    exchange: Exchange,
    inputs: Sequence[Input],
    marks: Collection[str] = (),
    relaxed: frozenset[str] = frozenset(),
) -> Plan:
    """Looks at a step: builds it as often as it takes, and throws that away.

    Args:
        graph: FuncGraph of the step; its inputs are its arguments, captured ones last.
        exchange: See `Exchange`.
        inputs: How each of them comes in.
        marks: See `Walk`.
        relaxed: See `fdt.relaxation`.
    """
    layouts = [each.layout for each in inputs]
    whole: set[str] = set()
    names = [placeholder.op.name for placeholder in graph.inputs]
    for _ in range(_MAX_TRIES):
        walk = Walk(exchange, RULES, whole, marks=marks, relaxed=relaxed)
        walk.planning = True
        trial = func_graph.FuncGraph("plan")
        try:
            with trial.as_default():
                arguments = [
                    _stand_in(exchange, tensor, given, layout)
                    for tensor, given, layout in zip(graph.inputs, inputs, layouts, strict=True)
                ]
                _outputs(walk, graph, arguments)
        except MustBeWholeError as error:
            if error.source in names:
                layouts[names.index(error.source)] = WHOLE
            elif error.source in whole:
                raise
            whole.add(error.source)
            continue
        return Plan(tuple(layouts), frozenset(whole), frozenset(walk.made_whole), frozenset(walk.gradients), walk.loops)
    raise AssertionError(f"After {_MAX_TRIES} tries there are still lists that cannot be divided: {sorted(whole)}")


def build(
    graph: Any,
    exchange: Exchange,
    planned: Plan,
    feeds: Sequence[Feed],
    marks: Collection[str] = (),
    relaxed: frozenset[str] = frozenset(),
) -> Built:
    """Builds a divided step in the current graph.

    Args:
        graph: See `plan`.
        exchange: See `plan`.
        planned: By `plan`.
        feeds: For each input of the graph.
        marks: See `plan`.
        relaxed: See `plan`.
    """
    walk = Walk(exchange, RULES, planned.whole, planned.wanted, planned.gradients, marks, relaxed)
    walk.loops = dict(planned.loops)
    arguments = [
        Value(layout, placeholder.op.name, tuple(feed.parts), whole=feed.whole)
        for placeholder, layout, feed in zip(graph.inputs, planned.layouts, feeds, strict=True)
    ]
    outputs = _outputs(walk, graph, arguments)
    return Built(outputs, walk.exchanged, walk.computed_whole, walk.flops_divided, walk.flops_whole, walk.numbers_drawn)


def _outputs(walk: Walk, graph: Any, arguments: Sequence[Value]) -> list[tf.Tensor]:
    divided = [value.layout for value in arguments if isinstance(value.layout, Divided)]
    walk.rows = {layout.size: layout.sizes for layout in divided}
    values = walk.function(graph, arguments)
    return [walk.tensors(walk.converted(value, WHOLE, "the step's outputs"))[0] for value in values]


def _stand_in(exchange: Exchange, tensor: Any, given: Input, layout: Layout) -> Value:
    def one(rank: int | None) -> Any:
        shape = given.shape
        if isinstance(layout, Divided) and rank is not None:
            shape = tf.TensorShape([*shape[: layout.dim], layout.sizes[rank], *shape[layout.dim + 1 :]])
        return stand_in(tensor, shape)

    made = [one(None)] * len(exchange.ranks) if layout == WHOLE else [one(rank) for rank in exchange.ranks]
    return Value(layout, tensor.op.name, tuple(made), whole=(lambda: one(None)) if given.is_readable else None)


def stand_in(tensor: Any, shape: tf.TensorShape) -> tf.Tensor:
    """Returns a placeholder like a tensor, of another shape."""
    made = tf.compat.v1.placeholder(tensor.dtype, shape)
    if tensor.dtype == tf.resource:
        handle_data_util.copy_handle_data(tensor, made)
    return made
