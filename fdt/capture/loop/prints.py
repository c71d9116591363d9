"""Prints a step's `tf.print` calls on the script's machine: their values are outputs of the step."""

import contextlib
import dataclasses
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from typing import Any

import tensorflow as tf
from tensorflow.python.ops import gen_logging_ops

from fdt.base.patch import Patches

# The graph that is being traced, and what it prints.
_recorded: ContextVar["tuple[Any, list[Printed]] | None"] = ContextVar("fdt_prints", default=None)
_NAME = "fdt_printed"


@dataclasses.dataclass(frozen=True)
class Printed:
    """One `tf.print` in a step.

    Attributes:
        values: Tensors of the trace.
        form: Attributes of TensorFlow's operation that makes a text of them.
        stream: TensorFlow's name of the output stream.
        end: Text to print after it.
    """

    values: Sequence[tf.Tensor]
    form: Mapping[str, Any]
    stream: str
    end: str


def prints(graph: Any) -> bool:
    """Returns whether a traced function prints outside of loops and branches."""
    return any(operation.type == "PrintV2" for operation in graph.get_operations())


@contextlib.contextmanager
def recording() -> Iterator[list[Printed]]:
    """Collects the numbers that traced code prints; code in loops and branches still prints where it runs."""
    found: list[Printed] = []
    token = _recorded.set((tf.compat.v1.get_default_graph(), found))
    try:
        yield found
    finally:
        _recorded.reset(token)


def write(printed: Sequence[Printed], values: Sequence[tf.Tensor]) -> None:
    """Prints the recorded calls; `values` holds the values of all, in order."""
    rest = iter(values)
    for each in printed:
        text = tf.raw_ops.StringFormat(inputs=list(itertools.islice(rest, len(each.values))), **each.form)
        gen_logging_ops.print_v2(text, output_stream=each.stream, end=each.end)


def install(patches: Patches) -> None:
    """Puts the hook in place."""
    patches.wrap(gen_logging_ops, "print_v2", _print)


def _print(
    original: Callable[..., Any], text: Any, output_stream: str = "stderr", end: str = "\n", name: Any = None
) -> Any:
    recorded = _recorded.get()
    if recorded is None or tf.executing_eagerly() or tf.compat.v1.get_default_graph() is not recorded[0]:
        return original(text, output_stream=output_stream, end=end, name=name)
    operation = text.op
    if operation.type != "StringFormat" or any(tensor.dtype == tf.string for tensor in operation.inputs):
        return original(text, output_stream=output_stream, end=end, name=name)
    values = [tf.identity(tensor, name=_NAME) for tensor in operation.inputs]
    form = {attribute: operation.get_attr(attribute) for attribute in ("template", "placeholder", "summarize")}
    recorded[1].append(Printed(values, form, output_stream, end))
    return tf.no_op()
