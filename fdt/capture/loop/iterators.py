"""Iterators that a step reads from: they stay on the script's machine, and what they yield is handed to the step as data."""

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from contextvars import ContextVar
from typing import Any

import tensorflow as tf
from tensorflow.python.data.ops.iterator_ops import OwnedIterator
from tensorflow.python.data.util import structure

from fdt.base.patch import Patches
from fdt.errors import UnsupportedError

_NEXT = ("IteratorGetNext", "IteratorGetNextSync")
_CALLS = ("PartitionedCall", "StatefulPartitionedCall")
# What a step is traced with: the elements that it has not taken yet.
_elements: ContextVar[Iterator[Sequence[tf.Tensor]] | None] = ContextVar("fdt_elements", default=None)


@dataclasses.dataclass(frozen=True)
class Read:
    """One time that a function takes an element.

    Attributes:
        input: Which of the function's inputs, captured ones included, the iterator is.
        types: Of the element's tensors.
        shapes: The same.
    """

    input: int
    types: Sequence[tf.DType]
    shapes: Sequence[tf.TensorShape]

    def take(self, inputs: Sequence[tf.Tensor]) -> Sequence[tf.Tensor]:
        """Returns the next element, flat.

        Raises:
            OutOfRangeError: There is none, which the script expects to be told.
        """
        found: Sequence[tf.Tensor] = tf.raw_ops.IteratorGetNext(
            iterator=inputs[self.input], output_types=list(self.types), output_shapes=list(self.shapes)
        )
        return found


def reads_of(graph: Any) -> list[Read]:
    """Returns what a traced function takes from iterators, in the order of its code.

    Args:
        graph: FuncGraph.

    Raises:
        UnsupportedError: It does so in a loop or branch of the graph.
    """
    return list(_reads(graph, {tensor.ref(): number for number, tensor in enumerate(graph.inputs)}))


def _reads(graph: Any, inputs: Mapping[Any, int]) -> Iterator[Read]:
    for operation in graph.get_operations():
        if operation.type in _NEXT and operation.inputs[0].ref() in inputs:
            types, shapes = operation.get_attr("output_types"), operation.get_attr("output_shapes")
            yield Read(inputs[operation.inputs[0].ref()], types, [tf.TensorShape(shape) for shape in shapes])
        elif operation.type in _CALLS:
            inner = graph._get_function(operation.get_attr("f").name).graph
            pairs = zip(inner.inputs, operation.inputs, strict=True)
            yield from _reads(inner, {mine.ref(): inputs[its.ref()] for mine, its in pairs if its.ref() in inputs})
        elif any(tensor.dtype == tf.resource and tensor.ref() in inputs for tensor in operation.inputs):
            _check_branch(graph, operation)


def _check_branch(graph: Any, operation: Any) -> None:
    """Refuses a loop or branch that takes elements: how many is not known before it is run."""
    names = [operation.get_attr(name) for name in ("body", "then_branch", "else_branch") if _has(operation, name)]
    nodes = [node.op for name in names for node in graph._get_function(name.name).cached_definition.node_def]
    if operation.type == "IteratorGetNextAsOptional" or any(op.startswith("IteratorGetNext") for op in nodes):
        raise UnsupportedError(
            f"The step takes elements from an iterator in a loop or branch of its graph ({operation.name!r}), such as a `for` "
            "over a data set inside the tf.function. Put the loop around the step, in Python, and have the step take one "
            "element (or be given one as its argument)."
        )


def _has(operation: Any, name: str) -> bool:
    return name in operation.node_def.attr


@contextlib.contextmanager
def feeding(elements: Sequence[Sequence[tf.Tensor]]) -> Iterator[None]:
    """Within it, code that is being traced takes these elements from its iterators, one after the other."""
    token = _elements.set(iter(elements))
    try:
        yield
    finally:
        _elements.reset(token)


def install(patches: Patches) -> None:
    """Puts the hook in place."""
    patches.wrap(OwnedIterator, "_next_internal", _next)


def _next(original: Any, iterator: Any) -> Any:
    elements = _elements.get()
    if elements is None or tf.executing_eagerly():
        return original(iterator)
    return structure.from_compatible_tensor_list(iterator.element_spec, list(next(elements)))
