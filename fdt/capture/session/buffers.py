"""Variables of the old kind, which `disable_v2_behavior()` asks for: the buffer has the variable's name, and may be fed.

A session that is given a value for such a variable computes with it, and leaves the buffer as it is. We give the graph
variables of the new kind, whose name is a handle's, and of which a feed replaces a single read. So names are translated, and
fed values are put into the variables for the time of a run.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.ops import resource_variables_toggle

_HANDLE = "VarHandleOp"
_READ = "ReadVariableOp"
_MARK = "_fdt_is_buffer"


def asked_for() -> bool:
    """Returns whether the script asks for variables of the old kind."""
    return not resource_variables_toggle._DEFAULT_USE_RESOURCE


def noted(make: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Makes a variable of TensorFlow 1's, and marks it if the script would get a buffer; Keras's are of the new kind anyway."""
    variable = make(*args, **kwargs)
    if asked_for() and not tf.executing_eagerly():
        setattr(variable, _MARK, True)
    return variable


def buffers_of(graph: Any) -> dict[str, Any]:
    """Returns those variables of a graph that are buffers in plain python, by the names of their handle operations."""
    return {name: variable for name, variable in variables_of(graph).items() if hasattr(variable, _MARK)}


def variables_of(graph: Any) -> dict[str, Any]:
    """Returns the variables of a graph, by the names of their handle operations."""
    found = [v for name in graph.get_all_collection_keys() for v in graph.get_collection(name) if hasattr(v, "handle")]
    # What `tf.assign` returns has the variable's handle and no initializer: reading it runs the assignment.
    return {variable.handle.op.name: variable for variable in found if variable.initializer is not None}


def by_element(graph: Any, feeds: Any) -> Any:
    """Returns feeds of a session's `run` in which variables that are fed by name are fed by their values' tensors."""
    if not isinstance(feeds, Mapping):
        return feeds
    return {_element(graph, key) if _names_variable(graph, key) else key: value for key, value in feeds.items()}


def fetched(graph: Any, tensors: Sequence[Any]) -> list[Any]:
    """Returns fetched tensors, the values of variables in the places of their handles."""
    return [_element(graph, tensor) if tensor.op.type == _HANDLE else tensor for tensor in tensors]


def split(graph: Any, feeds: Mapping[Any, Any]) -> tuple[dict[str, tuple[Any, Any]], dict[Any, Any]]:
    """Returns the fed variables with their values, by the names of their handle operations, and the feeds of other tensors.

    Args:
        graph: The session's.
        feeds: NumPy arrays by references to tensors.
    """
    if not any(reference.deref().op.type == _READ for reference in feeds):
        return {}, dict(feeds)
    variables = {variable._graph_element.ref(): (name, variable) for name, variable in buffers_of(graph).items()}
    fed = {variables[each][0]: (variables[each][1], value) for each, value in feeds.items() if each in variables}
    return fed, {each: value for each, value in feeds.items() if each not in variables}


def _names_variable(graph: Any, key: Any) -> bool:
    if not isinstance(key, str):
        return False
    try:
        return bool(graph.as_graph_element(key, allow_operation=False).op.type == _HANDLE)
    except (KeyError, ValueError):
        return False


def _element(graph: Any, key: Any) -> Any:
    """Returns the tensor of a variable's value, for its handle or the handle's name; what is given if there is no variable."""
    variable = buffers_of(graph).get(graph.as_graph_element(key, allow_operation=False).op.name)
    return key if variable is None else variable._graph_element
