"""Forks worker processes from one process that has imported an engine's module.

TensorFlow takes seconds of a core to import. It is imported once, before any thread or device exists; workers that are forked
afterwards have it, and share its memory until they write to it.

Requests are JSON messages on standard input, a socket that keeps their boundaries:

- `{"start": name, "environment", "log", "reach", "walls", "bounds", "direct"}`: additions to the environment, the file for the
  worker's output, what it may reach (`sandbox.Reach`), whether it is sandboxed, its bounds (`worker_bounds.Bounds`), and
  whether the client may connect to it (`fdt.transport.direct`). The message carries a pipe with the worker's secret, which only
  the worker reads.
- `{"signal": number, "name"}`: the signal to send to a worker.

Reports are JSON lines on standard output:

- `{"started": name, "pid"}`;
- `{"exited": name, "status", "over"}`: the exit status, negative for a signal's number, and the bound that the worker exceeded;
- `{}`: a heartbeat, sent regularly once the engine is imported.

At the end of standard input the process kills its workers and ends.
"""

import contextlib
import functools
import gc
import importlib
import json
import os
import selectors
import signal
import socket
import sys
import time
from pathlib import Path
from typing import Any

from fdt.base.gpus import has_gpu_devices
from fdt.base.lifetime import die_with
from fdt.base.sampler import keep_network
from fdt.base.worker_bounds import LOOK_S, Bounds, Watch
from fdt.transport.direct import Listener
from fdt.worker import network_namespace, sandbox
from fdt.worker.gateway import Gateway
from fdt.worker.log_file import Log
from fdt.worker.main import work
from fdt.worker.network_namespace import Network
from fdt.worker.shared_memory import Memories, pair

ENGINE = "FDT_FORKSERVER_ENGINE"
PARENT = "FDT_FORKSERVER_PARENT"
NETWORK = "FDT_FORKSERVER_NETWORK"
# Seconds between two heartbeats.
BEAT = "FDT_FORKSERVER_BEAT"
# The most bytes of one request, which holds paths and settings: some thousand bytes.
MAX_ORDER_BYTES = 1 << 17
# Packages that TensorFlow imports if they are installed, but graphs do not need. Their import takes as long as TensorFlow's.
NOT_NEEDED = ("keras", "tf_keras")
# The shell's exit status for a program that cannot be run.
_NOT_STARTED = 126
# `oom_score_adj`, in thousandths of the machine's memory: the kernel counts a worker as if it used half of it in addition.
_FIRST_TO_END = "500"


class ForkServer:
    """Forks workers and reaps them. One thread: a fork copies only the thread that calls it."""

    def __init__(self, engine: type, network: Network, beat_s: float) -> None:
        self._engine, self._network, self._beat_s = engine, network, beat_s
        self._beat_due_s = 0.0
        self._libraries = _descriptors()
        self._workers: dict[int, str] = {}
        self._logs: dict[int, Log] = {}
        self._watches: dict[int, Watch] = {}
        # By process, the bound for which a worker was killed.
        self._over: dict[int, str] = {}
        self._readable = selectors.PollSelector()
        self._wake, wake = os.pipe()
        for descriptor in (self._wake, wake):
            os.set_blocking(descriptor, False)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self._open = True
        self._readable.register(0, selectors.EVENT_READ, self._read)
        self._readable.register(self._wake, selectors.EVENT_READ, self._woken)
        self._memories = Memories(self._readable)

    def serve(self) -> None:
        """Executes the requests on standard input, and logs the workers' output, until standard input ends."""
        while self._open:
            for key, _ in self._readable.select(LOOK_S if self._watches else self._beat_s):
                # The handler of an earlier event may have closed this descriptor.
                if self._readable.get_map().get(key.fd) is key:
                    key.data()
            self._look()
            self._beat()
        self._end()

    def _beat(self) -> None:
        if time.monotonic() >= self._beat_due_s:
            self._beat_due_s = time.monotonic() + self._beat_s
            self._tell()

    def _look(self) -> None:
        for pid, watch in self._watches.items():
            over = watch.over()
            if over and pid not in self._over:
                self._over[pid] = over
                self._signal(self._workers[pid], signal.SIGKILL)

    def _printed(self, log: Log) -> None:
        if not log.read():
            self._readable.unregister(log.reader)

    def _woken(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self._wake, 4096)
        self._reap()

    def _end(self) -> None:
        """Kills and reaps the remaining workers, so that no process of the pool outlives this one."""
        for pid in self._workers:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
                os.killpg(pid, signal.SIGKILL)
        for pid in self._workers:
            os.waitpid(pid, 0)

    def _read(self) -> None:
        orders = socket.socket(fileno=0)
        try:
            raw, descriptors, _, _ = socket.recv_fds(orders, MAX_ORDER_BYTES, 1)
        finally:
            orders.detach()
        self._open = bool(raw)
        request = json.loads(raw or b"{}")
        if "start" in request:
            (secret,) = descriptors
            self._start(request, secret)
            os.close(secret)
        elif "signal" in request:
            self._signal(request["name"], request["signal"])

    def _start(self, request: dict[str, Any], secret: int) -> None:
        server, log = os.getpid(), None
        own, theirs = pair()
        try:
            log = Log(Path(request["log"]))
            pid = os.fork()
        except OSError as error:
            own.close()
            theirs.close()
            if log is not None:
                os.close(log.writer)
                log.close()
            why = f"fdt: no process could be started: {error}. Look at the limits of processes and open files (ulimit -u, -n)."
            self._tell(exited=request["start"], status=_NOT_STARTED, why=why)
            return
        if pid:
            os.close(log.writer)
            theirs.close()
            self._memories.connect(pid, own)
            self._logs[pid] = log
            self._readable.register(log.reader, selectors.EVENT_READ, functools.partial(self._printed, log))
            self._workers[pid] = request["start"]
            self._watch(pid, request)
            self._tell(started=request["start"], pid=pid)
            return
        status = 1
        try:
            die_with(server)
            gateway, listener = self._become_worker(request, {secret, theirs.fileno()}, log.writer)
            # Once attached to the pool, the worker must connect to no other program.
            attached = sandbox.shut_door if request["walls"] else lambda: None
            work(self._engine, secret, attached, gateway, theirs, listener)
            status = 0
        except BaseException:  # the child must never return into the server's loop
            sys.excepthook(*sys.exc_info())
        finally:
            with contextlib.suppress(Exception):
                sys.stderr.flush()
            os._exit(status)

    def _watch(self, pid: int, request: dict[str, Any]) -> None:
        bounds, may_fork = Bounds(**request["bounds"]), has_gpu_devices() or not request["walls"]
        self._watches[pid] = Watch(pid, Path(request["reach"]["folder"]), bounds, may_fork=may_fork)

    def _become_worker(
        self, request: dict[str, Any], kept: set[int], output: int
    ) -> tuple[Gateway | None, Listener | None]:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.setsid()
        null = os.open(os.devnull, os.O_RDONLY)
        for source, target in ((null, 0), (output, 1), (output, 2)):
            os.dup2(source, target)
        # Closes the server's descriptors: its requests, its messages to the pool, other workers' output. Those that libraries
        # opened stay: TensorFlow reads random numbers from a descriptor, whose number would soon be reused.
        for descriptor in _descriptors() - self._libraries - kept:
            with contextlib.suppress(OSError):
                os.close(descriptor)
        for name in (ENGINE, PARENT, NETWORK, BEAT):
            del os.environ[name]
        # Starts the tunnel in the machine's network, before this process has read its secret, which a tunnel must not have.
        gateway = Gateway.start() if self._network is Network.TUNNEL else None
        if self._network in (Network.OWN, Network.TUNNEL):
            network_namespace.isolate()
        os.environ.update(request["environment"])
        # If memory runs out, the kernel then kills a worker, not the pool or another program.
        with contextlib.suppress(OSError):
            Path("/proc/self/oom_score_adj").write_text(_FIRST_TO_END)
        reach = sandbox.Reach.from_fields(request["reach"])
        listener = _listener(reach.folder) if request["direct"] else None
        # Entered last: the steps above need rights that a worker must not have.
        if request["walls"]:
            raised = sandbox.raise_walls(reach)
            for wall in raised.missing:
                print(f"fdt worker: not walled in: {wall.name}: {wall.by}", file=sys.stderr, flush=True)
        else:
            sandbox.settle(reach.folder)
        return gateway, listener

    def _signal(self, name: str, number: int) -> None:
        for pid, worker in self._workers.items():
            if worker == name:
                # The worker is not reaped yet, so its ID is not reused. The group has the processes that it started, too.
                with contextlib.suppress(ProcessLookupError):
                    try:
                        os.killpg(pid, number)
                    except ProcessLookupError:
                        os.kill(pid, number)

    def _reap(self) -> None:
        for pid in list(self._workers):
            # Does not reap the worker yet: its group, with the processes that it started, is killed first.
            if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is None:
                continue
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, signal.SIGKILL)
            _, status = os.waitpid(pid, 0)
            name, over = self._workers.pop(pid), self._over.pop(pid, "")
            self._watches.pop(pid, None)
            self._memories.forget(pid)
            # Completes the log before the pool learns of the end and reads it.
            self._finish(self._logs.pop(pid))
            self._tell(exited=name, status=os.waitstatus_to_exitcode(status), over=over)

    def _finish(self, log: Log) -> None:
        if log.reader in self._readable.get_map():
            self._readable.unregister(log.reader)
        log.close()

    def _tell(self, **message: object) -> None:
        print(json.dumps(message), flush=True)


def _listener(folder: Path | None) -> Listener | None:
    """Returns where the client may connect; None if it cannot, and then speaks to the pool alone."""
    try:
        return None if folder is None else Listener(folder)
    except OSError as error:
        print(f"fdt worker: the client cannot connect to it: {error}", file=sys.stderr, flush=True)
        return None


def _descriptors() -> set[int]:
    """Returns this process's open descriptors, except standard input, output and error."""
    found = set()
    for number in {int(name) for name in os.listdir("/dev/fd")} - {0, 1, 2}:
        # The listing contains its own descriptor, which is closed by now.
        with contextlib.suppress(OSError):
            os.fstat(number)
            found.add(number)
    return found


def main() -> None:
    """Imports the engine, then serves."""
    die_with(int(os.environ[PARENT]))
    network = Network(os.environ[NETWORK])
    keep_network()
    if network is Network.SHARED:
        # Now, while there is only one thread. The fork server itself needs no network.
        network_namespace.isolate()
    for needless in NOT_NEEDED:
        # Python then treats the package as not installed.
        sys.modules[needless] = None  # type: ignore[assignment]
    module, _, name = os.environ[ENGINE].partition(":")
    # Output of the import must not mix with the reports.
    lines = os.dup(1)
    os.dup2(2, 1)
    engine = getattr(importlib.import_module(module), name)
    os.dup2(lines, 1)
    os.close(lines)
    # Computed here once: workers inherit the cached result.
    sandbox.python_folders()
    # Excludes imported modules from garbage collection in workers, which would write to, and so copy, their pages.
    gc.collect()
    gc.freeze()
    ForkServer(engine, network, float(os.environ[BEAT])).serve()
    # Workers have ended and all reports are sent. A normal exit would spend half a second of a core on TensorFlow's modules.
    os._exit(0)


if __name__ == "__main__":
    main()
