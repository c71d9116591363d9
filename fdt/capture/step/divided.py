"""How a traced step would be divided over synchronous workers, in words."""

import collections
import sys
from collections.abc import Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.framework.func_graph import FuncGraph

from fdt.capture.step.traced_step import TracedStep
from fdt.config import RunConfig
from fdt.division import divide, own_rows
from fdt.division.exchange import Alone
from fdt.division.layout import PARTIAL, WHOLE, Divided, batch_layouts
from fdt.messages import program_pb2
from fdt.relaxation import BATCH_NORM, RANDOM, relaxed

# Of operations that are computed whole, so many kinds are named.
_NAMED = 5


def divided_lines(traced: TracedStep, shapes: Sequence[Sequence[int]], config: RunConfig) -> list[str]:
    """Returns what is divided, what workers exchange in a step, and what all of them compute.

    Args:
        traced: The step.
        shapes: Of the arrays of a batch.
        config: The run's configuration; of at least 2 workers.
    """
    num_workers, given = config.num_workers, relaxed(config.options)
    built = _built(traced, shapes, num_workers, given)
    lines = [
        f"divided over {num_workers} workers: {100 * built.part_divided(num_workers):.0f} % of the arithmetic; exchanged in "
        f"each step: {_exchanged(built)}"
    ]
    if traced.normalisations and BATCH_NORM not in given:
        own = _built(traced, shapes, num_workers, given | {BATCH_NORM})
        if len(own.exchanged) < len(built.exchanged):
            lines.append(f"BatchNormalization is exact; with --relax {BATCH_NORM} it would be {_exchanged(own)}")
    if built.numbers_drawn:
        lines.append(
            f"every worker draws all of a step's {built.numbers_drawn:,} random numbers, as one machine would; with --relax "
            f"{RANDOM} those of its own rows"
        )
    if built.computed_whole:
        places = collections.Counter(_place(op) for op in built.computed_whole)
        shown = ", ".join(f"{place}{f' ({count} times)' * (count > 1)}" for place, count in places.most_common(_NAMED))
        more = f" and {len(places) - _NAMED} more" if len(places) > _NAMED else ""
        lines.append(f"computed whole by every worker, which is exact and takes time: {shown}{more}")
    return lines


def layer_exchanges(traced: TracedStep, shapes: Sequence[Sequence[int]], config: RunConfig) -> tuple[int, int]:
    """Returns what two workers exchange in a step beside gradients: how often they wait for each other, and bytes.

    Args:
        traced: The step.
        shapes: Of the arrays of a batch.
        config: The run's configuration.
    """
    built = _built(traced, shapes, 2, relaxed(config.options))
    found = [exchanged for exchanged in built.exchanged if not exchanged.is_gradient]
    return len({exchanged.collective for exchanged in found}), sum(exchanged.num_bytes for exchanged in found)


def _exchanged(built: divide.Built) -> str:
    num_bytes = sum(exchanged.num_bytes for exchanged in built.exchanged)
    return f"{len(built.exchanged)} values, {num_bytes / 1e6:.2f} MB"


def _built(
    traced: TracedStep, shapes: Sequence[Sequence[int]], num_workers: int, relaxes: frozenset[str]
) -> divide.Built:
    graph, exchange = traced.graph, Alone(num_workers)
    layouts = batch_layouts(shapes, 1 if traced.program.one_row else 0, num_workers)
    in_part = {
        id(variable.handle)
        for variable, described in zip(traced.variables, traced.program.variables, strict=True)
        if described.role == program_pb2.ROLE_METRIC and (variable.dtype.is_floating or variable.dtype.is_integer)
    }
    moving = own_rows.moved(graph, relaxes)
    in_part |= {id(given) for given, inner in graph.captures if inner.name in moving}
    inputs = [
        divide.Input(WHOLE, tf.TensorShape([])),
        *(divide.Input(layout, tf.TensorShape(shape), True) for layout, shape in zip(layouts, shapes, strict=True)),
        *(divide.Input(PARTIAL if id(given) in in_part else WHOLE, inner.shape) for given, inner in graph.captures),
    ]
    planned = divide.plan(graph, exchange, inputs, relaxed=relaxes)
    with FuncGraph("account").as_default():
        feeds = [
            _feed(tensor, each, layout)
            for tensor, each, layout in zip(graph.inputs, inputs, planned.layouts, strict=True)
        ]
        return divide.build(graph, exchange, planned, feeds, relaxed=relaxes)


def _feed(tensor: Any, given: divide.Input, layout: Any) -> divide.Feed:
    shape = given.shape
    if isinstance(layout, Divided):
        shape = tf.TensorShape([*shape[: layout.dim], layout.sizes[0], *shape[layout.dim + 1 :]])
    own, whole = (divide.stand_in(tensor, each) for each in (shape, given.shape))
    return divide.Feed([own], (lambda: whole) if given.is_readable else None)


def _place(op: Any) -> str:
    """Returns the kind of an operation, and the line of the script that made it."""
    script = getattr(sys.modules.get("__main__"), "__file__", None)
    lines = [frame.lineno for frame in op.traceback or () if frame.filename == script]
    return f"{op.type} (line {lines[-1]})" if lines else str(op.type)
