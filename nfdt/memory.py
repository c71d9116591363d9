"""Keeps an update rule's state, and applies the rule to the next gradient."""

from collections.abc import Sequence

import tensorflow as tf

from nfdt.compensation import Late, compensate, compensate_rows, unknown_moves
from nfdt.layout import ShardLayout
from nfdt.rows import by_row
from nfdt.rules import Rule, Strength, Weigh
from nfdt.table_snapshots import TableSnapshots
from nfdt.vectors import join

_REAL = {"complex64": tf.float32, "complex128": tf.float64}


class Memory:
    """The state of a rule on one shard: s, the mean of g⊙g, and u, the mixed gradient, where the rule has them."""

    def __init__(self, rule: Rule, layout: ShardLayout):
        """Makes the rule's variables, zero at first.

        Args:
            rule: The update rule.
            layout: The shard's layout.
        """
        self._rule = rule
        self._entries = [v.entries for v in layout.vectors]
        # A rule treats a complex number as two real ones.
        vectors = [_real_spec([v.length], v.dtype) for v in layout.vectors]
        tables = [_real_spec(t.shape, t.dtype) for t in layout.tables]
        adaptive = rule.compensates and rule.strength is Strength.ADAPTIVE
        mixes = rule.weigh is Weigh.GRADIENT
        self._squares = [_zeros(spec, wide=True) if adaptive else None for spec in vectors]
        self._table_squares = [_zeros(spec, wide=True) if adaptive else None for spec in tables]
        self._moved = [tf.Variable(unknown_moves(), trainable=False) if rule.compensates else None for _ in vectors]
        self._mixed = [_zeros(spec) if mixes else None for spec in vectors]
        self._table_mixed = [_zeros(spec) if mixes else None for spec in tables]

    def forget_moves(self) -> None:
        """Resets the lengths of steps, since parameters were set other than by an update."""
        for moved in self._moved:
            if moved is not None:
                moved.assign(unknown_moves())

    @property
    def mixes(self) -> bool:
        """Whether gradients are mixed with earlier ones (u)."""
        return self._rule.weigh is Weigh.GRADIENT

    def late(self, number: int, then: tf.Tensor, delay: tf.Tensor, version: tf.Tensor) -> Late | None:
        """Returns what a one-pass update needs to do what `vector` does; None if the rule compensates nothing. Not if `mixes`.

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
        """Returns the gradient for the optimizer, [length], and float32 [2], Σ c² and Σ g².

        Args:
            number: Which vector of the shard's layout.
            tensors: g, one tensor for each entry.
            now: The parameters.
            then: The parameters that g was computed from.
            rho: Reliability, float32 scalar.
            delay: int64 scalar.
            count: Gradients so far, this one included, float32 scalar.
        """
        squares, mixed = tf.zeros([2]), self._mixed[number]
        if self._rule.compensates:
            width = 2 if now.dtype.is_complex else 1
            kept, lengths = self._squares[number], [width * entry.padded for entry in self._entries[number]]
            given, at, before = [_real(tensor) for tensor in tensors], _real(now), _real(then)
            gradient, squares = compensate(self._rule, given, at, before, kept, delay, count, lengths)
        else:
            gradient = _real(join(self._entries[number], tensors))
        if mixed is not None:
            kept = mixed.read_value()
            gradient = _mix(kept, gradient, rho)
            mixed.assign(_finite(gradient, kept))
        return _as(now.dtype, gradient), squares

    def rows(
        self,
        number: int,
        rows: tuple[tf.Tensor, tf.Tensor],
        order: tf.Tensor | None,
        table: TableSnapshots,
        then: tf.Tensor,
        rho: tf.Tensor,
        delay: tf.Tensor,
        count: tf.Tensor,
    ) -> tuple[tuple[tf.Tensor, tf.Tensor], tf.Tensor | None, tf.Tensor]:
        """Returns the values and indices that the optimizer gets for a table, their order, and float32 [2], Σ c² and Σ g².

        Args:
            number: Which table of the shard's layout.
            rows: Values [number, ...] and indices [number]; an index may come more than once.
            order: From `nfdt.rows.by_row`; None if the shard does not use it.
            table: The table's snapshots.
            then: The snapshot that the values were computed from.
            rho: Reliability.
            delay: int64 scalar.
            count: Gradients so far.
        """
        (values, indices), dtype = rows, rows[0].dtype
        squares, mixed, values = tf.zeros([2]), self._table_mixed[number], _real(values)
        if self._rule.compensates:
            assert order is not None
            kept = self._table_squares[number]
            at, before = _real(table.rows_now(indices)), _real(table.rows(then, indices))
            values, squares = compensate_rows(self._rule, values, indices, order, at, before, kept, delay, count)
        if mixed is not None:
            values, indices = _mixed_rows(mixed, values, indices, rho)
            order = None if order is None else by_row(indices)
        return (_as(dtype, values), indices), order, squares


def _mixed_rows(
    mixed: tf.Variable, values: tf.Tensor, indices: tf.Tensor, rho: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """Mixes rows with earlier ones, which leaves one value per row; with ρ = 1 returns values and indices unchanged."""
    unique, positions = tf.unique(indices)
    # After a gather on the variable itself, TensorFlow copies the variable at every later read.
    kept = tf.gather(mixed.read_value(), unique)
    together = _mix(kept, tf.math.unsorted_segment_sum(values, positions, tf.size(unique)), rho)
    mixed.scatter_update(tf.IndexedSlices(_finite(together, kept), unique))
    return tf.cond(rho < 1, lambda: (together, unique), lambda: (values, indices))  # type: ignore[no-any-return]


def _mix(mixed: tf.Tensor, gradient: tf.Tensor, rho: tf.Tensor) -> tf.Tensor:
    rho = tf.cast(rho, gradient.dtype)
    return (1 - rho) * mixed + rho * gradient


def _finite(mixed: tf.Tensor, before: tf.Tensor) -> tf.Tensor:
    # The optimizer gets overflowed entries, but u does not keep them: a script that scales its loss skips such a step.
    return tf.where(tf.math.is_finite(mixed), mixed, before)


def _zeros(spec: tf.TensorSpec, wide: bool = False) -> tf.Variable:
    dtype = tf.float32 if wide and spec.dtype != tf.float64 else spec.dtype
    return tf.Variable(tf.zeros(spec.shape, dtype), trainable=False)


def _real_spec(shape: Sequence[int], dtype: str) -> tf.TensorSpec:
    """Returns the spec of `_real`'s result."""
    is_complex = tf.dtypes.as_dtype(dtype).is_complex
    return tf.TensorSpec([*shape, 2], _REAL[dtype]) if is_complex else tf.TensorSpec(shape, dtype)


def _real(tensor: tf.Tensor) -> tf.Tensor:
    """Returns a real tensor unchanged; a complex one as real and imaginary parts, [..., 2]."""
    return tf.bitcast(tensor, _REAL[tensor.dtype.name]) if tensor.dtype.is_complex else tensor


def _as(dtype: tf.DType, real: tf.Tensor) -> tf.Tensor:
    """Inverts `_real`."""
    return tf.bitcast(real, dtype) if dtype.is_complex else real
