"""What the losses of a step are made of, and what is to be computed so that the workers' parts add up.

A worker computes on its part of the batch, `share` = n_r / n of it. Gradients are added up with these shares as weights,
so everything that enters the loss must be such that the sum over workers of share * loss_r is the loss of one machine:

- a mean over samples is, as it stands; so are regularisation losses, because the shares add up to one;
- a sum over samples is divided by the share;
- a mean over something else (valid entries of a mask, sample weights) is divided by what it should have been divided by,
  the sum over all workers, for which a second kind of hole is opened;
- what is computed from several of these, or from rows that have met, is computed from those of all workers (`aggregates.py`).
"""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf

from fdt.capture.step.aggregates import Aggregate, aggregate
from fdt.capture.step.reductions import Reader, Reduced, reduction
from fdt.capture.step.shares import correction, nonzero, times
from fdt.holes import current_holes

_MEETING = (
    "the step brings rows of a batch together (compares or picks them, or subtracts their mean) before it comes to a layer or "
    "draws numbers: every worker does so with its own rows, which may be another loss than on one machine (fdt verify tells; "
    "--workers 1 or --mode async: the script's)"
)
_OWN_LOSS = (
    "the graph does not tell how a loss follows the rows of a batch: each worker computes it of its own rows, and these are "
    "averaged by numbers of rows, which is right for a mean (fdt verify tells)"
)
_OWN_METRIC = (
    "metric {}: the graph does not tell how it follows the rows of a batch; each worker computes it of its own rows, and "
    "these are averaged"
)


class Losses:
    """The losses of one step while it is traced.

    Attributes:
        divides: Whether several workers share a batch.
        are_picked: Whether one of them comes of rows that were picked by their places, so that the batch cannot be divided.
    """

    def __init__(self, divides: bool, tried: bool):
        """Starts without having seen anything.

        Args:
            divides: Whether several workers share a batch.
            tried: Whether the step is tried on a batch besides, which tells a mean from a sum where the graph does not.
        """
        self.divides, self._tried = divides, tried
        self.are_picked = False
        self._batch: set[str] = set()
        # Names of tensors that were made such that the shares of all workers add up.
        self._means: set[str] = set()
        self._alike: set[str] = set()
        # Said at the start; in order.
        self._own_numbers: dict[str, None] = {}
        self._unsure: dict[str, None] = {}
        # Inside of Keras's own layers: a graph, and the numbers of its operations.
        self._layers: list[tuple[Any, int, int]] = []
        self._metric_depth = 0

    def begin(self, batch: Sequence[tf.Tensor]) -> None:
        """Forgets what it has seen: a trace begins, of a step of these tensors."""
        self._batch = {tensor.op.name for tensor in batch}
        self.are_picked = False
        self._means.clear()
        self._alike.clear()
        self._own_numbers.clear()
        self._unsure.clear()
        self._layers.clear()

    def own_numbers(self) -> list[str]:
        """Returns, in words, which metrics each worker computes of its own rows, though that may not be right."""
        return list(self._own_numbers)

    def unsure(self) -> list[str]:
        """Returns the same of losses, which a trial may tell."""
        return [] if self.are_picked else list(self._unsure)

    def as_mean(self, loss: Any) -> Any:
        """Returns a number for this worker's rows such that the shares of all workers add up to that for the whole batch."""
        holes = current_holes()
        if holes is None or not isinstance(loss, tf.Tensor) or loss.shape.rank != 0:
            return loss
        found = self._aggregate(loss)
        if found is not None:
            whole = found.whole(holes)
            mean = whole.number if self.is_in_metric else whole.differentiable()
        else:
            factor = self._factor(loss)
            if factor is None:
                return loss
            mean = loss * tf.cast(factor, loss.dtype)
        self._means.add(mean.name)
        return mean

    def added(self, loss: Any) -> Any:
        """Returns a loss that a layer adds, of which Keras takes the sum, such that shares of that add up."""
        if current_holes() is None or not isinstance(loss, tf.Tensor) or not loss.shape.rank:
            return self.as_mean(loss)
        number = _added_up(loss)
        return loss if self._aggregate(number) is None and self._factor(number) is None else self.as_mean(number)

    def is_mean(self, loss: tf.Tensor) -> tf.Tensor:
        """Takes note of a number of which the shares of all workers add up; returns it."""
        if current_holes() is not None:
            self._means.add(loss.name)
        return loss

    def mixes(self, values: Any) -> bool:
        """Whether rows of the batch have met in values from which a loss is reduced."""
        if current_holes() is None or not self.divides or not isinstance(values, tf.Tensor):
            return False
        reader = self.reader()
        return reader.is_of(values) and reader.mixes(values)

    def is_workers_own(self, tensor: tf.Tensor) -> bool:
        """Whether workers that share a batch have something of their own here, because it stands on their rows."""
        if not self.divides or current_holes() is None or not tf.is_symbolic_tensor(tensor):
            return False
        reader = self.reader()
        return reader.is_of(tensor) and reader.is_workers_own(tensor)

    def is_alike(self, tensor: tf.Tensor) -> tf.Tensor:
        """Takes note of what all workers have alike; returns it."""
        self._alike.add(tensor.op.name)
        return tensor

    def are_alike(self, indices: tf.Tensor) -> bool:
        """Whether all workers have the same indices: they stand on no row of the batch (positions in a text, most often)."""
        if not self.divides or current_holes() is None or not tf.is_symbolic_tensor(indices):
            return False
        reader = self.reader()
        return reader.is_of(indices) and not reader.is_workers_own(indices)

    @contextlib.contextmanager
    def in_layer(self) -> Iterator[None]:
        """Within it, a layer of Keras's own is at work."""
        if not self.divides or current_holes() is None:
            yield
            return
        graph = tf.compat.v1.get_default_graph()
        start = graph.version
        try:
            yield
        finally:
            self._layers.append((graph, start, graph.version))

    @property
    def is_in_metric(self) -> bool:
        """Whether a metric is at work."""
        return self._metric_depth > 0

    @contextlib.contextmanager
    def in_metric(self) -> Iterator[None]:
        """Within it, a metric is at work."""
        self._metric_depth += 1
        try:
            yield
        finally:
            self._metric_depth -= 1

    def told(self, number: Any, metric: str | None) -> Any:
        """Returns what a metric is to be told in the place of a number; as `as_mean`.

        Args:
            number: Of this worker's rows.
            metric: Its name, if a function of the script's computed the number.
        """
        told = self.as_mean(number)
        if told is number and metric is not None and self.divides and self._kind(number) is Reduced.UNKNOWN:
            self._own_numbers[_OWN_METRIC.format(metric)] = None
        return told

    def parts(self, target: Any) -> list[tuple[tf.Tensor, tf.Tensor]] | None:
        """Returns what to differentiate instead of a loss that is no mean or sum of a worker's own, and the slopes there."""
        holes = current_holes()
        assert holes is not None
        losses = tf.nest.flatten(target)
        numbers = [_added_up(loss) for loss in losses]
        found = [self._aggregate(number) for number in numbers]
        kinds = {self._kind(number) for number in numbers}
        # Several of which some are sums and some are not have to be weighed differently.
        if not any(found) and (len(losses) == 1 or not self.divides or not kinds & {Reduced.SUM, Reduced.RATIO}):
            return None
        parts: list[tuple[tf.Tensor, tf.Tensor]] = []
        for loss, number, each in zip(losses, numbers, found, strict=True):
            factor = self._factor(number)
            slope = tf.ones_like(loss) * (1.0 if factor is None else tf.cast(factor, loss.dtype))
            parts += [(loss, slope)] if each is None else each.whole(holes).slopes()
        return parts or None

    def _aggregate(self, loss: Any) -> Aggregate | None:
        """Returns what a loss is computed from, if it is no mean or sum of a worker's own rows; else None."""
        if not self.divides or not isinstance(loss, tf.Tensor) or loss.shape.rank != 0:
            return None
        reader, mixes, found = self.reader(), False, None
        if reader.is_of(loss):
            mixes = reader.mixes(loss)
            if not mixes and reduction(loss, reader).kind not in (Reduced.UNKNOWN, Reduced.MIXED):
                return None
            with contextlib.suppress(RecursionError):  # a sum of hundreds of terms
                found = aggregate(loss, reader)
        if found is None and not self.is_in_metric:
            self.are_picked = self.are_picked or (mixes and reader.picks(loss))
            if mixes or not self._tried:
                self._unsure[_MEETING if mixes else _OWN_LOSS] = None
        return found

    def _kind(self, number: Any) -> Reduced:
        return reduction(number, self.reader()).kind if isinstance(number, tf.Tensor) else Reduced.UNKNOWN

    def reader(self) -> Reader:
        """Returns what reads the graph as it is by now."""
        holes = current_holes()
        assert holes is not None
        graph = holes.share.graph
        operations = graph.get_operations() if self._layers else []
        inside = {each.name for of, start, end in self._layers if of is graph for each in operations[start:end]}
        return Reader(self._batch, holes.share, self._means, inside, self._alike)

    def weighed(self, target: Any, gradients: list[Any]) -> list[Any]:
        """Returns gradients of a script's own loss, such that the shares of all workers add up to those of the whole batch."""
        losses = tf.nest.flatten(target)
        number = _added_up(losses[0]) if len(losses) == 1 else None
        # A trial tells sums from means; that a quotient is a mean may be so of its batch alone.
        if number is None or (self._tried and self._kind(number) is not Reduced.RATIO):
            return gradients
        factor = self._factor(number)
        return gradients if factor is None else [times(gradient, factor) for gradient in gradients]

    def _factor(self, loss: Any) -> tf.Tensor | None:
        """Returns by what a loss must be multiplied so that shares of it add up; None for 1."""
        holes = current_holes()
        assert holes is not None
        if not isinstance(loss, tf.Tensor):
            return None
        found = reduction(loss, self.reader())
        if found.kind is Reduced.SUM:
            return 1.0 / nonzero(holes.share, tf.float32)
        return None if found.divisor is None else correction(holes, found.divisor)


def _added_up(loss: Any) -> Any:
    """Returns the number that a tape differentiates: of several it takes the sum."""
    return tf.reduce_sum(loss) if isinstance(loss, tf.Tensor) and loss.shape.rank else loss
