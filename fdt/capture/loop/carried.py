"""Carries attributes and names that a step sets beside its arguments, such as `self.loss = loss`.

The trace sets them and restores their values; each step then sets them to its outputs.
"""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from fdt.capture.places import Place
from fdt.capture.step.unseen import Unseen
from fdt.capture.watching import Watch


class Carried:
    """The attributes and names that one step sets.

    Attributes:
        places: Their places.
    """

    def __init__(self, watch: Watch, leaves: Callable[[Any], Sequence[Any]]) -> None:
        """
        Args:
            watch: Records what the step sets when it is traced for the first time.
            leaves: Returns the leaves of a value.
        """
        self.places: list[Place] = []
        self._watch, self._leaves = watch, leaves

    def traced(
        self, step: Callable[[], Any], lifted: Sequence[Place], values: Sequence[Any]
    ) -> tuple[Any, dict[Any, Any]]:
        """Runs a step under trace, and restores what it sets.

        Args:
            step: The step.
            lifted: Places that hold further arguments.
            values: The values of these arguments.

        Returns:
            The step's result, and the values that it set, by keys of places.
        """
        # Of each place: its value before the step, and the value that the step finds.
        before = {place.key: (place, place.get(), place.get()) for place in self.places}
        before |= {place.key: (place, place.get(), value) for place, value in zip(lifted, values, strict=True)}
        for place, value in zip(lifted, values, strict=True):
            place.set(value)
        try:
            after = step()
            if self._watch.is_on:
                known = {place.where for place, _, _ in before.values()}
                before |= {p.key: (p, old, old) for p, old in self._watch.differences() if p.where not in known}
                self.places = [p for p, _, found in before.values() if self._comes_out(p.get(), found)]
            return after, {place.key: place.get() for place in self.places}
        finally:
            for place in (*self.places, *lifted):
                place.set(before[place.key][1])

    def set(self, value_of: Callable[[Any], Any]) -> None:
        """Sets the places to a step's outputs.

        Args:
            value_of: Returns the value for the key of a place.
        """
        for place, value in [(place, value_of(place.key)) for place in self.places]:
            place.set(value)

    def _comes_out(self, now: Any, before: Any) -> bool:
        return now is not before and all(map(_may_come_out, self._leaves(now)))


def _may_come_out(leaf: Any) -> bool:
    is_simple = leaf is None or isinstance(leaf, bool | int | float | str | Unseen)
    return is_simple or (tf.is_tensor(leaf) and not isinstance(leaf, tf.Variable))
