"""Carries attributes and names that a step sets beside its arguments, such as `self.loss = loss`.

They are set while the step is traced, are put back, and are set in each step to what has come out of it.
"""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from fdt.capture.step.unseen import Unseen
from fdt.capture.watching import Place, Watch


class Carried:
    """Those of one step.

    Attributes:
        places: Where they are.
    """

    def __init__(self, watch: Watch, leaves: Callable[[Any], Sequence[Any]]) -> None:
        """Begins.

        Args:
            watch: Sees what the step sets, when it is traced for the first time.
            leaves: Returns the leaves of a value.
        """
        self.places: list[Place] = []
        self._watch, self._leaves = watch, leaves

    def traced(
        self, step: Callable[[], Any], lifted: Sequence[Place], values: Sequence[Any]
    ) -> tuple[Any, dict[Any, Any]]:
        """Runs a step that is traced, and puts back what it sets.

        Args:
            step: It.
            lifted: Places of which it reads arguments.
            values: These.

        Returns:
            What it returns, and what it has set, by keys of places.
        """
        # Of each place: what was there, and what the step finds.
        before = {place.key: (place, place.get(), place.get()) for place in self.places}
        before |= {place.key: (place, place.get(), value) for place, value in zip(lifted, values, strict=True)}
        for place, value in zip(lifted, values, strict=True):
            place.set(value)
        try:
            after = step()
            if self._watch.is_on:
                before |= {p.key: (p, old, old) for p, old in self._watch.differences() if p.key not in before}
                self.places = [p for p, _, found in before.values() if self._comes_out(p.get(), found)]
            return after, {place.key: place.get() for place in self.places}
        finally:
            for place in (*self.places, *lifted):
                place.set(before[place.key][1])

    def set(self, value_of: Callable[[Any], Any]) -> None:
        """Sets them to what came out of a step.

        Args:
            value_of: From the key of a place to its value.
        """
        for place, value in [(place, value_of(place.key)) for place in self.places]:
            place.set(value)

    def _comes_out(self, now: Any, before: Any) -> bool:
        return now is not before and all(map(_may_come_out, self._leaves(now)))


def _may_come_out(leaf: Any) -> bool:
    is_simple = leaf is None or isinstance(leaf, bool | int | float | str | Unseen)
    return is_simple or (tf.is_tensor(leaf) and not isinstance(leaf, tf.Variable))
