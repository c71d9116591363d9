"""What a task may be given, and what it shows."""

import numpy as np


class Discrete:
    def __init__(self, n):
        self.n, self.shape, self.dtype = n, (), np.dtype(np.int64)

    def sample(self):
        return int(np.random.randint(self.n))

    def contains(self, x):
        return 0 <= x < self.n


class Box:
    def __init__(self, low, high, shape=None, dtype=np.float32):
        self.shape = tuple(shape) if shape is not None else np.shape(low)
        self.low, self.high = (np.broadcast_to(np.asarray(edge, dtype), self.shape) for edge in (low, high))
        self.dtype = np.dtype(dtype)

    def sample(self):
        low, high = np.maximum(self.low, -10), np.minimum(self.high, 10)
        return np.random.uniform(low, high).astype(self.dtype)

    def contains(self, x):
        return bool(np.all(x >= self.low) and np.all(x <= self.high))
