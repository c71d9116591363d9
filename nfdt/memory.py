"""What an update rule remembers of the gradients so far, and what it makes of the next one."""

from collections.abc import Sequence

import tensorflow as tf

from nfdt.compensation import Late, compensate, unknown_moves
from nfdt.layout import ShardLayout
from nfdt.rules import Rule, Strength, Weigh
from nfdt.vectors import join


class Memory:
    """The state of a rule on one shard: s, the mean of g⊙g, and u, the mixed gradient, where the rule has them."""

    def __init__(self, rule: Rule, layout: ShardLayout):
        """Makes what the rule needs, zero at first.

        Args:
            rule: The update rule.
            layout: Of the shard.
        """
        self._rule = rule
        self._entries = [v.entries for v in layout.vectors]
        vectors = [([v.length], v.dtype) for v in layout.vectors]
        tables = [(list(t.shape), t.dtype) for t in layout.tables]
        adaptive = rule.compensates and rule.strength is Strength.ADAPTIVE
        mixes = rule.weigh is Weigh.GRADIENT
        self._squares = [_zeros(*spec, wide=True) if adaptive else None for spec in vectors]
        self._table_squares = [_zeros(*spec, wide=True) if adaptive else None for spec in tables]
        self._moved = [tf.Variable(unknown_moves(), trainable=False) if rule.compensates else None for _ in vectors]
        self._mixed = [_zeros(*spec) if mixes else None for spec in vectors]
        self._table_mixed = [_zeros(*spec) if mixes else None for spec in tables]

    def forget_moves(self) -> None:
        """Takes note that parameters were set by others than updates."""
        for moved in self._moved:
            if moved is not None:
                moved.assign(unknown_moves())

    @property
    def mixes(self) -> bool:
        """Whether gradients are mixed with those before."""
        return self._rule.weigh is Weigh.GRADIENT

    def late(self, number: int, then: tf.Tensor, delay: tf.Tensor, version: tf.Tensor) -> Late | None:
        """Returns what `vector` would do, for an update that does it itself; None for nothing. Not for what is mixed.

        Args:
            number: Which vector of the shard's layout.
            then: The parameters that its gradient was computed from.
            delay: int64 scalar.
            version: Gradients so far, this one included, int64 scalar.
        """
        moved = self._moved[number]
        return None if moved is None else Late(self._rule, then, delay, version, moved, self._squares[number])

    def vector(
        self,
        number: int,
        tensors: Sequence[tf.Tensor],
        now: tf.Tensor,
        then: tf.Tensor,
        rho: tf.Tensor,
        delay: tf.Tensor,
        count: tf.Tensor,
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns what goes to the optimizer, [length], and float32 [2], Σ c² and Σ g².

        Args:
            number: Which vector of the shard's layout.
            tensors: g, of each entry.
            now: The parameters.
            then: The parameters that g was computed from.
            rho: Reliability, float32 scalar.
            delay: int64 scalar.
            count: Gradients so far, this one included, float32 scalar.
        """
        squares, mixed = tf.zeros([2]), self._mixed[number]
        if self._rule.compensates:
            kept, lengths = self._squares[number], [entry.padded for entry in self._entries[number]]
            gradient, squares = compensate(self._rule, tensors, now, then, kept, delay, count, lengths)
        else:
            gradient = join(self._entries[number], tensors)
        if mixed is not None:
            kept = mixed.read_value()
            gradient = _mix(kept, gradient, rho)
            mixed.assign(_finite(gradient, kept))
        return gradient, squares

    def rows(
        self,
        number: int,
        rows: tuple[tf.Tensor, tf.Tensor],
        now: tf.Variable,
        then: tf.Tensor,
        rho: tf.Tensor,
        delay: tf.Tensor,
        count: tf.Tensor,
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Returns what goes to the optimizer for rows of a table, their indices, and Σ c², Σ g².

        Args:
            number: Which table of the shard's layout.
            rows: Values [rows, ...] and indices [rows], each once.
            now: The table.
            then: The table that the values were computed from.
            rho: Reliability.
            delay: int64 scalar.
            count: Gradients so far.
        """
        values, indices = rows
        squares, mixed = tf.zeros([2]), self._table_mixed[number]
        if self._rule.compensates:
            kept, places = self._table_squares[number], tf.cast(indices, tf.int64)
            table = now.read_value()
            values, squares = compensate(self._rule, [values], table, then, kept, delay, count, indices=places)
        if mixed is not None:
            # A variable that is gathered from itself is copied whenever it is read from then on.
            kept = tf.gather(mixed.read_value(), indices)
            values = _mix(kept, values, rho)
            mixed.scatter_update(tf.IndexedSlices(_finite(values, kept), indices))
        return values, indices, squares


def _mix(mixed: tf.Tensor, gradient: tf.Tensor, rho: tf.Tensor) -> tf.Tensor:
    rho = tf.cast(rho, gradient.dtype)
    return (1 - rho) * mixed + rho * gradient


def _finite(mixed: tf.Tensor, before: tf.Tensor) -> tf.Tensor:
    # What overflowed goes to the optimizer and is forgotten: whoever scales a loss leaves such a step out and goes on.
    return tf.where(tf.math.is_finite(mixed), mixed, before)


def _zeros(shape: Sequence[int], dtype: str, wide: bool = False) -> tf.Variable:
    if wide and dtype != "float64":
        dtype = "float32"
    return tf.Variable(tf.zeros(shape, dtype), trainable=False)
