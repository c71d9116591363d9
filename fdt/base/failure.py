"""Converts a worker's exception into a message, and the message into an exception for the script."""

import traceback
from pathlib import Path

from fdt.base.printable import printable_lines
from fdt.errors import FailedStep, FdtError, JobError, StepError, WorkerError, WorkerLostError
from fdt.v1 import job_pb2

# The most characters of an error that are sent: some errors quote a tensor.
MAX_FAILURE = 32 * 1024
# TensorFlow's codes of errors that a step's operations raise because of their inputs, and that name the operation: invalid
# argument, resource exhausted, failed precondition, out of range, data loss. Other codes mean that a worker or a connection
# between workers failed, or that the step could not be built.
_OF_A_STEP = (3, 8, 9, 11, 15)
_NAMES_OPERATION = "{{node "


def described(error: Exception, rank: int, time_s: float, made: int, given: int) -> job_pb2.Failed:
    """Returns a worker's message about an exception.

    Args:
        error: The exception.
        rank: The worker's rank.
        time_s: When it was raised, in seconds since the epoch.
        made: How many steps the worker had made.
        given: How many steps it had begun.
    """
    step, code = None, getattr(error, "error_code", None)
    if isinstance(error, FdtError):
        name, message = type(error).__name__, str(error)
    elif (of_row := getattr(error, "step_code", None)) is not None and given > made:
        name, message = StepError.__name__, str(error)
        step = job_pb2.FailedStep(code=of_row, before=made, candidates=given - made)
    elif code in _OF_A_STEP and _NAMES_OPERATION in str(error) and given > made:
        name, message = StepError.__name__, str(getattr(error, "message", error))
        step = job_pb2.FailedStep(code=code, before=made, candidates=given - made)
    else:
        frame = (traceback.extract_tb(error.__traceback__) or [None])[-1]
        place = f" ({Path(frame.filename).name}:{frame.lineno}, {frame.line})" if frame else ""
        kind = WorkerLostError if _lost_others(error) else WorkerError
        name, message = kind.__name__, f"Rank {rank} failed: {type(error).__name__}: {error}{place}"
    return job_pb2.Failed(error=name, message=message[:MAX_FAILURE], rank=rank, time_s=time_s, step=step)


def _lost_others(error: Exception) -> bool:
    """Whether an engine failed because it has lost the job's other processes."""
    kind, text = type(error).__name__, str(error)
    # TensorFlow has a class for this error; Horovod and Gloo have only texts.
    return kind == "UnavailableError" or (kind == "UnknownError" and ("Horovod" in text or "gloo" in text))


def failed_step(failed: job_pb2.Failed) -> FailedStep | None:
    """Returns the step that a message is about; None if it is about none."""
    step = failed.step
    return FailedStep(step.code, step.before, step.candidates) if failed.HasField("step") else None


def as_error(failed: job_pb2.Failed) -> FdtError:
    """Returns a message as an exception."""
    step = failed_step(failed)
    return named(failed.error, failed.message) if step is None else StepError(printable_lines(failed.message), step)


def named(name: str, message: str) -> FdtError:
    """Returns an error of the class of that name; an unknown name gives a JobError."""
    classes = {c.__name__: c for c in _subclasses(FdtError) if c is not StepError}
    # Made printable here, not where it is shown: Python itself prints the errors that a script does not catch.
    return classes.get(name, JobError)(printable_lines(message))


def _subclasses(base: type[FdtError]) -> list[type[FdtError]]:
    return [base, *(c for direct in base.__subclasses__() for c in _subclasses(direct))]
