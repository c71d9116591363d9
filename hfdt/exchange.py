"""Fills the holes of a step with Horovod's collectives.

Inside a hole nothing of ours runs but TensorFlow and Horovod operations. What it counts (seconds, bytes) is kept in a
variable found by its shared name, because a library function cannot capture one.
"""

from collections.abc import Callable, Sequence

import horovod.tensorflow as hvd
import numpy as np
import tensorflow as tf

from protos import program_pb2

_METER = "fdt_exchange_meter"
_SECONDS, _BYTES = 0, 1


class Meter:
    """Seconds spent in exchanges and bytes handed to them, counted in the graph. One to a process."""

    def __init__(self) -> None:
        tf.raw_ops.AssignVariableOp(resource=_meter(), value=tf.zeros([2], tf.float64))

    def read(self) -> tuple[float, int]:
        """Returns seconds and bytes so far."""
        seconds, num_bytes = tf.raw_ops.ReadVariableOp(resource=_meter(), dtype=tf.float64).numpy()
        return float(seconds), int(num_bytes)


def fill(position: int, hole: program_pb2.Hole, rounded: bool = False) -> Callable[..., Sequence[tf.Tensor]] | None:
    """Returns what fills a hole: (share, *tensors) -> tensors of the same types; see `fdt.program.Filler`.

    Gradients are weighted by the rank's share and added up; sparse ones are put one after the other in rank order, which
    is the order of the samples. A share of 0 contributes zeros, or no rows, whatever the tensors hold. With one rank the
    step is left as it is, and the learning rate always.

    Args:
        position: Of the hole in its program.
        hole: What is to be filled.
        rounded: Whether gradients travel as 16-bit floats.
    """
    if hvd.size() == 1 or hole.kind == program_pb2.Hole.KIND_RATE:
        return None
    if hole.kind == program_pb2.Hole.KIND_SUM:
        return _sum(f"fdt_sum_{position}")
    if hole.kind == program_pb2.Hole.KIND_LARGEST:
        return _largest(f"fdt_largest_{position}")
    if hole.kind == program_pb2.Hole.KIND_ROWS:
        return _rows(f"fdt_rows_{position}")
    return _gradients(f"fdt_gradients_{position}", [g.sparse for g in hole.gradients], hole.weighted, rounded)


def _sum(name: str) -> Callable[..., Sequence[tf.Tensor]]:
    def body(share: tf.Tensor, tensor: tf.Tensor) -> list[tf.Tensor]:
        mine = tf.where(share > 0, tensor, tf.zeros_like(tensor))
        return [hvd.mpi_ops._allreduce(mine, name=name, op=hvd.Sum, ignore_name_scope=True)]

    return body


def _largest(name: str) -> Callable[..., Sequence[tf.Tensor]]:
    def body(share: tf.Tensor, tensor: tf.Tensor) -> list[tf.Tensor]:
        mine = tf.where(share > 0, tensor, tf.fill(tf.shape(tensor), tensor.dtype.min))
        return [tf.reduce_max(hvd.allgather(mine[None], name=name, ignore_name_scope=True), 0)]

    return body


def _rows(name: str) -> Callable[..., Sequence[tf.Tensor]]:
    def body(share: tf.Tensor, tensor: tf.Tensor) -> list[tf.Tensor]:
        mine = tf.cond(share > 0, lambda: tensor, lambda: tensor[:0])
        sizes = hvd.allgather(tf.shape(mine)[:1], name=f"{name}_sizes", ignore_name_scope=True)
        rows = hvd.allgather(mine, name=name, ignore_name_scope=True)
        return [rows, tf.reduce_sum(sizes[: hvd.rank()])]

    return body


def _gradients(name: str, sparse: Sequence[bool], weighted: bool, rounded: bool) -> Callable[..., Sequence[tf.Tensor]]:
    def body(share: tf.Tensor, *tensors: tf.Tensor) -> list[tf.Tensor]:
        mine = _contribution(share, tensors, sparse, weighted)
        if rounded:
            mine = [tf.cast(t, tf.float16) if t.dtype in (tf.float32, tf.float64) else t for t in mine]
        with tf.control_dependencies(mine):
            started = tf.timestamp()
        with tf.control_dependencies([started]):
            exchanged = _exchange(name, [tf.identity(t) for t in mine], sparse)
        with tf.control_dependencies(exchanged):
            seconds = tf.timestamp() - started
            count = tf.raw_ops.AssignAddVariableOp(resource=_meter(), value=tf.stack([seconds, _num_bytes(mine)]))
        with tf.control_dependencies([count]):
            return [tf.identity(tf.cast(t, given.dtype)) for t, given in zip(exchanged, tensors, strict=True)]

    return body


def _contribution(
    share: tf.Tensor, tensors: Sequence[tf.Tensor], sparse: Sequence[bool], weighted: bool
) -> list[tf.Tensor]:
    rows = [is_rows for is_sparse in sparse for is_rows in ([True, True] if is_sparse else [False])]

    def something() -> list[tf.Tensor]:
        as_it_is = [weighted or tensor.dtype.is_integer for tensor in tensors]
        return [t if same else t * tf.cast(share, t.dtype) for t, same in zip(tensors, as_it_is, strict=True)]

    def nothing() -> list[tf.Tensor]:
        return [t[:0] if is_rows else tf.zeros_like(t) for t, is_rows in zip(tensors, rows, strict=True)]

    # A branch, not tf.where: gradients that come weighted are then passed on without being read.
    return list(tf.cond(share > 0, something, nothing))


def _exchange(name: str, tensors: Sequence[tf.Tensor], sparse: Sequence[bool]) -> list[tf.Tensor]:
    flat, dense, rows = iter(tensors), [], []
    for is_sparse in sparse:
        rows.append((next(flat), next(flat)) if is_sparse else None)
        if not is_sparse:
            dense.append(next(flat))
    summed = iter(_grouped_sum(name, dense))
    exchanged = []
    for i, pair in enumerate(rows):
        if pair is None:
            exchanged.append(next(summed))
        else:
            values, indices = pair
            exchanged.append(hvd.allgather(values, name=f"{name}_values_{i}", ignore_name_scope=True))
            exchanged.append(hvd.allgather(indices, name=f"{name}_indices_{i}", ignore_name_scope=True))
    return exchanged


def _grouped_sum(name: str, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """Adds up tensors over the ranks; those of one type go together."""
    summed = list(tensors)
    for dtype in dict.fromkeys(t.dtype for t in tensors):
        places = [i for i, tensor in enumerate(tensors) if tensor.dtype == dtype]
        together = hvd.mpi_ops._grouped_allreduce(
            [tensors[i] for i in places], name=f"{name}_{dtype.name}", op=hvd.Sum, ignore_name_scope=True
        )
        for i, tensor in zip(places, together, strict=True):
            summed[i] = tensor
    return summed


def _num_bytes(tensors: Sequence[tf.Tensor]) -> tf.Tensor:
    return tf.add_n([tf.cast(tf.size(t, tf.int64) * t.dtype.size, tf.float64) for t in tensors])


def _meter() -> tf.Tensor:
    with tf.device("/cpu:0"):
        return tf.raw_ops.VarHandleOp(dtype=tf.float64, shape=[2], shared_name=_METER, container="")


def average_of_rows(share: tf.Tensor, variables: Sequence[tf.Variable]) -> None:
    """Has every rank hold the mean of what all have, weighted by their shares of the batch; within a step."""
    mine = [tf.where(share > 0, v * tf.cast(share, v.dtype), tf.zeros_like(v)) for v in variables]
    for variable, value in zip(variables, _grouped_sum("fdt_each_step", mine), strict=True):
        variable.assign(value)


def sum_over_ranks(name: str, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Adds up arrays over the ranks, outside a step; every rank calls it with the same shapes."""
    if hvd.size() == 1 or not arrays:
        return list(arrays)
    return [t.numpy() for t in _grouped_sum(name, [tf.convert_to_tensor(a) for a in arrays])]


def from_first_rank(name: str, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Returns rank 0's arrays on every rank."""
    if hvd.size() == 1:
        return list(arrays)
    pending = [hvd.broadcast(tf.convert_to_tensor(a), 0, name=f"{name}_{i}") for i, a in enumerate(arrays)]
    return [t.numpy() for t in pending]


def gather(name: str, rows: np.ndarray) -> np.ndarray:
    """Returns every rank's rows, one rank's after the other's.

    Args:
        name: Of the exchange.
        rows: uint64 [rows, columns].
    """
    # Horovod has no unsigned 64-bit type; the bits are the same.
    return hvd.allgather(tf.constant(rows.view(np.int64)), name=name).numpy().view(np.uint64)
