"""Takes summaries out of a step: their values become outputs, and the script's machine writes them."""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from typing import Any

import tensorflow as tf
from tensorflow.python.ops import gen_summary_ops, summary_ops_v2

from fdt.base.patch import Patches
from fdt.errors import UnsupportedError

_WRITES = ("WriteSummary", "FlushSummaryWriter")


@dataclasses.dataclass(frozen=True)
class Summary:
    """A summary that a step writes.

    Attributes:
        writer: Handle of the writer.
        tag: Its name.
        metadata: Its kind, serialized.
        tensors: Tensors of the trace: its step (int64), whether it is written, and the numbers of its value.
        value: Makes the value from these numbers.
    """

    writer: tf.Tensor
    tag: Any
    metadata: bytes
    tensors: Sequence[tf.Tensor]
    value: Callable[..., tf.Tensor]

    def write(self, values: Sequence[Any]) -> None:
        """Writes it, given values of `tensors`."""
        step, is_written, *parts = values
        if is_written:
            tf.raw_ops.WriteSummary(
                writer=self.writer,
                step=tf.cast(step, tf.int64),
                tensor=self.value(*parts),
                tag=self.tag,
                summary_metadata=self.metadata,
            )


class Recording:
    """The summaries that a trace has met so far.

    Attributes:
        graph: The graph that is being traced.
        summaries: In the order in which the step writes them.
        condition: Whether the next one is written; set if `record_if` was given a tensor.
    """

    def __init__(self) -> None:
        """Starts without summaries."""
        self.graph = tf.compat.v1.get_default_graph()
        self.summaries: list[Summary] = []
        self.condition: tf.Tensor | None = None

    def tensors(self) -> list[tf.Tensor]:
        """Returns the tensors of all summaries, in order."""
        return [tensor for summary in self.summaries for tensor in summary.tensors]


_recording: ContextVar[Recording | None] = ContextVar("fdt_summaries", default=None)


def writes_summaries(graph: Any) -> bool:
    """Returns whether a traced function, or one that it calls, writes summaries."""
    library = graph.as_graph_def().library.function
    inner = (node.op for function in library for node in function.node_def)
    return any(op in _WRITES for op in (*(o.type for o in graph.get_operations()), *inner))


@contextlib.contextmanager
def recording() -> Iterator[Recording]:
    """Collects the summaries that traced code writes, in place of writing them."""
    token = _recording.set(Recording())
    try:
        yield _recording.get()  # type: ignore[misc]
    finally:
        _recording.reset(token)


def write(summaries: Sequence[Summary], values: Sequence[Any]) -> None:
    """Writes summaries, given values of all their tensors, one after the other."""
    rest = iter(values)
    for summary in summaries:
        summary.write([next(rest) for _ in summary.tensors])
    # TensorFlow flushes a writer at the end of its `as_default`.
    for writer in {id(summary.writer): summary.writer for summary in summaries}.values():
        tf.raw_ops.FlushSummaryWriter(writer=writer)


def install(patches: Patches) -> None:
    """Puts the hooks in place."""
    # Called by `tf.summary.write` only.
    patches.wrap(summary_ops_v2, "should_record_summaries", _should_record)
    patches.wrap(gen_summary_ops, "write_summary", _write)
    patches.wrap(gen_summary_ops, "flush_summary_writer", _flush)


def _should_record(original: Callable[[], Any]) -> Any:
    """Returns True in place of a tensor, which would make a branch around the summary; keeps the tensor as condition."""
    condition, recording = original(), _recording.get()
    if recording is None or tf.executing_eagerly() or tf.get_static_value(condition) is not None:
        return condition
    recording.condition = condition
    return tf.constant(True)


def _write(
    original: Callable[..., Any], writer: Any, step: Any, tensor: Any, tag: Any, summary_metadata: Any, name: Any = None
) -> Any:
    recording = _recording.get()
    if recording is None or tf.executing_eagerly():
        return original(writer, step, tensor, tag, summary_metadata, name=name)
    if tf.compat.v1.get_default_graph() is not recording.graph:
        raise UnsupportedError(
            f"The step writes the summary {tag!r} in a loop or branch of its graph, where it may be written any number of "
            "times. Write it outside, within tf.summary.record_if(condition) if it is not to be written each time."
        )
    condition, recording.condition = recording.condition, None
    parts, value = _of_numbers(tf.convert_to_tensor(tensor), tag)
    tensors = [tf.cast(step, tf.int64), tf.constant(True) if condition is None else condition, *parts]
    # Copies: a variable that is read here must not show its value at the step's end.
    tensors = [tf.identity(tensor) for tensor in tensors]
    recording.summaries.append(Summary(writer, tag, summary_metadata, tensors, value))
    return tf.no_op()


def _flush(original: Callable[..., Any], writer: Any, name: Any = None) -> Any:
    if _recording.get() is None or tf.executing_eagerly():
        return original(writer, name=name)
    return tf.no_op()


def _of_numbers(value: tf.Tensor, tag: Any) -> tuple[list[tf.Tensor], Callable[..., Any]]:
    """Returns the numbers that a value is made of, and a function that makes it from them.

    A step returns no strings: images are encoded, and text is formatted, where the summary is written.
    """
    if value.dtype != tf.string:
        return [value], lambda number: number
    operations, numbers = _made_of(value, tag)
    graph = tf.compat.v1.GraphDef(library=value.graph.as_graph_def().library)
    for operation in operations:
        node = graph.node.add()
        node.CopyFrom(operation.node_def)
        del node.input[:]
        node.input.extend(tensor.name for tensor in operation.inputs)

    def made(*given: tf.Tensor) -> tf.Tensor:
        replaced = {number.name: tensor for number, tensor in zip(numbers, given, strict=True)}
        return tf.graph_util.import_graph_def(graph, input_map=replaced, return_elements=[value.name])[0]

    return numbers, tf.function(made, autograph=False)


def _made_of(value: tf.Tensor, tag: Any) -> tuple[list[Any], list[tf.Tensor]]:
    """Returns the operations on strings that make a value, and the numbers that they are given."""
    operations: dict[str, Any] = {}
    numbers: dict[str, tf.Tensor] = {}
    waiting = [value]
    while waiting:
        tensor = waiting.pop()
        if tensor.dtype != tf.string:
            numbers[tensor.name] = tensor
        elif tensor.op.name not in operations:
            if tensor.op.type == "Placeholder":
                raise UnsupportedError(
                    f"The step writes the summary {tag!r} of text that comes in with the batch; a step returns numbers only. "
                    "Write it in the script's own loop, or in a callback."
                )
            operations[tensor.op.name] = tensor.op
            waiting.extend(tensor.op.inputs)
    return list(operations.values()), list(numbers.values())
