"""The exchange of simulated workers: all of them are in one graph."""

from collections.abc import Sequence

import tensorflow as tf

from fdt.division.exchange import Collective, Each, Exchange
from fdt.program.layout import Combine
from fdt.program.size import Dim


class Together(Exchange):
    """All workers in one graph: the exchange is a sum or a concatenation."""

    in_turn = frozenset[str]()
    on_cpu = True
    is_near = False
    bucket_bytes = None

    def __init__(self, num_workers: int) -> None:
        self.num_workers = num_workers
        self.ranks = tuple(range(num_workers))

    def reduce(self, values: Each, combine: Combine, collective: Collective) -> list[tf.Tensor]:
        return [_reduced(tensors, combine) for tensors in values]

    def gather(self, tensors: Sequence[tf.Tensor], sizes: Sequence[Dim | None], collective: Collective) -> tf.Tensor:
        return tf.concat(list(tensors), 0)

    def scatter(self, values: Each, sizes: Sequence[Sequence[int]], collective: Collective) -> list[list[tf.Tensor]]:
        return [tf.split(_reduced(tensors, Combine.SUM), own, 0) for tensors, own in zip(values, sizes, strict=True)]

    def swap(
        self, values: Each, counts: Sequence[tf.Tensor], num_bytes: int, collective: Collective
    ) -> tuple[list[list[tf.Tensor]], list[tf.Tensor]]:
        received = []
        for tensors in values:
            sent = [
                tf.split(tensor, each, 0, num=self.num_workers) for tensor, each in zip(tensors, counts, strict=True)
            ]
            received.append([tf.concat([parts[rank] for parts in sent], 0) for rank in self.ranks])
        return received, [tf.stack([each[rank] for each in counts]) for rank in self.ranks]


def _reduced(tensors: Sequence[tf.Tensor], combine: Combine) -> tf.Tensor:
    if combine is Combine.SUM:
        return tf.add_n(list(tensors)) if tensors[0].dtype != tf.bool else tf.reduce_any(tf.stack(tensors), 0)
    stacked = tf.stack([tf.cast(t, tf.int32) if t.dtype == tf.bool else t for t in tensors])
    reduced = tf.reduce_max(stacked, 0) if combine is Combine.MAX else tf.reduce_min(stacked, 0)
    return tf.cast(reduced, tensors[0].dtype)
