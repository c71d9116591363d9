"""Finds the cells in which the functions that a step calls share names with the functions around them."""

import gc
import types
from collections.abc import Iterator, Mapping
from typing import Any

from fdt.capture.places import NOTHING, content_of_cell


class Cells:
    """The cells that were there before a trace; a function's own, made where it is called, are gone with the trace."""

    def __init__(self) -> None:
        # By the code of a function within another one that was called: the other's code, and the cells of its like before.
        self._makers: dict[types.CodeType, tuple[types.CodeType, dict[int, Any]]] = {}

    def called(self, code: types.CodeType) -> None:
        """Called when a function is called, before it makes the functions within it."""
        for inner in code.co_consts:
            if isinstance(inner, types.CodeType) and inner.co_freevars and inner not in self._makers:
                self._makers[inner] = code, {id(cell): cell for _, cell in _closures(inner)}

    def of(self, code: types.CodeType, found: Mapping[str, Any]) -> list[tuple[str, Any]]:
        """Returns the names and cells of a function that is called.

        Args:
            code: The function's code.
            found: What it finds by names.
        """
        if not code.co_freevars or (not self._before(code) and all(self._is_made(code, n) for n in code.co_freevars)):
            return []
        return [
            (name, cell)
            for name, cell in _closures(code)
            if content_of_cell(cell) is found.get(name, NOTHING)
            and (id(cell) in self._before(code) or not self._is_made(code, name))
        ]

    def _before(self, code: types.CodeType) -> Mapping[int, Any]:
        return self._makers[code][1] if code in self._makers else {}

    def _is_made(self, code: types.CodeType, name: str) -> bool:
        """Whether a call that was seen makes the cell of a name, for a function with this code that it makes."""
        maker, _ = self._makers.get(code, (None, None))
        return maker is not None and (name in maker.co_cellvars or self._is_made(maker, name))


def _closures(code: types.CodeType) -> Iterator[tuple[str, Any]]:
    """Yields the names and cells of all functions with this code that there are."""
    for function in gc.get_referrers(code):
        if isinstance(function, types.FunctionType) and function.__code__ is code:
            yield from zip(code.co_freevars, function.__closure__ or (), strict=False)
