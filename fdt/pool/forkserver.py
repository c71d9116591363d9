"""Where worker processes come from: one process that has imported an engine's module and forks itself.

TensorFlow takes seconds of a core to import. Imported once, before any thread or device exists, it is there for every
worker that is forked afterwards, and their memory is shared until one of them writes to it.

Protocol, one JSON object a line. On standard input: `{"start": name, "environment", "log"}`, what to add to the environment
and where output goes, and `{"signal": number, "name"}`. On standard output: `{"started": name, "pid"}` and
`{"exited": name, "status"}`, negative for a signal's number. The end of standard input ends the process and its workers.
"""

import contextlib
import importlib
import json
import os
import select
import signal
import sys
from typing import Any

from fdt.pool.worker import die_with, work

ENGINE = "FDT_FORKSERVER_ENGINE"
PARENT = "FDT_FORKSERVER_PARENT"


class ForkServer:
    """Forks workers and reaps them. One thread: a fork copies only the thread that calls it."""

    def __init__(self, engine: type) -> None:
        self._engine = engine
        self._workers: dict[int, str] = {}
        self._wake, wake = os.pipe()
        for descriptor in (self._wake, wake):
            os.set_blocking(descriptor, False)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self._input = b""

    def serve(self) -> None:
        """Does what standard input asks for, until it ends."""
        while True:
            readable, _, _ = select.select([0, self._wake], [], [])
            if self._wake in readable:
                with contextlib.suppress(BlockingIOError):
                    os.read(self._wake, 4096)
                self._reap()
            if 0 in readable and not self._read():
                self._end()
                return

    def _end(self) -> None:
        """Kills and reaps what is left, so that nothing of the pool is there when this process is gone."""
        for pid in self._workers:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
                os.killpg(pid, signal.SIGKILL)
        for pid in self._workers:
            os.waitpid(pid, 0)

    def _read(self) -> bool:
        chunk = os.read(0, 1 << 16)
        *lines, self._input = (self._input + chunk).split(b"\n")
        for line in lines:
            request = json.loads(line)
            if "start" in request:
                self._start(request)
            else:
                self._signal(request["name"], request["signal"])
        return bool(chunk)

    def _start(self, request: dict[str, Any]) -> None:
        server = os.getpid()
        pid = os.fork()
        if pid:
            self._workers[pid] = request["start"]
            self._tell(started=request["start"], pid=pid)
            return
        status = 1
        try:
            die_with(server)
            self._become_worker(request)
            work(self._engine)
            status = 0
        except BaseException:  # the child must never return into the server's loop
            sys.excepthook(*sys.exc_info())
        finally:
            with contextlib.suppress(Exception):
                sys.stderr.flush()
            os._exit(status)

    def _become_worker(self, request: dict[str, Any]) -> None:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.setsid()
        null = os.open(os.devnull, os.O_RDONLY)
        log = os.open(request["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        for source, target in ((null, 0), (log, 1), (log, 2)):
            os.dup2(source, target)
        os.close(null)
        os.close(log)
        del os.environ[ENGINE], os.environ[PARENT]
        os.environ.update(request["environment"])

    def _signal(self, name: str, number: int) -> None:
        for pid, worker in self._workers.items():
            if worker == name:
                # Not reaped yet, so the number is still its own; all it has started goes with it.
                with contextlib.suppress(ProcessLookupError):
                    try:
                        os.killpg(pid, number)
                    except ProcessLookupError:
                        os.kill(pid, number)

    def _reap(self) -> None:
        for pid in list(self._workers):
            # Without reaping at first: what the worker has started must not stay behind.
            if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is None:
                continue
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, signal.SIGKILL)
            _, status = os.waitpid(pid, 0)
            name = self._workers.pop(pid)
            self._tell(exited=name, status=os.waitstatus_to_exitcode(status))

    def _tell(self, **message: object) -> None:
        print(json.dumps(message), flush=True)


def main() -> None:
    """Imports the engine, then serves."""
    die_with(int(os.environ[PARENT]))
    module, _, name = os.environ[ENGINE].partition(":")
    # Whatever an import prints must not end up among our lines.
    lines = os.dup(1)
    os.dup2(2, 1)
    engine = getattr(importlib.import_module(module), name)
    os.dup2(lines, 1)
    ForkServer(engine).serve()


if __name__ == "__main__":
    main()
