"""Records what a step's Python reads and changes beside its arguments, while it is traced."""

import collections
import contextlib
import dis
import functools
import inspect
import itertools
import random
import sys
import types
from collections.abc import Collection, Iterator, Mapping
from contextvars import ContextVar
from typing import Any

import numpy as np
import tensorflow as tf

from fdt.capture.cells import Cells
from fdt.capture.contents import Contents
from fdt.capture.places import (
    NOTHING,
    Argument,
    Attribute,
    Cell,
    Global,
    Place,
    has_attributes,
    is_followed,
    is_own_file,
    own_attributes,
)
from fdt.capture.step.draws import Generator, is_at, set_state, state
from fdt.capture.thread_output import held_back

# Of larger collections only the length and the object itself are compared.
_MAX_ITEMS = 64
_COLLECTIONS = (list, tuple, dict, collections.deque)
# Depth to which objects are searched for what a step changes.
_MAX_DEPTH = 2
# Methods in which an object gets its parts, and a layer its variables.
_MAKERS = ("__init__", "build")
_OF_RANDOM = random.random.__self__  # type: ignore[attr-defined]
_OF_NUMPY = np.random.normal.__self__  # type: ignore[attr-defined]
# The instruction at which a function starts or resumes: https://docs.python.org/3/library/dis.html#opcode-RESUME
_RESUME, _AT_START = dis.opmap["RESUME"], 0
_DRAWS = "it draws random numbers in Python"
_CACHE = type(functools.lru_cache(lambda: None))


class _Identity:
    """What a place held: another object is another value, even if it is equal."""

    def __init__(self, value: Any) -> None:
        self.value = value


class _Kind:
    """The class of what a place held, whose attributes have places of their own."""

    def __init__(self, kind: type) -> None:
        self.kind = kind


class Watch:
    """Watches one trace.

    Attributes:
        effects: Side effects of the step's Python, which a traced step does not repeat.
        changed_objects: Those of them that plain Python may have in one call alone, as where a function keeps what it has made.
        taken: The effect among these that cannot be undone; None if there is none.
        is_on: Whether a step is traced now.
        drawn: Generators that have drawn numbers meanwhile, with their states before: in the step's Python, or in another
            thread, as where a pipeline makes the next elements.
        functions: The tf.functions that the step called and that changed the script's objects, as each trace of theirs does
            and no call after it.
    """

    def __init__(self, given: Collection[Any] = (), arguments: Mapping[int, Argument] | None = None) -> None:
        """
        Args:
            given: Where values are (`Place.where`) that are passed to the traced step.
            arguments: The places of arguments that differ at each call, by the ids of the objects that are there now.
        """
        # By the ids of objects, the places at which they were found; their like may be there later.
        self._paths: dict[int, Place] = dict(arguments or {})
        # By their keys, places whose values are constants of the traced step, with the values that were read.
        self._guarded: dict[Any, tuple[Place, Any]] = {}
        self.effects: list[str] = []
        self.changed_objects: list[str] = []
        self.taken: str | None = None
        self.is_on = False
        self.drawn: list[tuple[Generator, Any]] = []
        self.functions: list[Any] = []
        self._given = given
        self._seen: set[Any] = set()
        self._cells = Cells()
        # Values that functions may change: name, place, and value before.
        self._before: dict[Any, tuple[str, Place, Any]] = {}
        # Collections that they may change in place, with their contents before.
        self._contents: dict[int, tuple[str, Contents]] = {}
        # Functions that keep what they return, and how often they have computed it.
        self._caches: dict[int, tuple[Any, int]] = {}
        # Objects that were made while it was traced.
        self._made: dict[int, Any] = {}
        # Generators of random numbers, with their states before.
        self._generators: dict[int, tuple[Generator, Any]] = {}
        # The functions with `yield` that were begun while it was traced.
        self._begun: set[types.FrameType] = set()
        # A call of `next` whose iterator is not known yet: its line.
        self._next: int | None = None

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Watches the step's trace within the context, then records side effects and undoes those that can be undone."""
        outer = sys.getprofile()
        before = state(_OF_RANDOM)
        self._may_draw(_OF_NUMPY)
        sys.setprofile(self._seen_event)
        self.is_on = True
        token = _current.set(self)
        try:
            with held_back() as printed:
                yield
        finally:
            sys.setprofile(outer)
            _current.reset(token)
            self.is_on = False
            self._compare()
            self._begun.clear()
        if printed.getvalue():
            self.effects.append(f"it prints {printed.getvalue().splitlines()[0]!r}")
        if any(effect.endswith(_DRAWS) for effect in self.effects):
            set_state(_OF_RANDOM, before)

    def take_back_draws(self) -> str | None:
        """Sets generators that have drawn to their states before; returns the side effect, None if none has drawn."""
        for generator, before in self.drawn:
            set_state(generator, before)
        return _DRAWS if self.drawn else None

    def changed(self) -> list[Place]:
        """Returns the places whose value differs from the one that was read."""
        return [place for place, value in self._guarded.values() if not _same(place.get(), value)]

    def guard_what(self, other: "Watch") -> None:
        """Guards what another watch has seen read, too."""
        self._guarded = {**other._guarded, **self._guarded}

    def _seen_event(self, frame: types.FrameType, event: str, called: Any) -> None:
        if self._next is not None:
            line, self._next = self._next, None
            # TensorFlow's iterators are a part of the step; of a class of the script's, the attributes are watched.
            if event != "call" or not (frame.f_code.co_name == "__next__" or _is_generator(frame.f_code)):
                self._takes(f"line {line}: it takes from an iterator")
        if event == "call":
            self._called(frame)
        elif event == "c_call" and called is next and is_own_file(frame.f_code.co_filename):
            self._next = frame.f_lineno
        elif event == "c_call" and getattr(called, "__self__", None) is _OF_RANDOM:
            # Keras draws seeds only for layers that it makes; the script's own draws happen in each step.
            caller = frame.f_back if frame.f_code.co_filename == random.__file__ else frame
            while caller is not None and caller.f_code.co_filename == random.__file__:
                caller = caller.f_back
            if caller is not None and is_own_file(caller.f_code.co_filename):
                self.effects.append(f"line {caller.f_lineno}: {_DRAWS}")

    def differences(self) -> list[tuple[Place, Any]]:
        """Returns the places that have been set, with their values before."""
        found = ((place, place.get(), before) for _, place, before in self._before.values())
        return [
            (place, before)
            for place, now, before in found
            if now is not before and not (_is_simple(now) and _same(now, _copied(before)))
        ]

    def changes(self) -> Mapping[Any, Any]:
        """Returns the values of places that have been set, and the collections that have been changed in place."""
        changed = {key: contents for key, (_, contents) in self._contents.items() if not contents.are_as_before()}
        return {place.where: place.get() for place, _ in self.differences()} | changed

    def _called(self, frame: types.FrameType) -> None:
        if not is_own_file(frame.f_code.co_filename):
            return
        if _is_generator(frame.f_code):
            if not _is_resumed(frame):
                self._begun.add(frame)
            elif frame not in self._begun:
                self._takes(f"line {frame.f_lineno}: it takes from a generator that was begun before it")
        code, found = frame.f_code, dict(frame.f_locals)
        self._cells.called(code)
        key = code, tuple(map(id, found.values()))
        if key in self._seen:
            return
        self._seen.add(key)
        attributes, stored, names = _operands(code)
        for name in names & frame.f_globals.keys():
            self._may_change(f"the global {name}", Global(frame.f_globals, name))
            self._read_through(Global(frame.f_globals, name), attributes, stored, is_maker=False)
        for name, cell in self._cells.of(code, found):
            self._may_change(name, Cell(cell, name))
            self._read_through(Cell(cell, name), attributes, stored, is_maker=False)
        if code.co_name == "__init__" and code.co_varnames:
            made = found.get(code.co_varnames[0])
            self._made[id(made)] = made
        for owner in found.values():
            self._may_draw(owner)
            self._may_fill(owner)
            # The object may change, and another one may take its place.
            for at in dict.fromkeys((None, self._paths.get(id(owner)))):
                self._look_at(owner, attributes, stored, code.co_name in _MAKERS, at=at)

    def _read_through(
        self, place: Place, attributes: frozenset[str], stored: frozenset[str], is_maker: bool, depth: int = 0
    ) -> None:
        """Records the value at a place, and what an object there has in attributes with these names."""
        value = place.get()
        goes_on = depth <= _MAX_DEPTH and is_followed(value)
        self._read(place, goes_on)
        if goes_on:
            self._paths.setdefault(id(value), place)
            self._look_at(value, attributes, stored, is_maker, depth, place)

    def _look_at(
        self,
        owner: Any,
        attributes: frozenset[str],
        stored: frozenset[str],
        is_maker: bool,
        depth: int = 0,
        at: Place | None = None,
    ) -> None:
        """Records the values of an object's attributes with these names, and those of the script's own objects in them.

        Args:
            owner: The object.
            attributes: The names of attributes that are read.
            stored: The names of attributes that are set.
            is_maker: Whether this is where the object gets its parts.
            depth: How many objects led to it.
            at: Where it was found, and where its like may be found later; None if it is an argument.
        """
        if not has_attributes(owner):
            return
        is_class, own, place = isinstance(owner, type), own_attributes(owner), functools.partial(Attribute, at or owner)
        if isinstance(at, Argument) or (isinstance(at, Attribute) and at.is_of_argument):
            attributes |= own.keys()
        shown = owner.__name__ if is_class or isinstance(owner, types.ModuleType) else type(owner).__name__
        for name in attributes - own.keys():
            kinds = (owner if is_class else type(owner)).__mro__
            kind = next((kind for kind in kinds if name in vars(kind)), None)
            if kind is None:
                continue
            of_class = vars(kind)[name]
            self._may_fill(of_class)
            if isinstance(of_class, functools.cached_property) and not is_class:
                self._may_change(f"{shown}.{name}", place(name))
            elif _is_simple(of_class):
                # The class's attribute, until the object gets its own.
                self._guard(place(name), NOTHING)
                self._read(Attribute(kind, name))
        for name in attributes & own.keys():
            self._read_through(place(name), attributes, stored, is_maker, depth + 1)
        if not is_maker and id(owner) not in self._made:
            for name in (attributes | stored) & own.keys() | (stored if not depth else frozenset()):
                self._may_change(f"{shown}.{name}", place(name))

    def _takes(self, what: str) -> None:
        self.taken = what
        self.effects.append(what)

    def _may_draw(self, generator: Any) -> None:
        if isinstance(generator, Generator) and generator is not _OF_RANDOM:
            self._generators.setdefault(id(generator), (generator, state(generator)))

    def _may_fill(self, function: Any) -> None:
        if isinstance(function, _CACHE):
            self._caches.setdefault(id(function), (function, function.cache_info().misses))

    def _read(self, place: Place, goes_on: bool = False) -> None:
        value = place.get()
        self._may_draw(value)
        self._may_fill(value)
        if place.where in self._given:
            return
        if _is_simple(value) or (isinstance(value, _COLLECTIONS) and len(value) <= _MAX_ITEMS):
            self._guard(place, _copied(value))
        elif goes_on and not isinstance(value, type | types.ModuleType | types.FunctionType):
            self._guard(place, _Kind(type(value)))
        elif callable(value) or isinstance(value, _COLLECTIONS):
            self._guard(place, _Identity(value))

    def _guard(self, place: Place, value: Any) -> None:
        # Of a place that the step has set since, the first value is the one that the next step has to find.
        self._guarded.setdefault(place.key, (place, value))

    def _may_change(self, what: str, place: Place) -> None:
        if place.where not in self._given:
            value = place.get()
            self._before.setdefault(place.where, (what, place, value))
            if Contents.are_in(value):
                self._contents.setdefault(id(value), (what, Contents(value)))

    def _compare(self) -> None:
        self.drawn = [each for each in self._generators.values() if not is_at(*each)]
        for function, num_computed in self._caches.values():
            if function.cache_info().misses != num_computed:
                function.cache_clear()
                self.changed_objects.append(f"it fills the cache of {function.__name__}")
        for what, contents in self._contents.values():
            if not contents.are_as_before():
                contents.restore()
                self.changed_objects.append(f"it changes {what}")
        for place, before in self.differences():
            place.set(before)
            self.changed_objects.append(f"it changes {self._before[place.where][0]}")
        self.effects += self.changed_objects


_current: ContextVar[Watch | None] = ContextVar("fdt_watch", default=None)


@contextlib.contextmanager
def calling(function: Any) -> Iterator[None]:
    """Records, within the context of a call, whether a tf.function changes the script's objects in a step that is watched."""
    watch = _current.get()
    if watch is None:
        yield
        return
    before = watch.changes()
    try:
        yield
    finally:
        after = watch.changes()
        if before.keys() != after.keys() or any(before[key] is not after[key] for key in before):
            watch.functions.append(function)


def _is_generator(code: types.CodeType) -> bool:
    return bool(code.co_flags & inspect.CO_GENERATOR)


def _is_resumed(frame: types.FrameType) -> bool:
    """Whether a generator resumes after a `yield`."""
    code, place = frame.f_code.co_code, frame.f_lasti
    return place >= 0 and code[place] == _RESUME and code[place + 1] & 3 != _AT_START


def _is_simple(value: Any) -> bool:
    if value is None or isinstance(value, bool | int | float | complex | str | bytes | np.generic | np.ndarray):
        return True
    if isinstance(value, tuple | list | collections.deque):
        return all(map(_is_simple, itertools.islice(value, _MAX_ITEMS)))
    if isinstance(value, dict):
        return len(value) <= _MAX_ITEMS and all(_is_simple(item) for item in value.values())
    return tf.is_tensor(value) and not isinstance(value, tf.Variable)


def _copied(value: Any) -> Any:
    """Returns a copy of a value, by which `_same` tells whether it has changed."""
    if isinstance(value, np.ndarray):
        return value.copy() if value.nbytes <= 1 << 16 else value
    if isinstance(value, list | tuple | collections.deque):
        return type(value), value if len(value) > _MAX_ITEMS else [_copied(item) for item in value], len(value)
    if isinstance(value, dict):
        return {name: _copied(item) for name, item in value.items()}
    return value


def _same(now: Any, before: Any) -> bool:
    if isinstance(before, _Identity):
        return now is before.value
    if isinstance(before, _Kind):
        return type(now) is before.kind
    if isinstance(before, tuple) and len(before) == 3 and isinstance(now, list | tuple | collections.deque):
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
def _operands(code: types.CodeType) -> tuple[frozenset[str], frozenset[str], frozenset[str]]:
    """Returns the attributes that a function reads, methods among them, those that it sets, and its global names."""
    operations = list(dis.get_instructions(code))
    read = {op.argval for op in operations if op.opname in ("LOAD_ATTR", "LOAD_METHOD")}
    stored = {op.argval for op in operations if op.opname == "STORE_ATTR"}
    names = {op.argval for op in operations if op.opname in ("LOAD_GLOBAL", "STORE_GLOBAL", "LOAD_NAME")}
    return frozenset(read), frozenset(stored), frozenset(names)
