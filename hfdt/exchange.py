"""Exchanges values by Horovod's collectives: within a divided step's graph, and between steps."""

import ctypes
from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf

from fdt.base.native import library, optional
from fdt.division.exchange import Collective, Each, Exchange
from fdt.program.layout import Combine
from fdt.program.size import Dim
from hfdt import background_thread
from hfdt.encoding import decode, encode
from hfdt.horovod import hvd
from hfdt.mesh import Mesh

# What `--wire fp16` rounds.
_ROUNDED = (tf.float32, tf.float64)
# Of gradients that Horovod sums while others are computed. Ranks agree on each bucket, which takes some milliseconds.
_BUCKET_BYTES = 4 << 20


class Meter:
    """Measures the seconds in which steps waited for exchanges, and their bytes (`native/meter.h`). One per process."""

    def __init__(self) -> None:
        # A rank that is alone exchanges nothing, and works without a compiler.
        self._functions = None if (native := optional("hfdt")) is None else native.functions
        if self._functions is not None:
            self._functions.fdt_meter_seconds.restype = ctypes.c_double
            self._functions.fdt_meter_num_bytes.restype = ctypes.c_uint64
            self._functions.fdt_meter_reset()

    def read(self) -> tuple[float, int]:
        """Returns seconds and bytes so far."""
        if self._functions is None:
            return 0.0, 0
        return float(self._functions.fdt_meter_seconds()), int(self._functions.fdt_meter_num_bytes())


class HorovodExchange(Exchange):
    """This rank's part of the exchanges of a divided step.

    Horovod carries large values, and values within branches and loops, whose order may differ between ranks; on GPUs, and if
    they are rounded, gradients of any size. The mesh carries other small values, and large ones where ranks share memory, one
    after the other, since each exchange blocks a thread while it waits for other ranks.
    """

    # All ranks run mesh operations in the step's order.
    in_turn = frozenset({"FdtMeshReduce", "FdtMeshGather", "FdtMeshSwap"})

    def __init__(self, prefix: str, mesh: Mesh, rounded: bool = False) -> None:
        """
        Args:
            prefix: Prefix of the exchanges' names; the same on all ranks.
            mesh: The job's mesh.
            rounded: Whether gradients travel as 16-bit floats.
        """
        self.num_workers: int = hvd.size()
        self.ranks: tuple[int, ...] = (hvd.rank(),)
        self.on_cpu = not tf.config.get_visible_devices("GPU")
        self.is_near = self.on_cpu and mesh.is_shared
        # Ranks that share memory exchange with the cores that compute.
        self.bucket_bytes = None if self.is_near else _BUCKET_BYTES
        self._prefix, self._mesh, self._rounded = prefix, mesh, rounded
        # Whether a step that was divided with it calls Horovod, whose thread then has to be awake.
        self.calls_horovod = False

    def reduce(self, values: Each, combine: Combine, collective: Collective) -> list[tf.Tensor]:
        mine = [tensor for (tensor,) in values]
        if self._may_meet(collective) and self._is_small(mine):
            return self._met(lambda: self._mesh.reduce(mine, combine))
        rounded = [self._as_sent(tensor, collective) for tensor in mine]
        sent = [encode(tensor, combine) for tensor in rounded]
        name = f"{self._prefix}_{collective.name}"
        reduced = self._by_horovod(sent, lambda ready: _grouped(name, ready, combine), collective.behind)
        decoded = [decode(t, given.dtype, combine) for t, given in zip(reduced, rounded, strict=True)]
        return [tf.cast(tensor, given.dtype) for tensor, given in zip(decoded, mine, strict=True)]

    def gather(self, tensors: Sequence[tf.Tensor], sizes: Sequence[Dim | None], collective: Collective) -> tf.Tensor:
        (mine,) = tensors
        if mine.dtype == tf.string:
            return self._gathered_texts(mine, sizes, collective)
        numbers = [size for size in sizes if isinstance(size, int)]
        if self._may_meet(collective) and len(numbers) == len(sizes):
            largest = tf.TensorShape([max(numbers)]).concatenate(mine.shape[1:])
            if self._is_small([mine], [largest]):
                (met,) = self._met(lambda: [self._mesh.gather(mine, sum(numbers))])
                return met
        rounded = self._as_sent(mine, collective)
        (gathered,) = self._by_horovod(
            [encode(rounded)], lambda ready: [hvd.allgather(ready[0], f"{self._prefix}_{collective.name}", True)]
        )
        return tf.cast(decode(gathered, rounded.dtype), mine.dtype)

    def scatter(self, values: Each, sizes: Sequence[Sequence[int]], collective: Collective) -> list[list[tf.Tensor]]:
        """Each rank gets from each its parts of all values in one message, and adds them up in the order of ranks: Gloo's
        own reduce-scatter takes three times as long.
        """
        mine = [tensor for (tensor,) in values]
        rounded = [self._as_sent(tensor, collective) for tensor in mine]
        sent = [encode(tensor, Combine.SUM) for tensor in rounded]
        flat = [_cut_up(tensor, own) for tensor, own in zip(sent, sizes, strict=True)]
        counts = tf.stack([tf.add_n([tf.size(pieces[rank]) for pieces in flat]) for rank in range(self.num_workers)])
        if len(sent) == 1:
            # Its pieces are one after the other already.
            message = tf.reshape(sent[0], [-1])
        else:
            message = tf.concat([pieces[rank] for rank in range(self.num_workers) for pieces in flat], 0)
        num_bytes = self.num_workers * sum((t.shape.num_elements() or 0) * t.dtype.size for t in sent)
        (received,), _ = self._swapped([message], counts, num_bytes, collective)
        wide = tf.cast(received, tf.float32) if received.dtype == tf.float16 else received
        together = tf.reduce_sum(tf.reshape(wide, [self.num_workers, -1]), 0)
        parts, (rank,) = [], self.ranks
        lengths = [tf.size(pieces[rank]) for pieces in flat]
        for part, tensor, given, own in zip(tf.split(together, lengths, num=len(mine)), sent, mine, sizes, strict=True):
            shaped = tf.reshape(part, tf.concat([[own[rank]], tf.shape(tensor)[1:]], 0))
            decoded = decode(tf.cast(shaped, tensor.dtype), given.dtype, Combine.SUM) if wide is received else shaped
            parts.append([tf.cast(decoded, given.dtype)])
        return parts

    def swap(
        self, values: Each, counts: Sequence[tf.Tensor], num_bytes: int, collective: Collective
    ) -> tuple[list[list[tf.Tensor]], list[tf.Tensor]]:
        (own,) = counts
        mine = [tensor for (tensor,) in values]
        rounded = [self._as_sent(tensor, collective) for tensor in mine]
        sent = [encode(tensor) for tensor in rounded]
        received, numbers = self._swapped(sent, own, num_bytes, collective)
        decoded = [decode(t, given.dtype) for t, given in zip(received, rounded, strict=True)]
        return [[tf.cast(tensor, given.dtype)] for tensor, given in zip(decoded, mine, strict=True)], [numbers]

    def _swapped(
        self, tensors: Sequence[tf.Tensor], counts: tf.Tensor, num_bytes: int, collective: Collective
    ) -> tuple[list[tf.Tensor], tf.Tensor]:
        if self._may_meet(collective) and 0 < num_bytes <= self._mesh.swapped_bytes:
            with tf.device("/cpu:0"):
                return self._mesh.swap(tensors, counts)
        with tf.device("/cpu:0"):
            counts = tf.identity(counts)

        def swapped(ready: Sequence[tf.Tensor]) -> list[tf.Tensor]:
            each = [hvd.alltoall(t, counts, f"{self._prefix}_{collective.name}_{i}", True) for i, t in enumerate(ready)]
            return [*(received for received, _ in each), each[0][1]]

        *received, numbers = self._by_horovod(tensors, swapped, collective.behind)
        return received, numbers

    def _by_horovod(
        self, tensors: Sequence[tf.Tensor], exchange: Callable[[list[tf.Tensor]], list[tf.Tensor]], behind: bool = False
    ) -> list[tf.Tensor]:
        """Exchanges tensors when all of them are ready, between the meter's two operations. `behind`: see `Collective`."""
        self.calls_horovod = True
        operations = library("hfdt").ops
        exchanged = exchange(operations.fdt_exchange_begin(values=tensors, behind=behind))
        return list(operations.fdt_exchange_end(values=exchanged, behind=behind))

    def _may_meet(self, collective: Collective) -> bool:
        return not collective.inside and not (collective.gradients and (self._rounded or not self.on_cpu))

    def _is_small(self, tensors: Sequence[tf.Tensor], shapes: Sequence[tf.TensorShape] | None = None) -> bool:
        """Whether the mesh carries values; all ranks decide the same."""
        counts = [shape.num_elements() for shape in shapes or [t.shape for t in tensors]]
        if any(count is None for count in counts):
            return False
        num_bytes = sum(count * tensor.dtype.size for count, tensor in zip(counts, tensors, strict=True))
        return bool(num_bytes <= self._mesh.max_bytes)

    def _met(self, meet: Callable[[], list[tf.Tensor]]) -> list[tf.Tensor]:
        with tf.device("/cpu:0"):
            return meet()

    def _gathered_texts(self, mine: tf.Tensor, sizes: Sequence[Dim | None], collective: Collective) -> tf.Tensor:
        """Gathers strings as integers: each byte plus one, padded with zeros to the longest string."""

        def part(what: str) -> Collective:
            return Collective(f"{collective.name}_{what}", inside=collective.inside)

        lengths = tf.strings.length(mine)
        own_longest = tf.reduce_max(tf.concat([[1], tf.reshape(lengths, [-1])], 0))
        (longest,) = self.reduce([[own_longest]], Combine.MAX, part("longest"))
        known = tf.sequence_mask(lengths, longest)
        numbers = tf.cast(tf.io.decode_raw(mine, tf.uint8, fixed_length=longest), tf.int32) + 1
        gathered = self.gather([tf.where(known, numbers, 0)], sizes, part("texts"))
        symbols = tf.constant([b"", *(bytes([code]) for code in range(256))])
        return tf.strings.reduce_join(tf.gather(symbols, gathered), axis=-1)

    def _as_sent(self, tensor: tf.Tensor, collective: Collective) -> tf.Tensor:
        rounds = collective.gradients and self._rounded and tensor.dtype in _ROUNDED
        return tf.cast(tensor, tf.float16) if rounds else tensor


def _cut_up(tensor: tf.Tensor, sizes: Sequence[int]) -> list[tf.Tensor]:
    """Returns each worker's entries along dimension 0, flat."""
    return [tf.reshape(piece, [-1]) for piece in tf.split(tensor, list(sizes), 0)]


def _grouped(name: str, tensors: Sequence[tf.Tensor], combine: Combine = Combine.SUM) -> list[tf.Tensor]:
    """Reduces tensors over the ranks by sum, maximum or minimum; tensors of the same type share one all-reduce."""
    operation = {Combine.SUM: hvd.Sum, Combine.MAX: hvd.Max, Combine.MIN: hvd.Min}[combine]
    put_together = list(tensors)
    for dtype in dict.fromkeys(t.dtype for t in tensors):
        places = [i for i, tensor in enumerate(tensors) if tensor.dtype == dtype]
        together = hvd._grouped_allreduce(
            [tensors[i] for i in places], name=f"{name}_{dtype.name}", op=operation, ignore_name_scope=True
        )
        for i, tensor in zip(places, together, strict=True):
            put_together[i] = tensor
    return put_together


def _is_alone() -> bool:
    """Whether this rank is the job's only one, for which Horovod is not started."""
    return hvd is None or not hvd.is_initialized() or hvd.size() == 1


def sum_over_ranks(name: str, arrays: Sequence[np.ndarray], mesh: Mesh | None) -> list[np.ndarray]:
    """Adds up arrays over the ranks, outside a step; every rank calls it with the same shapes.

    Args:
        name: The exchange's name.
        arrays: This rank's arrays.
        mesh: Carries what is small; None for a rank that is alone.
    """
    if mesh is None or not arrays:
        return list(arrays)
    with tf.device("/cpu:0"):
        given = [tf.convert_to_tensor(array) for array in arrays]
    if sum(array.nbytes for array in arrays) <= mesh.max_bytes:
        return [tensor.numpy() for tensor in mesh.reduce(given, Combine.SUM, in_step=False)]
    with background_thread.at_work():
        summed = _grouped(name, [encode(tensor, Combine.SUM) for tensor in given])
    return [decode(tensor, like.dtype, Combine.SUM).numpy() for tensor, like in zip(summed, given, strict=True)]


def from_first_rank(name: str, number: int) -> int:
    """Returns rank 0's number on every rank."""
    if _is_alone():
        return number
    with background_thread.at_work():
        return int(hvd.broadcast(tf.constant(number, tf.int64), 0, name=name))


def of_first_rank(name: str, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Returns rank 0's arrays on every rank; every rank calls it with the same shapes."""
    given = [tf.convert_to_tensor(array) for array in arrays]
    with background_thread.at_work():
        sent = [hvd.broadcast(encode(tensor), 0, name=f"{name}_{i}") for i, tensor in enumerate(given)]
    return [decode(tensor, like.dtype).numpy() for tensor, like in zip(sent, given, strict=True)]


def put_together(name: str, part: tf.Tensor) -> np.ndarray:
    """Returns the entries along dimension 0 of all ranks, in the order of ranks; every rank calls it."""
    with background_thread.at_work():
        gathered: np.ndarray = decode(hvd.allgather(encode(part), name=name), part.dtype).numpy()
    return gathered


def gather(name: str, row: np.ndarray, mesh: Mesh) -> np.ndarray:
    """Returns all ranks' rows, uint64 [ranks, columns], in the order of ranks.

    Args:
        name: The exchange's name.
        row: uint64 [columns], as many on all ranks.
        mesh: Carries what is small.
    """
    with tf.device("/cpu:0"):
        # Horovod has no unsigned 64-bit type; the bits are the same.
        given = tf.constant(row.view(np.int64)[None])
    if row.nbytes <= mesh.max_bytes:
        return np.asarray(mesh.gather(given, mesh.num_ranks, in_step=False)).view(np.uint64)
    with background_thread.at_work():
        return np.asarray(hvd.allgather(given, name=name)).view(np.uint64)
