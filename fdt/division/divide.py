"""Divides a step."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.framework import func_graph
from tensorflow.python.ops import handle_data_util

from fdt.division.exchange import Exchange, Exchanged
from fdt.division.layout import WHOLE, Divided, Layout
from fdt.division.table import RULES
from fdt.division.value import Value
from fdt.division.walker import MustBeWholeError, Walk

# Each time one list or variable more is whole; scripts have a handful of them.
_MAX_TRIES = 64


@dataclasses.dataclass(frozen=True)
class Plan:
    """What was found out about a step before it is built.

    Attributes:
        layouts: Of its inputs.
        whole: Lists that must be whole.
        wanted: Partial values that are exchanged where they are made.
        loops: See `Walk.loops`.
    """

    layouts: tuple[Layout, ...]
    whole: frozenset[str]
    wanted: frozenset[str]
    loops: dict[Any, Any]


@dataclasses.dataclass(frozen=True)
class Built:
    """A divided step.

    Attributes:
        outputs: Of the step.
        exchanged: What its workers exchange.
        computed_whole: How many operations of each type got divided inputs whole, for want of a rule.
    """

    outputs: list[Value]
    exchanged: list[Exchanged]
    computed_whole: dict[str, int]


def plan(graph: Any, exchange: Exchange, layouts: Sequence[Layout]) -> Plan:
    """Looks at a step: builds it as often as it takes, and throws that away.

    Args:
        graph: FuncGraph of the step, traced for the whole batch; its inputs are its arguments, captured ones last.
        exchange: See `Exchange`.
        layouts: How each input comes in; a variable's handle that is partial is held in part.
    """
    layouts = list(layouts)
    whole: set[str] = set()
    names = [placeholder.op.name for placeholder in graph.inputs]
    for _ in range(_MAX_TRIES):
        walk = Walk(exchange, RULES, whole)
        walk.planning = True
        trial = func_graph.FuncGraph("plan")
        try:
            with trial.as_default():
                arguments = [
                    _stand_in(exchange, tensor, layout) for tensor, layout in zip(graph.inputs, layouts, strict=True)
                ]
                walk.function(graph, arguments)
        except MustBeWholeError as error:
            if error.source in names:
                layouts[names.index(error.source)] = WHOLE
            elif error.source in whole:
                raise
            whole.add(error.source)
            continue
        return Plan(tuple(layouts), frozenset(whole), frozenset(walk.made_whole), walk.loops)
    raise AssertionError(f"After {_MAX_TRIES} tries there are still lists that cannot be divided: {sorted(whole)}")


def build(graph: Any, exchange: Exchange, planned: Plan, inputs: Sequence[Sequence[tf.Tensor]]) -> Built:
    """Builds a divided step in the current graph.

    Args:
        graph: See `plan`.
        exchange: See `plan`.
        planned: By `plan`.
        inputs: For each input of the graph, in its layout, one tensor for each worker in `exchange.ranks`.
    """
    walk = Walk(exchange, RULES, planned.whole, planned.wanted)
    walk.loops = dict(planned.loops)
    arguments = [
        Value(layout, placeholder.op.name, tuple(tensors))
        for placeholder, layout, tensors in zip(graph.inputs, planned.layouts, inputs, strict=True)
    ]
    return Built(walk.function(graph, arguments), walk.exchanged, dict(walk.computed_whole))


def whole_outputs(exchange: Exchange, built: Built) -> list[tf.Tensor]:
    """Returns the outputs of a divided step whole, as the script's step gives them."""
    walk = Walk(exchange, RULES)
    walk.after(len(built.exchanged))
    return [walk.tensors(walk.converted(value, WHOLE, "the step's outputs"))[0] for value in built.outputs]


def _stand_in(exchange: Exchange, tensor: Any, layout: Layout) -> Value:
    def one(rank: int) -> Any:
        shape = tensor.shape
        if isinstance(layout, Divided):
            shape = tf.TensorShape([*shape[: layout.dim], layout.sizes[rank], *shape[layout.dim + 1 :]])
        return tf.compat.v1.placeholder(tensor.dtype, shape)

    made = [one(rank) for rank in exchange.ranks]
    if layout == WHOLE:
        made = made[:1] * len(made)
    for stand_in in made:
        if tensor.dtype == tf.resource:
            handle_data_util.copy_handle_data(tensor, stand_in)
    return Value(layout, tensor.op.name, tuple(made))
