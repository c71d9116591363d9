"""Gives the results of an eager step back to the script's names and attributes."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from fdt.capture.loop.attached import attach, attached
from fdt.capture.loop.nests import leaves_of, packed, structure_of
from fdt.capture.loop.pending import resolved
from fdt.capture.step.unseen import Unseen
from fdt.script.outline.rewriting import Site

# By name, or by key of a place: of each leaf the type, where Python has a number; None where it has anything else.
Kinds = Mapping[Any, Sequence[type | None]]


class Results:
    """The results of one trace.

    Attributes:
        tensors: What comes out of the traced function.
        kinds: Which leaves are numbers in this trace.
    """

    def __init__(self, site: Site, known: set[int], kinds: Kinds) -> None:
        """Has none yet.

        Args:
            site: The step.
            known: Ids of the leaves that the step was given.
            kinds: Which leaves are numbers in plain Python, where this trace computes with tensors instead.
        """
        self.tensors: list[tf.Tensor] = []
        self.kinds: dict[Any, list[type | None]] = {}
        self._site, self._known, self._in_python = site, known, kinds
        # Of each result the structure, and what makes its leaves of the function's outputs.
        self._leaves: dict[Any, tuple[Any, list[Callable[[Sequence[Any]], Any]]]] = {}

    def add(self, key: Any, value: Any) -> None:
        """Adds what the step has left in a name or place."""
        leaves = leaves_of(value)
        self.kinds[key] = [type(leaf) if isinstance(leaf, bool | int | float) else None for leaf in leaves]
        numbers = self._in_python.get(key, ())
        if len(numbers) != len(leaves):
            numbers = [None] * len(leaves)
        self._leaves[key] = structure_of(value), [self._maker(key, *each) for each in zip(leaves, numbers, strict=True)]

    def of(self, key: Any, outputs: Sequence[Any]) -> Any:
        """Returns the value in plain Python, given the outputs of a call of the traced function."""
        structure, makers = self._leaves[key]
        return packed(structure, [make(outputs) for make in makers])

    def _maker(self, key: Any, leaf: Any, number: type | None) -> Callable[[Sequence[Any]], Any]:
        place = len(self.tensors)
        if isinstance(leaf, Unseen):
            self.tensors.append(leaf.tensor)
            return lambda outputs: resolved(outputs[place]).numpy()
        if not tf.is_tensor(leaf) or isinstance(leaf, tf.Variable):
            known = leaf if _may_leave(leaf, self._known) else Spent(key, self._site)
            return lambda _: known
        if number is not None:
            self.tensors.append(leaf)
            return lambda outputs: number(resolved(outputs[place]).numpy())
        others = attached(leaf)
        self.tensors += [leaf, *others.values()]
        if not others:
            return lambda outputs: outputs[place]
        return lambda outputs: attach(outputs[place], dict(zip(others, outputs[place + 1 :], strict=False)))


class Spent:
    """Stands for what a step has made beside tensors, and left in a name: a tape, for example."""

    def __init__(self, name: str, site: Site) -> None:
        object.__setattr__(self, "_fdt_why", f"{name!r} was made by the step in lines {site.line} to {site.end_line}")

    def __getattr__(self, name: str) -> Any:
        """Raises.

        Raises:
            AttributeError: Always.
        """
        why = object.__getattribute__(self, "_fdt_why")
        raise AttributeError(f"{why}, which ran on the pool: {name!r} of it is not here. Use it inside the step.")


def _may_leave(leaf: Any, known: set[int]) -> bool:
    """Whether what a step was traced with is right for the script, too."""
    simple = leaf is None or isinstance(leaf, bool | int | float | str | bytes | tf.Variable | np.generic)
    return simple or id(leaf) in known
