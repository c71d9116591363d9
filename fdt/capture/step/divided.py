"""Describes in words how a traced step would be divided over synchronous workers."""

import collections
import dataclasses
import sys
from collections.abc import Collection, Sequence
from typing import Any

import tensorflow as tf

from fdt.base.config import RunConfig
from fdt.base.held import HeldAs, held_as, memory_bytes
from fdt.base.relaxation import BATCH_NORM, RANDOM, relaxed
from fdt.capture.step.traced_step import TracedStep
from fdt.division import divide, own_rows, variable_layouts
from fdt.division.exchange import Alone
from fdt.program.graphs import described
from fdt.program.layout import PARTIAL, WHOLE, Divided, batch_layouts
from fdt.program.size import Conditions, Dim, of_inputs
from fdt.v1 import program_pb2

# At most so many kinds of operations that are computed whole are named.
_NAMED = 5


def divided_lines(traced: TracedStep, shapes: Sequence[Sequence[int]], config: RunConfig) -> list[str]:
    """Returns what is divided, what workers exchange in a step, and what all of them compute.

    Args:
        traced: The step.
        shapes: Shapes of a batch's arrays.
        config: The run's configuration, with at least 2 workers.
    """
    num_workers, given = config.num_workers, relaxed(config.options)
    built = _built(traced, shapes, config)
    lines = [
        f"divided over {num_workers} workers: {100 * built.part_divided:.0f} % of the arithmetic; exchanged "
        f"in each step: {_exchanged(built)}"
    ]
    if traced.normalisations and BATCH_NORM not in given:
        own = _built(traced, shapes, config, given | {BATCH_NORM})
        if len(own.walk.exchanged) < len(built.walk.exchanged):
            lines.append(f"BatchNormalization is exact; with --relax {BATCH_NORM} it would be {_exchanged(own)}")
    if built.walk.numbers_drawn:
        lines.append(
            f"every worker draws all of a step's {built.walk.numbers_drawn:,} random numbers, as one machine would; with "
            f"--relax {RANDOM} those of its own rows"
        )
    if built.walk.computed_whole:
        shown = _places(traced.graph, built.walk.computed_whole)
        lines.append(f"computed whole by every worker, which is exact and takes time: {shown}")
    differing = _differing(traced)
    if differing:
        fixing = _built(traced, shapes, config, differing=differing).walk.fixing
        each = f"anew for each, since the number is needed by: {_places(traced.graph, fixing)}"
        lines.append(f"a batch of other sizes is divided {each if fixing else 'once more, for all sizes that come'}")
    return lines


def _differing(traced: TracedStep) -> set[tuple[int, int]]:
    """Returns the inputs and dimensions that are not known, if not only the number of rows is."""
    rows = 1 if traced.program.one_row else 0
    shapes = [described.shape for described in traced.program.batch]
    found = {(place, dim) for place, shape in enumerate(shapes) for dim, size in enumerate(shape) if size < 0}
    return found if any(dim > rows for _, dim in found) else set()


def _places(graph: Any, operations: Sequence[Any]) -> str:
    places = collections.Counter(_place(graph, op) for op in operations)
    shown = ", ".join(f"{place}{f' ({count} times)' * (count > 1)}" for place, count in places.most_common(_NAMED))
    return shown + (f" and {len(places) - _NAMED} more" if len(places) > _NAMED else "")


def layer_exchanges(traced: TracedStep, shapes: Sequence[Sequence[int]], config: RunConfig) -> tuple[int, int]:
    """Returns the number and the bytes of the collectives that two workers run in a step, those of gradients excluded.

    Args:
        traced: The step.
        shapes: Shapes of a batch's arrays.
        config: The run's configuration.
    """
    built = _built(traced, shapes, dataclasses.replace(config, num_workers=2))
    found = [exchanged for exchanged in built.walk.exchanged if not exchanged.is_gradient]
    return len({exchanged.collective for exchanged in found}), sum(exchanged.num_bytes for exchanged in found)


def _exchanged(built: divide.DividedStep) -> str:
    num_bytes = sum(exchanged.num_bytes for exchanged in built.walk.exchanged)
    return f"{len(built.walk.exchanged)} values, {num_bytes / 1e6:.2f} MB"


def divided_variables(config: RunConfig, traced: TracedStep) -> dict[int, Divided]:
    """Returns the layouts of the variables that synchronous workers hold in parts, by their places in the program.

    Raises:
        UnsupportedError: They do not fit into the workers' memory.
    """
    held = HeldAs.WHOLE if BATCH_NORM in relaxed(config.options) else held_as(config.options)

    def handles() -> dict[int, tf.Tensor]:
        names = traced.program.step.variables
        return {i: traced.graph.get_tensor_by_name(f"{name}:0") for i, name in enumerate(names)}

    most = memory_bytes(config.options)
    return variable_layouts.chosen(traced.program, config.num_workers, held, handles, most)


def _built(
    traced: TracedStep,
    shapes: Sequence[Sequence[int]],
    config: RunConfig,
    relaxes: frozenset[str] | None = None,
    differing: Collection[tuple[int, int]] = (),
) -> divide.DividedStep:
    graph, num_workers, program = traced.graph, config.num_workers, traced.program
    relaxes = relaxed(config.options) if relaxes is None else relaxes
    conditions = Conditions() if differing else None
    sizes: Sequence[Sequence[Dim]] = shapes if conditions is None else of_inputs(shapes, differing, conditions)
    layouts = batch_layouts(sizes, 1 if traced.program.one_row else 0, num_workers)
    in_part = {
        id(variable.handle)
        for variable, described in zip(traced.variables, traced.program.variables, strict=True)
        if described.role == program_pb2.ROLE_METRIC and (variable.dtype.is_floating or variable.dtype.is_integer)
    }
    moving = own_rows.moved(graph, relaxes)
    in_part |= {id(given) for given, inner in graph.captures if inner.name in moving}
    held = {program.step.variables[i]: layout for i, layout in divided_variables(config, traced).items()}
    inputs = [
        divide.Input(WHOLE, ()),
        *(divide.Input(layout, tuple(shape), is_readable=True) for layout, shape in zip(layouts, sizes, strict=True)),
        *(
            divide.Input(PARTIAL if id(given) in in_part else held.get(inner.op.name, WHOLE), tuple(inner.shape), inner)
            for given, inner in graph.captures
        ),
    ]
    places = {tensor.op.name: number for number, tensor in enumerate(graph.inputs)}
    gradients = {
        hole.function: [divide.Gradient(places[program.step.variables[g.variable]], g.sparse) for g in hole.gradients]
        for hole in program.holes
        if hole.kind == program_pb2.Hole.KIND_GRADIENTS
    }
    return divide.divide(described(graph), Alone(num_workers), inputs, gradients, relaxes, conditions, gradients)


def _place(graph: Any, op: Any) -> str:
    """Returns the kind of an operation of a step's graph, and the line of the script that made it."""
    script = getattr(sys.modules.get("__main__"), "__file__", None)
    made = [each for each in graph.get_operations() if (each.name, each.type) == (op.name, op.type)]
    lines = [frame.lineno for each in made for frame in each.traceback or () if frame.filename == script]
    return f"{op.type} (line {lines[-1]})" if lines else str(op.type)
