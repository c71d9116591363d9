"""Tells whether a list, dict, set or array has changed, and puts its contents back."""

import collections
from typing import Any

import numpy as np

_KINDS = (list, dict, set, collections.deque, np.ndarray)
# Collections within larger collections are not compared; larger arrays are not kept.
_MAX_ITEMS, _MAX_BYTES, _MAX_DEPTH = 64, 1 << 20, 3


class Contents:
    """The contents of a collection at one time."""

    @staticmethod
    def are_in(value: Any) -> bool:
        """Whether a value is such a collection."""
        is_small = not isinstance(value, np.ndarray) or (value.nbytes <= _MAX_BYTES and value.flags.writeable)
        return isinstance(value, _KINDS) and is_small

    def __init__(self, collection: Any, depth: int = 0) -> None:
        """Copies the contents."""
        self._collection = collection
        self._before: Any = collection.copy() if isinstance(collection, np.ndarray) else _items(collection)
        inner: list[Any] = []
        if not isinstance(collection, np.ndarray | set) and len(collection) <= _MAX_ITEMS and depth < _MAX_DEPTH:
            inner = list(collection.values()) if isinstance(collection, dict) else list(collection)
        self._inner = [Contents(each, depth + 1) for each in inner if Contents.are_in(each) or type(each) is tuple]

    def are_as_before(self) -> bool:
        """Whether the collection holds the same objects as before, with the same contents."""
        if not all(each.are_as_before() for each in self._inner):
            return False
        if isinstance(self._collection, np.ndarray):
            return bool(np.array_equal(self._collection, self._before, equal_nan=self._collection.dtype.kind in "fc"))
        now = _items(self._collection)
        if isinstance(self._collection, dict):
            return now.keys() == self._before.keys() and all(now[name] is self._before[name] for name in now)
        if isinstance(self._collection, set):
            return bool(now == self._before)
        return len(now) == len(self._before) and all(map(lambda a, b: a is b, now, self._before))

    def restore(self) -> None:
        """Restores what the collection held."""
        for each in self._inner:
            each.restore()
        if isinstance(self._collection, np.ndarray):
            self._collection[...] = self._before
        elif not isinstance(self._collection, tuple) and not self.are_as_before():
            self._collection.clear()
            add = self._collection.update if isinstance(self._collection, dict | set) else self._collection.extend
            add(self._before)


def _items(collection: Any) -> Any:
    """Returns a copy as a plain list, dict or set: TensorFlow wraps lists and dicts that are attributes of its modules."""
    if isinstance(collection, dict | set):
        return dict(collection) if isinstance(collection, dict) else set(collection)
    return list(collection)
