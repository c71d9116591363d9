"""A pool in a process of its own, `fdt serve`, warm before it is measured."""

import socket
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import processes

START_LIMIT_S = 240.0
IDLE_S = 3.0
# A pool that uses less of one core than this is not warming anything any more.
IDLE_CORES = 0.1


class ServedPool:
    """`with ServedPool(workers=2) as pool:` runs `fdt serve` on loopback for the length of the block."""

    def __init__(
        self, workers: int, mode: str = "sync", options: Sequence[str] = (), folder: Path = processes.ROOT
    ) -> None:
        """Notes what to serve; the packages are those of `folder`."""
        self._workers, self._mode, self._options, self._folder = workers, mode, options, folder
        self.address = f"127.0.0.1:{_free_port()}"

    def __enter__(self) -> Self:
        # What it keeps goes with it.
        self._state = tempfile.TemporaryDirectory()
        options = ["--workers", str(self._workers), "--mode", self._mode, "--state", f"{self._state.name}/pool"]
        self.command = processes.fdt("serve", "--listen", self.address, *options, *self._options)
        self._output = tempfile.TemporaryFile("w+")
        self._process = subprocess.Popen(
            self.command,
            cwd=self._folder,
            env=processes.environment({"PYTHONPATH": str(self._folder)}),
            stdout=self._output,
            stderr=subprocess.STDOUT,
        )
        try:
            self._wait_for_port()
            self.wait_warm()
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stop()

    @property
    def pid(self) -> int:
        return self._process.pid

    def run_options(self) -> list[str]:
        """Returns what makes `fdt run` use this pool."""
        return ["--server", self.address, "--workers", str(self._workers)]

    def pss_bytes(self) -> int:
        """Returns the memory of the server and all its workers, shared pages counted once."""
        return processes.tree_pss_bytes(self.pid)

    def wait_warm(self) -> None:
        """Waits until the pool has its processes and does nothing: its workers have imported TensorFlow."""
        deadline = time.monotonic() + START_LIMIT_S
        idle_since, before = time.monotonic(), processes.tree_cpu_s(self.pid)
        while time.monotonic() - idle_since < IDLE_S or len(processes.tree(self.pid)) <= self._workers:
            self._check(deadline)
            time.sleep(1.0)
            now = processes.tree_cpu_s(self.pid)
            if abs(now - before) > IDLE_CORES:
                idle_since = time.monotonic()
            before = now

    def _wait_for_port(self) -> None:
        deadline = time.monotonic() + START_LIMIT_S
        host, port = self.address.split(":")
        while True:
            try:
                socket.create_connection((host, int(port)), timeout=1).close()
                return
            except OSError:
                self._check(deadline)
                time.sleep(0.1)

    def _check(self, deadline: float) -> None:
        if self._process.poll() is None and time.monotonic() < deadline:
            return
        self._output.seek(0)
        raise processes.RunFailedError(
            f"No warm pool (exit status {self._process.poll()}): {processes.readable(self.command)}\n"
            f"{self._output.read()[-2000:]}"
        )

    def _stop(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._output.close()
        self._state.cleanup()


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])
