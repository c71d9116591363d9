"""Summaries that a step writes: their values are outputs of the step, and they are written on the script's machine."""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from typing import Any

import tensorflow as tf
from tensorflow.python.ops import gen_summary_ops

from fdt.errors import UnsupportedError
from fdt.patch import Patches

_WRITES = ("WriteSummary", "FlushSummaryWriter")
# The graph that is being traced, and those found.
_recorded: ContextVar["tuple[Any, list[Summary]] | None"] = ContextVar("fdt_summaries", default=None)


@dataclasses.dataclass(frozen=True)
class Summary:
    """One that a step writes.

    Attributes:
        writer: Handle of the writer.
        tag: Its name.
        metadata: What kind it is, serialized.
        value: Tensor of the trace.
        step: The same: int64.
    """

    writer: tf.Tensor
    tag: Any
    metadata: bytes
    value: tf.Tensor
    step: tf.Tensor


def writes_summaries(graph: Any) -> bool:
    """Returns whether a traced function, or one that it calls, writes any."""
    library = graph.as_graph_def().library.function
    inner = (node.op for function in library for node in function.node_def)
    return any(op in _WRITES for op in (*(o.type for o in graph.get_operations()), *inner))


@contextlib.contextmanager
def recording() -> Iterator[list[Summary]]:
    """Within it, summaries that code being traced writes are collected instead."""
    found: list[Summary] = []
    token = _recorded.set((tf.compat.v1.get_default_graph(), found))
    try:
        yield found
    finally:
        _recorded.reset(token)


def write(summaries: Sequence[Summary], values: Sequence[tf.Tensor]) -> None:
    """Writes summaries.

    Args:
        summaries: As they were recorded.
        values: For each its value and its step.
    """
    for number, summary in enumerate(summaries):
        value, step = values[2 * number : 2 * number + 2]
        tf.raw_ops.WriteSummary(
            writer=summary.writer, step=step, tensor=value, tag=summary.tag, summary_metadata=summary.metadata
        )
    # As a writer is at the end of its `as_default`.
    for writer in {id(summary.writer): summary.writer for summary in summaries}.values():
        tf.raw_ops.FlushSummaryWriter(writer=writer)


def install(patches: Patches) -> None:
    """Puts the hook in place."""
    patches.wrap(gen_summary_ops, "write_summary", _write)
    patches.wrap(gen_summary_ops, "flush_summary_writer", _flush)


def _write(
    original: Callable[..., Any], writer: Any, step: Any, tensor: Any, tag: Any, summary_metadata: Any, name: Any = None
) -> Any:
    recorded = _recorded.get()
    if recorded is None or tf.executing_eagerly():
        return original(writer, step, tensor, tag, summary_metadata, name=name)
    graph, found = recorded
    if tf.compat.v1.get_default_graph() is not graph:
        raise UnsupportedError(
            f"The step writes the summary {tag!r} in a loop or branch of its graph, where it may be written any number of "
            "times. Return the value from the step, and write it in the script's own loop."
        )
    found.append(Summary(writer, tag, summary_metadata, tf.convert_to_tensor(tensor), tf.cast(step, tf.int64)))
    return tf.no_op()


def _flush(original: Callable[..., Any], writer: Any, name: Any = None) -> Any:
    if _recorded.get() is None or tf.executing_eagerly():
        return original(writer, name=name)
    return tf.no_op()
