"""Tells whether the script handles the errors of each step itself, by a `try` inside its loop.

Such a script skips a failed step, so the error must be raised before it calls the next one.
"""

import ast
import functools
import linecache
import sys
from types import FrameType

import tensorflow as tf

from fdt.script.outline.files import is_own

# Not raised by a step's operations: it marks the end of an iterator, and iterators run on this machine.
_NOT_OF_A_STEP = "OutOfRangeError"
_OF_TENSORFLOW = {name for name in dir(tf.errors) if name.endswith("Error")} - {_NOT_OF_A_STEP}
_CAUGHT = _OF_TENSORFLOW | {"Exception", "BaseException"}
_LOOPS = (ast.For, ast.AsyncFor, ast.While)
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def handles_each_step() -> bool:
    """Returns whether, from the caller's line outwards, a handler comes before a loop."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        found = _around(frame.f_code.co_filename).get(frame.f_lineno)
        if found is not None:
            return found
        frame = frame.f_back
    return False


@functools.lru_cache(maxsize=256)
def _around(filename: str) -> dict[int, bool | None]:
    """Returns for each line of a file whether it is nearer inside a handler (True) or a loop (False); None if in neither."""
    lines: dict[int, bool | None] = {}
    if not is_own(filename):
        return lines
    try:
        tree = ast.parse("".join(linecache.getlines(filename)))
    except SyntaxError:
        return lines
    _note(tree, None, lines)
    return lines


def _note(node: ast.AST, nearest: bool | None, lines: dict[int, bool | None]) -> None:
    if isinstance(node, _FUNCTIONS):
        # A handler or loop around a definition does not enclose its calls.
        nearest = None
    if isinstance(node, ast.stmt):
        lines.update(dict.fromkeys(range(node.lineno, (node.end_lineno or node.lineno) + 1), nearest))
    for field, value in ast.iter_fields(node):
        inner = nearest
        if field == "body" and isinstance(node, _LOOPS):
            inner = False
        elif field == "body" and (
            (isinstance(node, ast.Try) and any(map(_catches, node.handlers))) or _suppresses(node)
        ):
            inner = True
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                _note(child, inner, lines)


def _catches(handler: ast.ExceptHandler) -> bool:
    return handler.type is None or bool(_names(handler.type) & _CAUGHT)


def _suppresses(node: ast.AST) -> bool:
    if not isinstance(node, ast.With):
        return False
    calls = [item.context_expr for item in node.items if isinstance(item.context_expr, ast.Call)]
    return any("suppress" in _names(call.func) and _CAUGHT & set().union(*map(_names, call.args)) for call in calls)


def _names(node: ast.AST) -> set[str]:
    return {each.id if isinstance(each, ast.Name) else each.attr for each in ast.walk(node) if isinstance(each, _NAMES)}


_NAMES = (ast.Name, ast.Attribute)
