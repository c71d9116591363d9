"""Attributes and names beside a step's arguments that a step sets: `self.loss = loss`, in the step or in what it calls.

They are set while the step is traced, are put back, and are set in each step to what has come out of it.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from fdt.capture.step.unseen import Unseen
from fdt.capture.watching import Place, Watch


class Carried:
    """Those of one step.

    Attributes:
        places: Where they are, each with its type, if there was a number.
    """

    def __init__(self, watch: Watch, leaves: Callable[[Any], Sequence[Any]]) -> None:
        """Begins.

        Args:
            watch: Sees what the step sets, when it is traced for the first time.
            leaves: Returns the leaves of a value.
        """
        self.places: list[tuple[Place, type | None]] = []
        self._watch, self._leaves = watch, leaves

    def traced(self, step: Callable[[], Any], lifted: Sequence[Place], values: Sequence[Any]) -> tuple[Any, list[Any]]:
        """Runs a step that is traced, and puts back what it sets.

        Args:
            step: It.
            lifted: Places of which it reads arguments.
            values: These.

        Returns:
            What it returns, and what it has set.
        """
        # Of each place: what was there, and what the step finds.
        before = {place.key: (place, place.get(), place.get()) for place, _ in self.places}
        before |= {place.key: (place, place.get(), value) for place, value in zip(lifted, values, strict=True)}
        for place, value in zip(lifted, values, strict=True):
            place.set(value)
        try:
            after = step()
            if self._watch.is_on:
                before |= {p.key: (p, old, old) for p, old in self._watch.differences() if p.key not in before}
                self.places = [
                    (p, _number(old)) for p, old, found in before.values() if self._comes_out(p.get(), found)
                ]
            return after, [place.get() for place, _ in self.places]
        finally:
            for place in (*(place for place, _ in self.places), *lifted):
                place.set(before[place.key][1])

    def set(self, values: Iterator[Any]) -> None:
        """Sets them to what came out of a step."""
        for (place, number), value in zip(self.places, values, strict=True):
            # A number stays one.
            place.set(value if number is None or isinstance(value, number) else number(value))

    def _comes_out(self, now: Any, before: Any) -> bool:
        return now is not before and all(map(_may_come_out, self._leaves(now)))


def _may_come_out(leaf: Any) -> bool:
    is_simple = leaf is None or isinstance(leaf, bool | int | float | str | Unseen)
    return is_simple or (tf.is_tensor(leaf) and not isinstance(leaf, tf.Variable))


def _number(before: Any) -> type | None:
    return type(before) if type(before) in (int, float) else None
