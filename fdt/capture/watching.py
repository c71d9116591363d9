"""What a step's Python reads and changes beside its arguments, while it is traced: seen by the functions that it calls."""

import contextlib
import dis
import functools
import gc
import io
import sys
import types
from collections.abc import Collection, Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from fdt.outline.files import is_own

# Of larger collections only the length and the object itself are looked at.
_MAX_ITEMS = 64
# Where an object gets its parts, and a layer its variables.
_MAKERS = ("__init__", "build")
_NOTHING = object()


class Place:
    """Where a step's Python finds a value beside its arguments: a global name, an attribute, a name of a function around it."""

    def __init__(self, holder: Any, name: str) -> None:
        """Names it.

        Args:
            holder: A namespace, or a cell.
            name: In the namespace, or that of the cell.
        """
        self._holder, self.name = holder, name
        self.key = (id(holder), name)

    def get(self) -> Any:
        """Returns what is there."""
        return self._holder.get(self.name, _NOTHING) if isinstance(self._holder, dict) else _content(self._holder)

    def set(self, value: Any) -> None:
        """Puts something there."""
        if isinstance(self._holder, dict):
            self._holder[self.name] = value
        else:
            self._holder.cell_contents = value


class Watch:
    """One trace.

    Attributes:
        guards: Where something was read that is a constant of the traced step, and what it was.
        effects: What the step's Python did that a traced step does not do again.
    """

    def __init__(self, given: Collection[Any] = ()) -> None:
        """Begins.

        Args:
            given: Keys of places whose values are given to the traced step.
        """
        self.guards: list[tuple[Place, Any]] = []
        self.effects: list[str] = []
        self._given = given
        self._seen: set[Any] = set()
        # What functions may change: its name, where it is, and its value before.
        self._before: list[tuple[str, dict[str, Any], str, Any]] = []

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Within it the step is traced; afterwards its effects are known, and undone as far as they can be."""
        printed = io.StringIO()
        outer = sys.getprofile()
        sys.setprofile(self._called)
        try:
            with contextlib.redirect_stdout(printed):
                yield
        finally:
            sys.setprofile(outer)
            self._compare()
        if printed.getvalue():
            self.effects.append(f"it prints {printed.getvalue().splitlines()[0]!r}")

    def changed(self) -> list[Place]:
        """Returns the places where there is not what was read."""
        return [place for place, value in self.guards if not _same(place.get(), value)]

    def _called(self, frame: types.FrameType, event: str, _: Any) -> None:
        if event != "call" or not _is_own(frame.f_code.co_filename):
            return
        code, found = frame.f_code, dict(frame.f_locals)
        key = code, tuple(map(id, found.values()))
        if key in self._seen:
            return
        self._seen.add(key)
        attributes, stored, names = _operands(code)
        for name in names & frame.f_globals.keys():
            self._read(Place(frame.f_globals, name))
            self._may_change(f"the global {name}", frame.f_globals, name)
        for name, cell in _cells(code, found):
            self._read(Place(cell, name))
        for owner in found.values():
            own = getattr(owner, "__dict__", None)
            if not isinstance(own, dict) or isinstance(owner, type | types.ModuleType | tf.Variable | tf.Tensor):
                continue
            for name in attributes & own.keys():
                self._read(Place(own, name))
            if code.co_name not in _MAKERS:
                for name in (attributes | stored) & own.keys() | stored:
                    self._may_change(f"{type(owner).__name__}.{name}", own, name)

    def _read(self, place: Place) -> None:
        value = place.get()
        if place.key not in self._given and _is_simple(value):
            self.guards.append((place, _copied(value)))

    def _may_change(self, what: str, holder: dict[str, Any], name: str) -> None:
        if (id(holder), name) not in self._given:
            value = holder.get(name, _NOTHING)
            self._before.append((what, holder, name, _Length(value) if isinstance(value, list) else value))

    def _compare(self) -> None:
        for what, holder, name, before in self._before:
            now = holder.get(name, _NOTHING)
            if isinstance(before, _Length):
                if now is before.of and len(now) == before.length:
                    continue
                del before.of[before.length :]
                holder[name] = before.of
            elif now is before or (_is_simple(now) and _same(now, _copied(before))):
                continue
            elif before is _NOTHING:
                del holder[name]
            else:
                holder[name] = before
            self.effects.append(f"it changes {what}")


class _Length:
    """A list, which may grow."""

    def __init__(self, of: list[Any]) -> None:
        self.of, self.length = of, len(of)


def _is_simple(value: Any) -> bool:
    if value is None or isinstance(value, bool | int | float | complex | str | bytes | np.generic | np.ndarray):
        return True
    if isinstance(value, tuple | list):
        return all(_is_simple(item) for item in value[:_MAX_ITEMS])
    if isinstance(value, dict):
        return len(value) <= _MAX_ITEMS and all(_is_simple(item) for item in value.values())
    return tf.is_tensor(value) and not isinstance(value, tf.Variable)


def _copied(value: Any) -> Any:
    """Returns what tells whether a value has changed."""
    if isinstance(value, np.ndarray):
        return value.copy() if value.nbytes <= 1 << 16 else value
    if isinstance(value, list | tuple):
        return type(value), value if len(value) > _MAX_ITEMS else [_copied(item) for item in value], len(value)
    if isinstance(value, dict):
        return {name: _copied(item) for name, item in value.items()}
    return value


def _same(now: Any, before: Any) -> bool:
    if isinstance(before, tuple) and len(before) == 3 and isinstance(now, list | tuple):
        kind, items, length = before
        if type(now) is not kind or len(now) != length:
            return False
        return now is items if length > _MAX_ITEMS else all(map(_same, now, items))
    if isinstance(before, dict):
        return isinstance(now, dict) and now.keys() == before.keys() and all(_same(now[n], before[n]) for n in now)
    if isinstance(before, np.ndarray):
        return now is before or (
            isinstance(now, np.ndarray)
            and now.dtype == before.dtype
            and now.shape == before.shape
            and now.nbytes <= 1 << 16
            and bool((now == before).all())
        )
    if isinstance(before, bool | int | float | complex | str | bytes | np.generic):
        return type(now) is type(before) and bool(now == before)
    return now is before


@functools.cache
def _is_own(file: str) -> bool:
    return not file.startswith("<") and is_own(file)


@functools.cache
def _operands(code: types.CodeType) -> tuple[frozenset[str], frozenset[str], frozenset[str]]:
    """Returns the attributes that a function reads, methods among them, those that it sets, and its global names."""
    operations = list(dis.get_instructions(code))
    read = {op.argval for op in operations if op.opname in ("LOAD_ATTR", "LOAD_METHOD")}
    stored = {op.argval for op in operations if op.opname == "STORE_ATTR"}
    names = {op.argval for op in operations if op.opname in ("LOAD_GLOBAL", "STORE_GLOBAL", "LOAD_NAME")}
    return frozenset(read), frozenset(stored), frozenset(names)


def _cells(code: types.CodeType, found: dict[str, Any]) -> list[tuple[str, Any]]:
    """Returns the cells in which a function finds names of the functions around it."""
    if not code.co_freevars:
        return []
    functions = (f for f in gc.get_referrers(code) if isinstance(f, types.FunctionType) and f.__code__ is code)
    cells = (zip(code.co_freevars, function.__closure__ or (), strict=False) for function in functions)
    return [(name, cell) for pairs in cells for name, cell in pairs if _content(cell) is found.get(name, _NOTHING)]


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return _NOTHING
