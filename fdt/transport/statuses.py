"""Converts errors to gRPC's statuses and back."""

import contextlib
from collections.abc import Iterator
from typing import Any

import grpc

from fdt import errors
from fdt.base import failure
from fdt.base.printable import printable_lines
from fdt.errors import AccessError, FdtError, PoolError, PoolUnreachableError, ProtocolError, UsageError

Metadata = tuple[tuple[str, str | bytes], ...]

_ERROR_KEY = "fdt-error"
# A status travels in a header, percent-encoded, and gRPC drops calls with headers above 8 KiB.
_MAX_STATUS_BYTES = 2000

# The status with which each error is sent. A status from elsewhere (gRPC itself, a proxy) is converted by `FOREIGN_STATUS`.
STATUS: dict[type[FdtError], grpc.StatusCode] = {
    UsageError: grpc.StatusCode.INVALID_ARGUMENT,
    errors.UnsupportedError: grpc.StatusCode.UNIMPLEMENTED,
    errors.NativeError: grpc.StatusCode.FAILED_PRECONDITION,
    errors.NoCompilerError: grpc.StatusCode.FAILED_PRECONDITION,
    errors.RunError: grpc.StatusCode.FAILED_PRECONDITION,
    PoolUnreachableError: grpc.StatusCode.UNAVAILABLE,
    errors.PoolRestartingError: grpc.StatusCode.UNAVAILABLE,
    AccessError: grpc.StatusCode.UNAUTHENTICATED,
    errors.VersionError: grpc.StatusCode.FAILED_PRECONDITION,
    errors.CapacityError: grpc.StatusCode.RESOURCE_EXHAUSTED,
    errors.ProgramRefusedError: grpc.StatusCode.PERMISSION_DENIED,
    errors.WorkerLostError: grpc.StatusCode.ABORTED,
    errors.WorkerError: grpc.StatusCode.ABORTED,
    errors.JobCancelledError: grpc.StatusCode.CANCELLED,
    ProtocolError: grpc.StatusCode.INVALID_ARGUMENT,
}

# The error for a status that none of our servers sent: it is from gRPC itself, a proxy, or a server that is no pool.
FOREIGN_STATUS: dict[grpc.StatusCode, type[FdtError]] = {
    grpc.StatusCode.CANCELLED: errors.JobCancelledError,
    grpc.StatusCode.UNKNOWN: PoolError,
    grpc.StatusCode.INVALID_ARGUMENT: ProtocolError,
    grpc.StatusCode.DEADLINE_EXCEEDED: PoolUnreachableError,
    grpc.StatusCode.NOT_FOUND: PoolError,
    grpc.StatusCode.ALREADY_EXISTS: PoolError,
    grpc.StatusCode.PERMISSION_DENIED: AccessError,
    grpc.StatusCode.RESOURCE_EXHAUSTED: errors.CapacityError,
    grpc.StatusCode.FAILED_PRECONDITION: PoolError,
    grpc.StatusCode.ABORTED: PoolError,
    grpc.StatusCode.OUT_OF_RANGE: ProtocolError,
    grpc.StatusCode.UNIMPLEMENTED: errors.VersionError,
    grpc.StatusCode.INTERNAL: PoolError,
    grpc.StatusCode.UNAVAILABLE: PoolUnreachableError,
    grpc.StatusCode.DATA_LOSS: PoolError,
    grpc.StatusCode.UNAUTHENTICATED: AccessError,
}


def to_status(error: FdtError) -> tuple[grpc.StatusCode, str, Metadata]:
    """Returns the status code, text and trailing metadata that represent an error."""
    code = next((STATUS[base] for base in type(error).__mro__ if base in STATUS), None)
    return (code or grpc.StatusCode.UNKNOWN, str(error), ((_ERROR_KEY, type(error).__name__),))


def from_rpc_error(error: grpc.RpcError, address: str = "") -> FdtError:
    """Returns the error that a failed call stands for, and frees the call.

    gRPC's error is the call itself. With its traceback it forms a reference cycle, which the garbage collector might free only
    at the end of the interpreter, when a thread of gRPC that held the call's lock no longer runs.
    """
    error.__traceback__ = None
    call: Any = error
    code = call.code() if hasattr(call, "code") else grpc.StatusCode.UNKNOWN
    text = (call.details() if hasattr(call, "details") else "") or str(error)
    for key, value in (call.trailing_metadata() if hasattr(call, "trailing_metadata") else None) or ():
        if key == _ERROR_KEY:
            return failure.named(str(value), text)
    place = f" (pool at {address})" if address else ""
    return FOREIGN_STATUS.get(code, PoolError)(f"{printable_lines(text)} [{code.name}]{place}")


@contextlib.contextmanager
def translated(address: str = "") -> Iterator[None]:
    """Turns gRPC's errors into ours."""
    try:
        yield
    except grpc.RpcError as error:
        raise from_rpc_error(error, address) from error
    except grpc.FutureCancelledError as error:
        raise PoolUnreachableError("The pool stopped taking or giving data; the transfer was given up.") from error
    except grpc.FutureTimeoutError as error:
        raise PoolUnreachableError("The pool did not answer in time.") from error


def abort(context: grpc.ServicerContext, error: FdtError) -> None:
    """Ends a call with an error's status."""
    code, text, trailing = to_status(error)
    text = text.encode(errors="replace")[:_MAX_STATUS_BYTES].decode(errors="ignore")
    context.set_trailing_metadata(trailing)
    context.abort(code, text)
