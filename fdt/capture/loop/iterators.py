"""Keeps a step's iterators on the script's machine, and passes their elements to the step as data."""

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
# The elements that a step under trace has still to take.
_elements: ContextVar[Iterator[Sequence[tf.Tensor]] | None] = ContextVar("fdt_elements", default=None)


@dataclasses.dataclass(frozen=True)
class Read:
    """One read of an element in a function.

    Attributes:
        input: Index of the iterator among the function's inputs, captured ones included.
        types: Types of the element's tensors.
        shapes: Shapes of the element's tensors.
    """

    input: int
    types: Sequence[tf.DType]
    shapes: Sequence[tf.TensorShape]

    def take(self, inputs: Sequence[tf.Tensor]) -> Sequence[tf.Tensor]:
        """Returns the next element, flat.

        Raises:
            OutOfRangeError: There is none; the script expects this error.
        """
        found: Sequence[tf.Tensor] = tf.raw_ops.IteratorGetNext(
            iterator=inputs[self.input], output_types=list(self.types), output_shapes=list(self.shapes)
        )
        return found


def reads_of(graph: Any) -> list[Read]:
    """Returns a traced function's reads from iterators, in the order of its code.

    Args:
        graph: FuncGraph.

    Raises:
        UnsupportedError: It reads in a loop or branch of the graph.
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
    """Refuses a loop or branch that takes elements: their number is not known before it runs."""
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
    """Makes iterators yield these elements, in order, to code that is being traced."""
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
