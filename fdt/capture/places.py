"""Places at which a step's Python finds values: global names, names of functions around it, attributes, by their paths."""

import abc
import argparse
import functools
import inspect
import sys
import types
from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from fdt.script.outline.files import is_own

# What a place holds that has no value.
NOTHING = object()


class Place(abc.ABC):
    """Where a step's Python finds a value beside its arguments.

    Attributes:
        name: Its name there.
        key: Identifies the place, whatever is found there.
    """

    name: str
    key: Any

    @property
    def where(self) -> Any:
        """Identifies what holds the value now: several places may lead there."""
        return self.key

    @abc.abstractmethod
    def get(self) -> Any:
        """Returns the value at the place; NOTHING if there is none."""

    @abc.abstractmethod
    def set(self, value: Any) -> None:
        """Sets the value at the place; NOTHING removes it."""


class Global(Place):
    """A global name."""

    def __init__(self, namespace: dict[str, Any], name: str) -> None:
        self._namespace, self.name = namespace, name
        self.key = (id(namespace), name)

    def get(self) -> Any:
        return self._namespace.get(self.name, NOTHING)

    def set(self, value: Any) -> None:
        if value is NOTHING:
            del self._namespace[self.name]
        else:
            self._namespace[self.name] = value


class Cell(Place):
    """A name of a function around the step's."""

    def __init__(self, cell: Any, name: str) -> None:
        self._cell, self.name = cell, name
        self.key = (id(cell), name)

    def get(self) -> Any:
        return content_of_cell(self._cell)

    def set(self, value: Any) -> None:
        self._cell.cell_contents = value


class Argument(Place):
    """An argument of a step in whose place the script hands over another object of the same class at each call."""

    def __init__(self, arguments: Mapping[Any, Any], place: Any) -> None:
        """
        Args:
            arguments: The arguments of the call that is made now.
            place: The argument's place among them.
        """
        self._arguments, self._place = arguments, place
        self.name, self.key = str(place), ("argument", place)

    def get(self) -> Any:
        return self._arguments[self._place]

    def set(self, value: Any) -> None:
        raise AssertionError("a step cannot set its arguments")


class Attribute(Place):
    """An attribute that an object, a class or a module has of its own: of one object, or of what is found at a place."""

    def __init__(self, owner: Any, name: str) -> None:
        """
        Args:
            owner: The object, or its place.
            name: The attribute's.
        """
        self._owner, self.name = owner, name
        self.key = (owner.key if isinstance(owner, Place) else id(owner), name)
        # What is replaced at each call may be read by a library, too, which nobody watches: all that it has is taken as read.
        self.is_of_argument = isinstance(owner, Argument) or getattr(owner, "is_of_argument", False)

    @property
    def where(self) -> Any:
        """Identifies the object that has the attribute now."""
        return id(self._found), self.name

    @property
    def _found(self) -> Any:
        return self._owner.get() if isinstance(self._owner, Place) else self._owner

    def get(self) -> Any:
        owner = self._found
        own = getattr(owner, "__dict__", {})
        if self.name in own:
            return own[self.name]
        slot = _slots(type(owner)).get(self.name)
        return NOTHING if slot is None else _content_of_slot(slot, owner)

    def set(self, value: Any) -> None:
        owner = self._found
        own = getattr(owner, "__dict__", None)
        # Not by `setattr`, which may wrap or track the value, unless that is the only way.
        if not isinstance(own, dict) or (self.name not in own and self.name in _slots(type(owner))):
            setattr(owner, self.name, value) if value is not NOTHING else delattr(owner, self.name)
        elif value is NOTHING:
            del own[self.name]
        else:
            own[self.name] = value


def has_attributes(owner: Any) -> bool:
    """Whether an object has attributes that a script may change; of classes and modules the script's own have."""
    if isinstance(owner, type | types.ModuleType):
        return is_followed(owner)
    has_names = isinstance(getattr(owner, "__dict__", None), dict) or bool(_slots(type(owner)))
    return has_names and not isinstance(owner, tf.Variable | tf.Tensor)


def is_followed(value: Any) -> bool:
    """Whether a value is an object, a class or a module of the script's, whose attributes are looked at."""
    if isinstance(value, types.ModuleType):
        return is_own_file(getattr(value, "__file__", None) or "<")
    return is_of_script(value if isinstance(value, type) else type(value)) or isinstance(value, types.FunctionType)


def is_plain_object(value: Any) -> bool:
    """Whether a value is an object of a class of the script's that has no other bases, so that no library knows its methods."""
    kinds = type(value).__mro__[:-1]
    return bool(kinds) and all(map(is_of_script, kinds)) and not callable(value)


def own_attributes(owner: Any) -> Mapping[str, Any]:
    """Returns what an object, a class or a module has of its own, by name."""
    of_slots = {name: _content_of_slot(slot, owner) for name, slot in _slots(type(owner)).items()}
    return {**getattr(owner, "__dict__", {}), **{n: value for n, value in of_slots.items() if value is not NOTHING}}


def _slots(kind: type) -> Mapping[str, Any]:
    """Returns the slots of a class of the script's."""
    if not is_of_script(kind):
        return {}
    found = {name: value for each in kind.__mro__ for name, value in vars(each).items()}
    return {n: value for n, value in found.items() if inspect.ismemberdescriptor(value) and not n.startswith("__")}


def _content_of_slot(slot: Any, owner: Any) -> Any:
    """Returns what a slot holds; NOTHING if it is empty, whatever else its class has under the name."""
    try:
        return slot.__get__(owner)
    except AttributeError:
        return NOTHING


def is_of_script(kind: type) -> bool:
    """Whether a class is one of the script's, or of those that only hold attributes."""
    if issubclass(kind, argparse.Namespace | types.SimpleNamespace):
        return True
    file = getattr(sys.modules.get(kind.__module__), "__file__", None)
    return file is not None and is_own_file(file)


@functools.cache
def is_own_file(file: str) -> bool:
    """Whether a file is one of the script's."""
    return not file.startswith("<") and is_own(file)


def content_of_cell(cell: Any) -> Any:
    """Returns what a cell holds; NOTHING if it is empty."""
    try:
        return cell.cell_contents
    except ValueError:
        return NOTHING
