"""Reads and clears the traces that a tf.function keeps."""

import inspect
from typing import Any

from tensorflow.python.eager.polymorphic_function.polymorphic_function import Function

# Attributes in which a function keeps its traces.
_STAGES = (
    "_created_variables",
    "_variable_creation_config",
    "_no_variable_creation_config",
    "_concrete_variable_creation_fn",
)
_STORES = ("_function_cache", "_function_captures")


def traces_of(function: Function) -> list[Any]:
    """Returns the concrete functions that a function has been traced to."""
    # Not `_list_all_concrete_functions`, which traces.
    return list(function._function_cache.values())


def forget(function: Function) -> None:
    """Has a function traced again when it is called."""
    with function._lock:
        for name in _STAGES:
            setattr(function, name, None)
        for name in _STORES:
            setattr(function, name, type(getattr(function, name))())


def named(function: Function) -> str:
    """Returns the name and line of the function that the script has written."""
    code = inspect.unwrap(function.python_function).__code__
    return f"{code.co_qualname if hasattr(code, 'co_qualname') else code.co_name} (line {code.co_firstlineno})"
