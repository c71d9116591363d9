"""Starts and signals worker processes through fork servers, and reports their ends. No worker outlives the pool."""

import contextlib
import dataclasses
import json
import os
import re
import select
import shutil
import signal
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from fdt.base import interpreter
from fdt.base.config import WORKERS, Timing
from fdt.base.worker_bounds import UNBOUNDED, Bounds
from fdt.errors import ProtocolError
from fdt.worker.environment import passed
from fdt.worker.forkserver import BEAT, ENGINE, NETWORK, PARENT
from fdt.worker.network_namespace import Network
from fdt.worker.sandbox import Reach

# How much of a log's end is searched for its last line.
_TAIL_BYTES = 64 * 1024
# The first line that `faulthandler` writes when a process crashes; the stacks follow, that of the crashed thread first.
_CRASH = "Fatal Python error"
_CRASH_LINES = 60
# Lines that TensorFlow, its libraries and FDT write to every log, and that never explain a crash.
_NOISE = re.compile(
    r"(\d{4}-\d\d-\d\d )?\d\d:\d\d:\d\d\.\d+: [IW] |[IW]\d{4} |W0000 |WARNING:|INFO:|fdt worker: |\(on host "
    r"|To enable the following instructions|Instructions for updating|This API was designed for TensorFlow v1"
    r"|.*(Unable to register cu|failed call to cuInit|[Cc]ould not find cuda drivers|TF-TRT Warning)"
)
# A line of /proc/vmstat.
_OOM_KILLS = "oom_kill "
# glibc reads these before main(), so they are set for the fork server, not for each worker.
_TUNABLES, _HUGE_PAGES = "GLIBC_TUNABLES", "glibc.malloc.hugetlb"


class Processes:
    """Workers by name, forked by one fork server for each engine. Each worker has a session of its own and a log file."""

    def __init__(
        self,
        on_exit: Callable[[str, int, str], None],
        directory: Path,
        timing: Timing,
        *,
        walls: bool = True,
        bounds: Bounds = UNBOUNDED,
    ) -> None:
        """
        Args:
            on_exit: Called from a reading thread with the name, the exit status (negative: a signal's number), and the bound
                that the worker exceeded ("" for none).
            directory: For the workers' folders and the fork servers' logs.
            timing: A process has `stop_s` to end; a fork server that is silent for `heartbeat_limit_s` is killed with its
                workers.
            walls: Whether workers are sandboxed; see `fdt.worker.sandbox`.
            bounds: The bounds of each worker.
        """
        self._on_exit, self._walls, self._bounds = on_exit, walls, dataclasses.asdict(bounds.here())
        self._directory = directory
        self._timing = timing
        self._lock = threading.Lock()
        self._servers: dict[str, _Server] = {}

    def folder(self, name: str) -> Path:
        """Returns a worker's own folder, which exists while the worker runs.

        Raises:
            ProtocolError: The name, which may come from a remote pool, is not a valid folder name.
        """
        if name in ("", ".", "..") or "/" in name:
            raise ProtocolError(f"A worker's name must be a folder's name. Received: worker={name[:100]!r}")
        return self._directory / WORKERS / name

    def start(
        self,
        name: str,
        engine: str,
        network: Network,
        environment: Mapping[str, str],
        secret: str,
        log: Path,
        *,
        reads: tuple[Path, ...] = (),
        writes: tuple[Path, ...] = (),
        direct: bool = False,
    ) -> None:
        """Starts a worker with an engine ("module:Class").

        Args:
            name: The worker's name.
            engine: The engine that it drives.
            network: The network that it sees; the same for all workers of an engine.
            environment: Additions to its fork server's environment; see `fdt.worker.environment`.
            secret: The secret to attach with, which only this worker gets.
            log: The file for its output.
            reads: Files and folders that it may read.
            writes: Folders, besides its own, in which it may keep files.
            direct: Whether whoever may enter its folder may connect to it; see `fdt.transport.direct`.

        Raises:
            OSError: The folder cannot be made, or the process not started.
        """
        folder = self.folder(name)
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with self._lock:
            server = self._servers.get(engine)
            if server is None or not server.alive:
                server = self._servers[engine] = _Server(engine, network, self._directory, self._ended, self._timing)
        reach = Reach(folder, reads, writes)
        start = {
            "environment": dict(environment),
            "reach": reach.fields(),
            "walls": self._walls,
            "bounds": self._bounds,
            "direct": direct,
        }
        server.start(name, start, secret, log)

    def terminate(self, name: str) -> None:
        """Asks a worker's process to end."""
        self.signal(name, signal.SIGTERM)

    def kill(self, name: str) -> None:
        """Kills a worker's process and all processes that it has started."""
        self.signal(name, signal.SIGKILL)

    def signal(self, name: str, number: int) -> None:
        """Sends a signal to a worker's process and all processes that it has started."""
        with self._lock:
            servers = list(self._servers.values())
        for server in servers:
            server.signal(name, number)

    def pid(self, name: str) -> int | None:
        """Returns a worker's process ID; None before it has started and after it has ended."""
        with self._lock:
            servers = list(self._servers.values())
        return next((pid for pid in (server.pid(name) for server in servers) if pid is not None), None)

    def close(self) -> None:
        """Kills the remaining processes and waits for their end."""
        with self._lock:
            servers = list(self._servers.values())
        for server in servers:
            server.close()

    def _ended(self, name: str, status: int, over: str) -> None:
        """Removes a worker's folder, then reports its end."""
        folder = self.folder(name)
        with contextlib.suppress(OSError):
            # The worker may have changed the folder's mode.
            folder.chmod(0o700)
            # At once: who still takes a blob of it finds it there, or finds the folder gone.
            folder = folder.rename(folder.with_name(f"{folder.name}.ended"))
        shutil.rmtree(folder, ignore_errors=True)
        self._on_exit(name, status, over)


class _Server:
    """One fork server process, and the thread that reads its messages."""

    def __init__(
        self,
        engine: str,
        network: Network,
        directory: Path,
        on_exit: Callable[[str, int, str], None],
        timing: Timing,
    ) -> None:
        self._on_exit = on_exit
        self._timing = timing
        self._log = directory / f"{engine.replace(':', '.')}.log"
        self._directory = directory
        self._lock = threading.Lock()
        self._workers: dict[str, Path] = {}
        self._pids: dict[str, int] = {}
        self.alive = True
        # A socket with message boundaries, since each descriptor belongs to one message.
        self._orders, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = self._spawn(engine, network, theirs)
        self._thread = threading.Thread(target=self._read, name=f"fdt-forks-{engine}", daemon=True)
        self._thread.start()

    def _spawn(self, engine: str, network: Network, orders: socket.socket) -> subprocess.Popen[bytes]:
        beat = str(self._timing.heartbeat_s)
        own = {ENGINE: engine, PARENT: str(os.getpid()), NETWORK: network.value, BEAT: beat}
        with open(self._log, "ab", buffering=0) as log:
            return subprocess.Popen(
                interpreter.of_module("fdt.worker.forkserver"),
                env={
                    "GRPC_VERBOSITY": "NONE",
                    **passed(os.environ),
                    _TUNABLES: with_huge_pages(os.environ.get(_TUNABLES, "")),
                    **own,
                },
                cwd=self._directory,
                stdin=orders.fileno(),
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
            )

    def start(self, name: str, start: Mapping[str, object], secret: str, log: Path) -> None:
        with self._lock:
            self._workers[name] = log
            dead = not self.alive
        if dead:
            self._ended(name, self._process.returncode or 1)
        # Passed by a pipe that the fork server does not read: all workers inherit what is in its memory.
        reader, writer = os.pipe()
        try:
            with open(writer, "w", encoding="ascii") as pipe:
                pipe.write(secret)
            self._send({"start": name, "log": str(log), **start}, reader)
        finally:
            os.close(reader)

    def signal(self, name: str, number: int) -> None:
        with self._lock:
            known = name in self._workers
        if known:
            self._send({"signal": int(number), "name": name})

    def close(self) -> None:
        """Ends the server; its workers end with it."""
        for name in list(self._workers):
            self.signal(name, signal.SIGKILL)
        self._orders.close()
        try:
            self._process.wait(self._timing.stop_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
        self._thread.join(self._timing.stop_s)

    def pid(self, name: str) -> int | None:
        return self._pids.get(name)

    def _send(self, request: Mapping[str, object], *descriptors: int) -> None:
        # If the server is gone, the reading thread notices it.
        with self._lock, contextlib.suppress(OSError):
            socket.send_fds(self._orders, [json.dumps(request).encode()], descriptors)

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as said:
            for line in self._lines(said.fileno()):
                message = json.loads(line)
                if "started" in message:
                    self._pids[message["started"]] = message["pid"]
                elif "exited" in message:
                    if "why" in message:
                        self._note(message["exited"], message["why"])
                    self._ended(message["exited"], message["status"], message.get("over", ""))
        status = self._process.wait()
        with self._lock:
            self.alive = False
            lost = dict(self._workers)
            self._orders.close()
        for name in lost:
            # The cause is in the server's log: it could not import the engine, for example.
            self._note(name, last_words(self._log))
            self._ended(name, status or 1)

    def _lines(self, output: int) -> Iterator[bytes]:
        """Yields the server's lines until it ends. Kills it if it is silent too long; before its first line, it imports."""
        # Not `select.select`, which takes no descriptors above 1023.
        readable, limit_s, rest = select.poll(), None, b""
        readable.register(output, select.POLLIN)
        while True:
            if not readable.poll(None if limit_s is None else 1000 * limit_s):
                with contextlib.suppress(OSError), open(self._log, "a") as log:
                    log.write(
                        f"fdt: the process that forks workers was silent for {limit_s:.0f} s and was ended with them\n"
                    )
                self._process.kill()
                limit_s = None
                continue
            chunk = os.read(output, 1 << 16)
            if not chunk:
                return
            *lines, rest = (rest + chunk).split(b"\n")
            yield from lines
            limit_s = self._timing.heartbeat_limit_s

    def _note(self, name: str, line: str) -> None:
        """Adds a line to the log of a worker that has ended."""
        with contextlib.suppress(OSError, KeyError), open(self._workers[name], "a") as output:
            output.write(line + "\n")

    def _ended(self, name: str, status: int, over: str = "") -> None:
        with self._lock:
            known = self._workers.pop(name, None) is not None
            self._pids.pop(name, None)
        if known:
            self._on_exit(name, status, over)


def with_huge_pages(tunables: str) -> str:
    """Adds huge pages for malloc to glibc's tunables, unless these set or forbid them.

    Parameters and gradients are vectors of megabytes, and every step allocates new ones; with pages of 4 KB, page tables take a
    good part of a step's time. A glibc older than 2.35 ignores the setting.
    """
    if any(tunable.split("=")[0] == _HUGE_PAGES for tunable in tunables.split(":")):
        return tunables
    return ":".join(filter(None, [tunables, f"{_HUGE_PAGES}=1"]))


def oom_kills() -> int:
    """Returns how many processes this machine's kernel has killed because memory ran out; 0 if that is unknown."""
    with contextlib.suppress(OSError, ValueError), open("/proc/vmstat") as file:
        return next(int(line.removeprefix(_OOM_KILLS)) for line in file if line.startswith(_OOM_KILLS))
    return 0


def last_words(log: Path) -> str:
    """Returns the end of a log that may explain a process's end; '' if there is none.

    That is the last line that is neither empty nor in every log; after a crash, the threads' Python stacks.
    """
    try:
        with open(log, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _TAIL_BYTES))
            lines = file.read().decode(errors="replace").split("\n")
    except OSError:
        return ""
    lines = [line for line in lines if not _NOISE.match(line)]
    crash = next((n for n, line in enumerate(lines) if line.startswith(_CRASH)), None)
    if crash is None:
        return next((line.strip() for line in reversed(lines) if line.strip()), "")
    end = next((n for n in range(crash, len(lines)) if lines[n].startswith("Extension modules")), len(lines))
    return "\n".join(lines[crash : min(end, crash + _CRASH_LINES)]).strip()
