"""Keeps numbers over time in bounded memory: a curve that is too long drops every second point."""

import math
from array import array
from collections.abc import Mapping

# Bounds of one curve: rows, and names in each row. A number takes 8 bytes.
MAX_POINTS = 400
MAX_NAMES = 8


class Curve:
    """Rows of named numbers, oldest first.

    Attributes:
        times_s: Each row's time, since the epoch.
        columns: By name, one number a row; NaN where a row lacks the name.
    """

    def __init__(self, limit: int = MAX_POINTS) -> None:
        """Makes an empty curve.

        Args:
            limit: The most rows. Above it, every second row is dropped, and from then on every second new row is skipped.
        """
        self._limit, self._steps_per_call, self._seen = limit, 1, 0
        self.times_s = array("d")
        self.columns: dict[str, array[float]] = {}

    def add(self, time_s: float, values: Mapping[str, float]) -> None:
        """Adds a row, or skips it; keeps only the first `MAX_NAMES` names."""
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
        """Returns a copy, for another thread to read."""
        other = Curve(self._limit)
        other.times_s, other.columns = self.times_s[:], {name: column[:] for name, column in self.columns.items()}
        return other
