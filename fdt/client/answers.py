"""Pending answers of a job: outputs of steps, and state that was drained."""

import dataclasses
from collections.abc import Callable, Sequence

from fdt.client.job_stream import JobStream, Result
from fdt.transport.blobs import Buffer


class StepResult:
    """Outputs of a step that were asked for."""

    def __init__(self, result: Result, wait: Callable[[], None]):
        """A place for outputs that are still to come.

        Args:
            result: It.
            wait: Waits until they have come.
        """
        self._result, self._wait = result, wait

    def ready(self) -> bool:
        """Whether `outputs` would return at once."""
        return self._result.outputs is not None

    def outputs(self) -> Buffer:
        """Waits for them, packed."""
        if self._result.outputs is None:
            self._wait()
        assert self._result.outputs is not None
        return self._result.outputs


class Drain:
    """State that was asked for."""

    def __init__(self, stream: JobStream, serial: int):
        self._stream, self._serial = stream, serial

    def ready(self) -> bool:
        """Whether `result` would return at once."""
        return self._stream.has_drained(self._serial)

    def result(self) -> "Answer":
        """Waits for the answer and fetches what belongs to it."""
        drained, values, outputs = self._stream.answer(self._serial)
        return Answer(drained.state.variables, values, outputs)


@dataclasses.dataclass(frozen=True)
class Answer:
    """State that came.

    Attributes:
        variables: Their indices.
        values: Theirs, packed.
        outputs: Of the last step, packed.
    """

    variables: Sequence[int]
    values: Buffer
    outputs: Buffer
