"""Defines the interface that a runtime offers to a divided step for exchanging values."""

import dataclasses
from collections.abc import Sequence
from typing import Protocol

import tensorflow as tf

from fdt.program.layout import Combine
from fdt.program.size import Dim, value_of

# For each value the tensors of the workers in `Exchange.ranks`.
Each = Sequence[Sequence[tf.Tensor]]


@dataclasses.dataclass(frozen=True)
class Collective:
    """One exchange of a step, of values that are ready together.

    Attributes:
        name: Unique in the step, and the same on all workers.
        gradients: Whether the values belong to gradients given to an optimizer.
        inside: Whether it is within a branch or a loop, where the order of exchanges is not fixed.
        behind: Whether other gradients are computed meanwhile, so that the step does not wait for it.
    """

    name: str
    gradients: bool = False
    inside: bool = False
    behind: bool = False


class Exchange(Protocol):
    """Adds the operations by which workers exchange values to a divided step.

    A graph may hold the part of one worker, as in training, or of all workers; `ranks` lists them. Operations of the kinds
    `in_turn` run one after the other, in the order of the step. `on_cpu` decides in which order matrix products are computed;
    `is_near`, whether an exchange takes less time than a pass over a layer's values. Gradients are exchanged in buckets of
    `bucket_bytes`, each once it is computed; all together, once the last is, where that is None.
    """

    num_workers: int
    ranks: tuple[int, ...]
    in_turn: frozenset[str]
    on_cpu: bool
    is_near: bool
    bucket_bytes: int | None

    def reduce(self, values: Each, combine: Combine, collective: Collective) -> list[tf.Tensor]:
        """Returns the sums (maxima, minima) over all workers.

        Args:
            values: For each value the tensors of the workers in `ranks`, all of one shape.
            combine: Sum, maximum or minimum.
            collective: Which exchange it is.
        """

    def gather(self, tensors: Sequence[tf.Tensor], sizes: Sequence[Dim | None], collective: Collective) -> tf.Tensor:
        """Returns all workers' entries, concatenated along dimension 0 in the order of workers.

        Args:
            tensors: One for each worker in `ranks`, [sizes[rank], ...].
            sizes: How many entries each of all workers has; None where only the worker knows.
            collective: Which exchange it is.
        """

    def scatter(self, values: Each, sizes: Sequence[Sequence[int]], collective: Collective) -> list[list[tf.Tensor]]:
        """Returns each worker's part of the sums over all workers.

        Args:
            values: For each value the tensors of the workers in `ranks`, all of one shape and of one type.
            sizes: For each value, of how many entries along dimension 0 each of all workers gets the sum.
            collective: Which exchange it is.

        Returns:
            For each value the tensors of the workers in `ranks`, [sizes[rank], ...].
        """

    def swap(
        self, values: Each, counts: Sequence[tf.Tensor], num_bytes: int, collective: Collective
    ) -> tuple[list[list[tf.Tensor]], list[tf.Tensor]]:
        """Sends entries along dimension 0 from each worker to each.

        Args:
            values: For each value the tensors of the workers in `ranks`; first come the entries for worker 0.
            counts: For each of these workers, how many entries of every value go to each of all workers; int32 [workers].
            num_bytes: All workers together send at most so many, for the batch with which the step is divided; 0 if that is not
                known.
            collective: Which exchange it is.

        Returns:
            For each value what the workers in `ranks` get, in the order of workers; and for each worker how many entries come
            from each; int32 [workers].
        """


@dataclasses.dataclass(frozen=True)
class Exchanged:
    """One exchange of a step, for the report.

    Attributes:
        kind: "sum", "max", "min", "gather", "scatter" or "rows".
        num_bytes: Bytes of the whole tensor; 0 if its shape is not known.
        source: Name of the operation of the script's step whose output is exchanged.
        reader: Name of the operation that needs it.
        collective: Equal for values that are exchanged together.
        is_gradient: Whether it is a gradient given to an optimizer.
    """

    kind: str
    num_bytes: int
    source: str
    reader: str
    collective: str = ""
    is_gradient: bool = False


class Alone(Exchange):
    """The first worker without others to exchange with, to see how a step is divided without running it."""

    in_turn = frozenset[str]()
    on_cpu = True
    is_near = False
    bucket_bytes = None

    def __init__(self, num_workers: int) -> None:
        self.num_workers = num_workers
        self.ranks: tuple[int, ...] = (0,)

    def reduce(self, values: Each, combine: Combine, collective: Collective) -> list[tf.Tensor]:
        return [tf.identity(tensor) for (tensor,) in values]

    def gather(self, tensors: Sequence[tf.Tensor], sizes: Sequence[Dim | None], collective: Collective) -> tf.Tensor:
        (mine,) = tensors
        others = tf.concat([[sum(value_of(size or 0) for size in sizes[1:])], tf.shape(mine)[1:]], 0)
        return tf.concat([mine, tf.zeros(others, mine.dtype)], 0)

    def scatter(self, values: Each, sizes: Sequence[Sequence[int]], collective: Collective) -> list[list[tf.Tensor]]:
        return [[tensor[: own[0]]] for (tensor,), own in zip(values, sizes, strict=True)]

    def swap(
        self, values: Each, counts: Sequence[tf.Tensor], num_bytes: int, collective: Collective
    ) -> tuple[list[list[tf.Tensor]], list[tf.Tensor]]:
        return [[tf.identity(t) for t in tensors] for tensors in values], [tf.identity(each) for each in counts]
