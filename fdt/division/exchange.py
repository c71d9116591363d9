"""The interface by which a divided step exchanges values: what a division needs of a runtime."""

import dataclasses
from collections.abc import Sequence
from typing import Protocol

import tensorflow as tf

from fdt.program.layout import Combine


class Exchange(Protocol):
    """Fills the places of a divided step where workers exchange values.

    A graph may hold the part of one worker, as in training, or of all of them; `ranks` says whose. Operations
    of the kinds `in_turn` are run one after the other, in the order of the step. Whether workers compute `on_cpu` says in which
    order products are written.
    """

    num_workers: int
    ranks: tuple[int, ...]
    in_turn: frozenset[str]
    on_cpu: bool

    def reduce(
        self, values: Sequence[Sequence[tf.Tensor]], combine: Combine, name: str, gradients: bool, inside: bool
    ) -> list[tf.Tensor]:
        """Returns the sums (maxima, minima) over all workers of values that are ready together.

        Args:
            values: For each of them the tensors of the workers in `ranks`, all of one shape.
            combine: Which of the three.
            name: The same on all workers, and once in a step.
            gradients: Whether they are gradients, as they come to an optimizer.
            inside: Whether this is within a branch or a loop, where exchanges come in any order.
        """

    def gather(
        self, tensors: Sequence[tf.Tensor], sizes: Sequence[int], name: str, gradients: bool, inside: bool
    ) -> tf.Tensor:
        """Returns the workers' entries along dimension 0, one worker's after the other's.

        Args:
            tensors: Of the workers in `ranks`, [sizes[rank], ...].
            sizes: Of all workers.
            name: The same on all workers, and once in a step.
            gradients: See `reduce`.
            inside: See `reduce`.
        """


@dataclasses.dataclass(frozen=True)
class Exchanged:
    """One exchange of a step, for the report.

    Attributes:
        kind: "sum", "max", "min" or "gather".
        num_bytes: Of the whole tensor; 0 where its shape is not known.
        source: Name of the operation of the script's step whose output is exchanged.
        reader: Name of the operation that needs it.
        collective: Values of the same one are exchanged together.
        is_gradient: Whether it is one, as it comes to an optimizer.
    """

    kind: str
    num_bytes: int
    source: str
    reader: str
    collective: str = ""
    is_gradient: bool = False


class Alone:
    """The first worker, and nobody to exchange with: to see how a step is divided without running it."""

    in_turn: frozenset[str] = frozenset()
    on_cpu = True

    def __init__(self, num_workers: int) -> None:
        self.num_workers = num_workers
        self.ranks: tuple[int, ...] = (0,)

    def reduce(
        self, values: Sequence[Sequence[tf.Tensor]], combine: Combine, name: str, gradients: bool, inside: bool
    ) -> list[tf.Tensor]:
        """See `Exchange.reduce`."""
        return [tf.identity(tensor) for (tensor,) in values]

    def gather(
        self, tensors: Sequence[tf.Tensor], sizes: Sequence[int], name: str, gradients: bool, inside: bool
    ) -> tf.Tensor:
        """See `Exchange.gather`."""
        (mine,) = tensors
        others = tf.concat([[sum(sizes[1:])], tf.shape(mine)[1:]], 0)
        return tf.concat([mine, tf.zeros(others, mine.dtype)], 0)
