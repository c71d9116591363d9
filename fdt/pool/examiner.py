"""Examines clients' programs for admission in a separate process.

So a large program neither delays the pool's other calls nor leaves memory allocated in the pool. The process examines
one program at a time. Its standard input is a socket that receives the descriptor of each program's file; on its standard
output it writes the error that it found, if any. It has limits of memory and time and a worker's sandbox, opens no files, ends
with the pool, and does not import TensorFlow.
"""

import concurrent.futures
import contextlib
import json
import os
import resource
import select
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fdt.base import interpreter
from fdt.base.failure import named
from fdt.base.lifetime import die_with
from fdt.errors import CapacityError, FdtError, ProgramRefusedError, ProtocolError
from fdt.program import admission
from fdt.program.operations import DECODERS
from fdt.transport.blob_store import BlobStore
from fdt.transport.blobs import describe
from fdt.v1 import blobs_pb2
from fdt.worker.sandbox import Reach, raise_walls

# A program of a million nodes takes about ten seconds on an idle core, an ordinary one some milliseconds.
LIMIT_S = 20.0
# The longest time that a program may wait for the programs before it.
QUEUE_S = 60.0
# The largest admitted program is in memory three times: as received, with its graph split off, and with the graph decoded.
MEMORY_BYTES = 2 << 30
# A process that has used more memory than this is replaced, since Python seldom returns memory to the system.
_KEPT_BYTES = 256 << 20
_STOP_S = 3.0
# What stands beside a descriptor: what the program is.
_OF_STEPS, _OF_ROWS = b"s", b"r"


class Examiner:
    """Passes programs to the process.

    One thread, which lives as long as this object, starts the process: the kernel ends a process with the thread that
    started it.
    """

    def __init__(self, limit_s: float = LIMIT_S, admitted: Sequence[str] = ()) -> None:
        """Starts the process without waiting for it.

        Args:
            limit_s: The most seconds that the process may take for one program.
            admitted: Operations that the operator admits in addition to those that every pool admits.
        """
        self._limit_s, self._admitted = limit_s, admitted
        self._process: subprocess.Popen[bytes] | None = None
        self._orders: socket.socket | None = None
        self._closed = False
        self._thread = concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="fdt-examiner")
        self._thread.submit(self._running)

    def examine(self, store: BlobStore, ref: blobs_pb2.BlobRef, of_rows: bool = False) -> None:
        """Examines a program in the store; returns if the pool admits it.

        Args:
            store: The store.
            ref: The program.
            of_rows: Whether it is the function of a row, which may read formats of files.

        Raises:
            ProgramRefusedError: The pool does not admit the program.
            ProtocolError: The blob is not a program, or its name is not a digest of its content.
            CapacityError: The programs before it took longer than `QUEUE_S`.
        """
        if not store.is_lasting(ref):
            raise ProtocolError(
                f"A program's blob must be named by the SHA-256 of its bytes, so that it cannot change after its examination. "
                f"Received: {describe(ref)}"
            )
        asked = self._thread.submit(self._ask, store.path(ref), of_rows)
        try:
            answer = asked.result(QUEUE_S)
        except concurrent.futures.TimeoutError:
            asked.cancel()
            raise CapacityError(
                f"The pool has many programs to examine, and did not begin with this one within {QUEUE_S:g} s. Try again later."
            ) from None
        if "error" in answer:
            raise named(answer["error"], answer["message"])

    def close(self) -> None:
        """Ends the process, even while it examines a program."""
        self._closed = True
        process = self._process
        if process is not None:
            process.kill()
        self._thread.shutdown(cancel_futures=True)
        self._end()

    def _ask(self, path: Path, of_rows: bool) -> dict[str, Any]:
        process = self._running()
        assert self._orders is not None and process.stdout is not None
        try:
            with open(path, "rb", buffering=0) as program, contextlib.suppress(BrokenPipeError, ConnectionResetError):
                socket.send_fds(self._orders, [_OF_ROWS if of_rows else _OF_STEPS], [program.fileno()])
        except OSError as error:
            raise ProtocolError(f"The pool cannot read the program: {error}") from error
        line = _read_line(process.stdout.fileno(), self._limit_s)
        answer = json.loads(line) if line else _no_answer(self._limit_s)
        if not line or answer["peak_bytes"] > _KEPT_BYTES:
            self._end()
            if not self._closed:
                self._running()
        return answer

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None or self._process.poll() is not None:
            self._end()
            self._orders, theirs = socket.socketpair()
            with theirs:
                self._process = subprocess.Popen(
                    interpreter.of_module("fdt.pool.examiner", str(os.getpid()), *self._admitted),
                    stdin=theirs.fileno(),
                    stdout=subprocess.PIPE,
                    start_new_session=True,
                )
        return self._process

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.communicate(timeout=_STOP_S)
        if self._orders is not None:
            self._orders.close()


def _no_answer(limit_s: float) -> dict[str, Any]:
    message = (
        f"Examining the program took more than {limit_s:g} s or {MEMORY_BYTES >> 20} MiB, far more than an ordinary program. "
        f"Hand large tensors over as data or as variables, and write loops of many steps as `tf.while_loop`s."
    )
    return {"error": ProgramRefusedError.__name__, "message": message}


def _read_line(descriptor: int, limit_s: float) -> bytes:
    """Returns a line; b"" if its writer ended or took too long."""
    # Not `select.select`, which accepts no descriptors above 1023.
    readable = select.poll()
    readable.register(descriptor, select.POLLIN)
    line, end_s = b"", time.monotonic() + limit_s
    while not line.endswith(b"\n"):
        left_s = end_s - time.monotonic()
        if left_s <= 0 or not readable.poll(left_s * 1000):
            return b""
        chunk = os.read(descriptor, 1 << 16)
        if not chunk:
            return b""
        line += chunk
    return line


def _look(program: int, admitted: Sequence[str]) -> dict[str, Any]:
    try:
        with open(program, "rb", buffering=0) as file:
            admission.examine(file.readall(), admitted)
    except FdtError as error:
        return {"error": type(error).__name__, "message": str(error)}
    except MemoryError:
        return _no_answer(LIMIT_S)
    return {}


def _peak_bytes() -> int:
    # Not `getrusage`: its peak includes that of the process from which this one was forked.
    status = Path("/proc/self/status").read_text()
    return next((int(line.split()[1]) << 10 for line in status.splitlines() if line.startswith("VmHWM:")), 0)


def main() -> None:
    """Examines each program whose descriptor comes on standard input, until standard input ends."""
    die_with(int(sys.argv[1]))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    # The pool reports at its start which parts of the sandbox this system cannot set up.
    raise_walls(Reach())
    orders = socket.socket(fileno=sys.stdin.fileno())
    while True:
        kind, descriptors, _, _ = socket.recv_fds(orders, 1, 1)
        if not descriptors:
            return
        answer = _look(descriptors[0], [*sys.argv[2:], *(DECODERS if kind == _OF_ROWS else ())])
        answer["peak_bytes"] = _peak_bytes()
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
