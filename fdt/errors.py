"""What can go wrong, as a tree.

    FdtError
    ├── UsageError              the command or its options are wrong                    (exit status 2)
    ├── UnsupportedError        the script does something that cannot be distributed    (125)
    ├── NativeError             the C++ operations of a runtime are missing and cannot be compiled        (125)
    ├── RunError                a script that `fdt.run` ran ended with an exit status other than 0
    ├── PoolError               (125)
    │   ├── PoolUnreachableError    no pool answers there
    │   │   └── PoolRestartingError     the pool is restarting
    │   ├── AccessError             wrong or missing token, or a certificate that does not match
    │   ├── VersionError            client and pool have different versions
    │   ├── CapacityError           the pool has too few workers, or its store is full
    │   └── ProgramRefusedError     the program holds an operation that the pool does not admit
    └── JobError                (125)
        ├── StepError               an operation of a step raised an error of TensorFlow's
        ├── WorkerError             a worker failed
        │   └── WorkerLostError         it died, stopped answering, or lost its host or network: the job can be restarted
        ├── JobCancelledError       somebody cancelled the job
        └── ProtocolError           a message that was malformed or not expected

A message says what happened, what was expected and how to fix it. `fdt.transport.rpc` maps the tree to and from gRPC.
"""

import dataclasses
from typing import Any


class FdtError(Exception):
    """Base of all errors of this project."""

    exit_status = 125
    # Asks TensorFlow's autograph to let the error pass as it is, instead of folding a traceback into its message.
    ag_pass_through = True


class UsageError(FdtError):
    """The command or its options are wrong."""

    exit_status = 2


class UnsupportedError(FdtError):
    """The script does something that cannot be distributed; it was stopped before it trained."""


class NativeError(FdtError):
    """The C++ operations of a runtime are missing and cannot be compiled."""


class NoCompilerError(NativeError):
    """This machine has neither the compiled operations nor a compiler."""


class RunError(FdtError):
    """A script ended with an exit status other than 0.

    Attributes:
        result: The `fdt.Result` with its status and report.
    """

    def __init__(self, message: str, result: Any = None):
        super().__init__(message)
        self.result = result


class PoolError(FdtError):
    """The pool cannot take the job."""


class PoolUnreachableError(PoolError):
    """No pool answers at the address."""


class PoolRestartingError(PoolUnreachableError):
    """The pool is restarting and takes no jobs until it has."""


class AccessError(PoolError):
    """The pool does not accept the token or the certificate."""


class VersionError(PoolError):
    """Client and pool have different versions."""


class CapacityError(PoolError):
    """The pool has too few workers, or no room in its store."""


class ProgramRefusedError(PoolError):
    """The program holds an operation that the pool does not admit."""


class JobError(FdtError):
    """The job ended before its script did."""


@dataclasses.dataclass(frozen=True)
class FailedStep:
    """Which step raised an error of TensorFlow's.

    Attributes:
        code: TensorFlow's code of the error.
        before: How many steps had been made since the job began.
        candidates: How many of the steps behind these may be the one that failed.
    """

    code: int
    before: int
    candidates: int


class StepError(JobError):
    """An operation of a step raised an error of TensorFlow's, which the script is told as such.

    Attributes:
        step: Which step.
    """

    def __init__(self, message: str, step: FailedStep):
        super().__init__(message)
        self.step = step


class WorkerError(JobError):
    """A worker failed."""


class WorkerLostError(WorkerError):
    """A worker died, stopped answering, or its host or network is gone. The job can be restarted."""


class JobCancelledError(JobError):
    """The job was cancelled."""


class ProtocolError(JobError):
    """A message was malformed, or not expected at this point."""
