"""Keeps numbers over time in bounded memory: a curve that has become too long keeps every second of its points."""

import math
from array import array
from collections.abc import Mapping

# Rows of one curve, and names in each: 8 bytes a number.
MAX_POINTS = 400
MAX_NAMES = 8


class Curve:
    """Rows of named numbers, oldest first.

    Attributes:
        times_s: Of each row, since the epoch.
        columns: By name, as many numbers; NaN where a row had none.
    """

    def __init__(self, limit: int = MAX_POINTS) -> None:
        """Begins without rows.

        Args:
            limit: How many are kept; when there are more, every second one goes, and of those that come as many are left out.
        """
        self._limit, self._steps_per_call, self._seen = limit, 1, 0
        self.times_s = array("d")
        self.columns: dict[str, array[float]] = {}

    def add(self, time_s: float, values: Mapping[str, float]) -> None:
        """Adds a row, or leaves it out; of names beyond the first `MAX_NAMES` nothing is kept."""
        self._seen += 1
        if (self._seen - 1) % self._steps_per_call:
            return
        for name in values:
            if name not in self.columns and len(self.columns) < MAX_NAMES:
                self.columns[name] = array("d", [math.nan]) * len(self.times_s)
        self.times_s.append(time_s)
        for name, column in self.columns.items():
            column.append(values.get(name, math.nan))
        if len(self.times_s) > self._limit:
            self.times_s = self.times_s[::2]
            self.columns = {name: column[::2] for name, column in self.columns.items()}
            self._steps_per_call *= 2

    def copy(self) -> "Curve":
        """Returns the same rows, to be read by another thread."""
        other = Curve(self._limit)
        other.times_s, other.columns = self.times_s[:], {name: column[:] for name, column in self.columns.items()}
        return other
