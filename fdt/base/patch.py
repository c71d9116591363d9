"""Replaces attributes of foreign classes and modules reversibly."""

import functools
from collections.abc import Callable
from typing import Any


class Patches:
    """A set of replacements with one undo.

    A replacement receives the original as its first argument, so that it can always fall back on it:

        patches.wrap(Trainer, "fit", lambda original, self, *args, **kwargs: original(self, *args, **kwargs))
    """

    def __init__(self) -> None:
        self._undo: list[Callable[[], None]] = []

    def wrap(self, owner: Any, name: str, replacement: Callable[..., Any]) -> None:
        """Replaces `owner.name` by a function that calls `replacement(original, *args, **kwargs)`.

        `owner` must be the class or module that defines the attribute.
        """
        original = vars(owner)[name]

        @functools.wraps(original)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            return replacement(original, *args, **kwargs)

        # Keeps AutoGraph, which converts all functions that the script's function calls, from converting the hook.
        wrapper.autograph_info__ = {}  # type: ignore[attr-defined]
        self.set(owner, name, wrapper)

    def wrap_inherited(self, owner: type, name: str, replacement: Callable[..., Any]) -> None:
        """Does what `wrap` does, for an attribute that a base class may define."""
        self.wrap(next(base for base in owner.__mro__ if name in vars(base)), name, replacement)

    def wrap_all(self, owner: type, name: str, replacement: Callable[..., Any]) -> None:
        """Does what `wrap` does, in a class and in each class made from it that defines the attribute anew."""
        waiting, seen = [owner], set[type]()
        while waiting:
            each = waiting.pop()
            if each in seen:
                continue
            seen.add(each)
            waiting += each.__subclasses__()
            if name in vars(each):
                self.wrap(each, name, replacement)

    def set(self, owner: Any, name: str, value: Any) -> None:
        """Puts `value` in the place of `owner.name`."""
        original = vars(owner)[name]
        self._undo.append(lambda: setattr(owner, name, original))
        setattr(owner, name, value)

    def add(self, owner: Any, name: str, value: Any) -> None:
        """Adds an attribute that `owner` does not define itself."""
        assert name not in vars(owner), name
        self._undo.append(lambda: delattr(owner, name))
        setattr(owner, name, value)

    def undo(self) -> None:
        """Puts everything back, the last change first."""
        while self._undo:
            self._undo.pop()()
