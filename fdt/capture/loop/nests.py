"""Flattens nested lists, tuples and dicts, and packs them again."""

from collections.abc import Sequence
from typing import Any


def leaves_of(value: Any) -> list[Any]:
    """Returns the leaves of lists, tuples and dicts; any other value is a leaf."""
    if type(value) is dict:
        return [leaf for item in value.values() for leaf in leaves_of(item)]
    if type(value) in (list, tuple) or hasattr(value, "_fields"):
        return [leaf for item in value for leaf in leaves_of(item)]
    return [value]


def structure_of(value: Any) -> Any:
    """Returns a value with None for its leaves."""
    return packed(value, [None] * len(leaves_of(value)))


def packed(structure: Any, leaves: Sequence[Any]) -> Any:
    """Returns leaves packed into a structure."""
    rest = iter(leaves)

    def pack(value: Any) -> Any:
        if type(value) is dict:
            return {name: pack(item) for name, item in value.items()}
        if type(value) in (list, tuple):
            return type(value)(pack(item) for item in value)
        if hasattr(value, "_fields"):
            return type(value)(*(pack(item) for item in value))
        return next(rest)

    return pack(structure)


def put_into(container: Any, value: Any) -> None:
    """Replaces the content of the script's list, or updates its dict, with what a step computed."""
    if isinstance(container, list):
        container[:] = value
    else:
        container.update(value)
