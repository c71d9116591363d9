"""Pending answers of a job: outputs of steps, and state that was drained."""

import dataclasses
import weakref
from collections.abc import Callable, Sequence

from fdt.client.job_stream import JobStream
from fdt.client.step_results import Result
from fdt.transport.blobs import Buffer
from fdt.v1 import job_pb2


class StepResult:
    """The requested outputs of a step."""

    def __init__(self, result: Result, wait: Callable[[], None]):
        """
        Args:
            result: Receives the outputs.
            wait: Waits until it has received them.
        """
        self._result, self._wait = result, wait

    def ready(self) -> bool:
        """Whether `outputs` would return at once."""
        return self._result.outputs is not None

    def outputs(self) -> Buffer:
        """Waits for the outputs; returns them packed."""
        if self._result.outputs is None:
            self._wait()
        assert self._result.outputs is not None
        return self._result.outputs


class Drain:
    """A request for state. Its answer is fetched once; it is given up if waiting fails or this object is deleted."""

    def __init__(self, stream: JobStream, serial: int):
        self._stream, self._serial = stream, serial
        self._give_up = weakref.finalize(self, stream.unwanted.append, serial)
        self._give_up.atexit = False

    def ready(self) -> bool:
        """Whether `result` would return at once."""
        return self._stream.has_drained(self._serial)

    def result(self) -> "Answer":
        """Waits for the answer and fetches its contents."""
        try:
            drained, contents, outputs = self._stream.answer(self._serial)
        except BaseException:
            self._give_up()
            raise
        self._give_up.detach()
        return Answer(drained.state, contents, outputs)


@dataclasses.dataclass(frozen=True)
class Answer:
    """The answer to a drain.

    Attributes:
        state: Describes the variables' values.
        contents: Those of its payloads, in order.
        outputs: Outputs of the last step, packed.
    """

    state: job_pb2.State
    contents: Sequence[Buffer]
    outputs: Buffer
