"""Applies an outer optimizer to the weights that workers have trained by themselves: Δ = w_old − mean(w_i).

SGD at learning rate 1 is parameter averaging (local SGD); Nesterov at 0.7 with momentum 0.9 is DiLoCo (arXiv:2311.08105).
"""

import numpy as np
import tensorflow as tf

# Learning rate and momentum.
_SETTINGS = {"averaging": (1.0, 0.0), "diloco": (0.7, 0.9)}


class OuterOptimizer:
    """One tensor's outer update."""

    def __init__(self, method: str):
        self._rate, self._momentum = _SETTINGS[method]
        self._velocity: np.ndarray | None = None

    def update(self, old: np.ndarray, mean: np.ndarray) -> np.ndarray:
        """Returns the new weights.

        Args:
            old: The weights before the workers trained.
            mean: The mean of the workers' weights.
        """
        if self._rate == 1.0 and not self._momentum:
            return mean
        delta = old - mean
        self._velocity = delta if self._velocity is None else self._momentum * self._velocity + delta
        moved: np.ndarray = old - self._rate * (delta + self._momentum * self._velocity)
        return moved.astype(old.dtype)


def is_continuous(value: np.ndarray) -> bool:
    """Returns whether an array can be averaged: whether its numbers are real or complex."""
    dtype = tf.dtypes.as_dtype(value.dtype)
    return bool(dtype.is_floating or dtype.is_complex)


def weighted_mean(values: list[np.ndarray], weights: list[float]) -> np.ndarray:
    """Returns Σ weight · value / Σ weight, summed in the order given, in the values' type."""
    total = float(sum(weights))
    # Sum in single precision at least.
    wide = np.result_type(np.float32, values[0].dtype) if values[0].dtype.kind in "fc" else np.dtype(np.float32)
    mean = sum(value.astype(wide) * wide.type(weight / total) for value, weight in zip(values, weights, strict=True))
    return np.asarray(mean).astype(values[0].dtype)
