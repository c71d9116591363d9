"""Moves values between whole variables and the parts that ranks hold."""

from collections.abc import Mapping, Sequence

import numpy as np
import tensorflow as tf
from tensorflow.python.ops import handle_data_util

from fdt.base.held import HeldAs
from fdt.base.native import optional
from fdt.division import memory, variable_layouts
from fdt.program.graphs import sized
from fdt.program.layout import Divided
from fdt.program.packing import joined
from fdt.program.step_program import LoadedProgram, shape_of
from fdt.v1 import job_pb2
from hfdt import exchange

# A variable gets so many bytes at a time.
_ASSIGNED_BYTES = 32 << 20
_ASSIGNED_TYPES = frozenset(
    "float16 bfloat16 float32 float64 int8 int16 int32 int64 uint8 uint16 uint32 uint64 bool".split()
)


def chosen(loaded: LoadedProgram, num_ranks: int, held: HeldAs, memory_bytes: int | None = None) -> dict[int, Divided]:
    """Returns the layouts of the variables that ranks hold in parts, by their indices; it is the same on all ranks.

    Args:
        loaded: The program, whose variables are not made yet.
        num_ranks: How many ranks the job has.
        held: What the person asked for.
        memory_bytes: What each rank may use of memory; None if that is not known.

    Raises:
        UnsupportedError: It does not fit.
    """

    def of_graph() -> Mapping[int, tf.Tensor]:
        resources, first = handles(loaded), len(loaded.source.step.inputs)
        shapes = [None] * first + [()] * len(resources)
        graph = sized(loaded.description, shapes, [None] * first + resources)
        return dict(enumerate(graph.inputs[first : first + len(loaded.source.variables)]))

    return variable_layouts.chosen(loaded.source, num_ranks, held, of_graph, memory_bytes)


def handles(loaded: LoadedProgram) -> list[tf.Tensor]:
    """Returns, for each resource of a program, a handle that has its type and whole shape."""
    found = []
    with tf.Graph().as_default():
        for i, variable in enumerate(loaded.source.variables):
            if i < len(loaded.variables) and i not in loaded.divided:
                found.append(loaded.variables[i].handle)
                continue
            found.append(tf.compat.v1.placeholder(tf.resource, ()))
            shape, dtype = shape_of(variable.tensor), tf.as_dtype(variable.tensor.dtype)
            handle_data_util.set_handle_data(found[-1], handle_data_util.create_handle_data(shape, dtype))
    return [*found, *(table.handle for table in loaded.tables)]


def span(layout: Divided, rank: int) -> tuple[int, int]:
    """Returns the first of a rank's rows of a variable, and how many they are."""
    ((start, count),) = layout.spans(rank)
    return int(start), int(count)


def assign(variable: tf.Variable, pieces: Sequence[np.ndarray]) -> None:
    """Assigns a value that comes in pieces (see `joined`) to a variable.

    TensorFlow copies what it assigns, so a large value is assigned some rows at a time.
    """
    large = sum(piece.nbytes for piece in pieces) > _ASSIGNED_BYTES and pieces[0].ndim > 0 and _has_rows(variable)
    if not large or (native := optional("fdt.program.update")) is None:
        variable.assign(joined(pieces))
        return
    start = 0
    for piece in pieces:
        step = max(1, _ASSIGNED_BYTES * len(piece) // max(1, piece.nbytes))
        for begin in range(0, len(piece), step):
            rows = tf.constant(piece[begin : begin + step], variable.dtype)
            native.ops.fdt_assign_rows(variable=variable.handle, rows=rows, start=start)
            start += int(rows.shape[0])


def _has_rows(variable: tf.Variable) -> bool:
    """Whether its rows can be assigned where it is."""
    return "CPU" in variable.device and variable.dtype.name in _ASSIGNED_TYPES


def put_together(loaded: LoadedProgram, index: int) -> np.ndarray:
    """Returns the whole value of a variable in parts; every rank calls it."""
    return exchange.put_together(f"fdt_whole_{index}", loaded.variables[index].value())


def account(loaded: LoadedProgram) -> job_pb2.HeldState:
    """Returns how much of a program's variables ranks hold in parts."""
    held = memory.account(loaded.source, loaded.divided)
    return job_pb2.HeldState(
        in_parts=held.variables,
        variables=held.of,
        part_bytes=held.part_bytes,
        all_bytes=held.all_bytes,
        worker_bytes=held.worker_bytes,
    )
