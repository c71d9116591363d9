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

# By name or key of a place: for each leaf its type if it is a number in plain Python, otherwise None.
Kinds = Mapping[Any, Sequence[type | None]]


class Results:
    """The results of one trace.

    Attributes:
        tensors: What comes out of the traced function.
        kinds: Which leaves are numbers in this trace.
        known: What does not come out of the function: structures, and leaves that are no tensors. Another trace of the
            function, for another size, has to have the same.
    """

    def __init__(self, site: Site, known: set[int], kinds: Kinds) -> None:
        """
        Args:
            site: The step.
            known: Ids of the leaves that the step was given.
            kinds: Which leaves are numbers in plain Python, where this trace computes with tensors instead.
        """
        self.tensors: list[tf.Tensor] = []
        self.kinds: dict[Any, list[type | None]] = {}
        self.known: list[str] = []
        self._site, self._known, self._in_python = site, known, kinds
        # Each result's structure, and the functions that make its leaves from the traced function's outputs.
        self._leaves: dict[Any, tuple[Any, list[Callable[[Sequence[Any]], Any]]]] = {}

    def add(self, key: Any, value: Any) -> None:
        """Adds the value that the step has left in a name or place."""
        leaves = leaves_of(value)
        self.known += [f"{key} {structure_of(value)}", *(_known(leaf) for leaf in leaves)]
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
    """Stands for an object other than a tensor that a step made and left in a name, such as a tape."""

    def __init__(self, name: str, site: Site) -> None:
        object.__setattr__(self, "_fdt_why", f"{name!r} was made by the step in lines {site.line} to {site.end_line}")

    def __getattr__(self, name: str) -> Any:
        """Refuses every attribute.

        Raises:
            AttributeError: Always.
        """
        why = object.__getattribute__(self, "_fdt_why")
        raise AttributeError(f"{why}, which ran on the pool: {name!r} of it is not here. Use it inside the step.")


def _known(leaf: Any) -> str:
    is_simple = leaf is None or isinstance(leaf, bool | int | float | str | bytes | np.generic)
    return f"{type(leaf)} {leaf}" if is_simple else ""


def _may_leave(leaf: Any, known: set[int]) -> bool:
    """Whether the script may have a leaf of the trace itself: a simple value, or one that the step was given."""
    simple = leaf is None or isinstance(leaf, bool | int | float | str | bytes | tf.Variable | np.generic)
    return simple or id(leaf) in known
