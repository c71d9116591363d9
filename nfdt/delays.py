"""Records the delays of gradients: versions between pull and push, worker by worker."""

import collections
import math
import threading


class Delays:
    """Counts delays and sizes of corrections. Thread-safe."""

    def __init__(self, num_workers: int):
        self._lock = threading.Lock()
        self._counts: list[collections.Counter[int]] = [collections.Counter() for _ in range(num_workers)]
        self._corrections = [0.0] * num_workers
        self._num_corrected = [0] * num_workers

    def add(self, worker: int, delay: int, correction_square: float, gradient_square: float) -> None:
        """Records one push.

        Args:
            worker: The worker that pushed.
            delay: Versions between pull and push; the largest over all shards.
            correction_square: Σ c².
            gradient_square: Σ g²; 0 if the gradient was not compensated.
        """
        with self._lock:
            self._counts[worker][delay] += 1
            if gradient_square > 0:
                self._corrections[worker] += math.sqrt(correction_square / gradient_square)
                self._num_corrected[worker] += 1

    def histogram(self, worker: int) -> dict[int, int]:
        """Returns how often each delay occurred."""
        with self._lock:
            return dict(sorted(self._counts[worker].items()))

    def correction(self, worker: int) -> tuple[float, int]:
        """Returns the sum of ‖c‖ / ‖g‖ over pushes, and the number of pushes."""
        with self._lock:
            return self._corrections[worker], self._num_corrected[worker]
