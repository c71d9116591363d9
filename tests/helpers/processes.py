"""Runs commands as a person would type them: with a time limit, in a process group that goes when the limit passes."""

import dataclasses
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil

PYTHON = sys.executable
_SHOWN_CHARACTERS = 6000
_END_S = 15.0


# What TensorFlow's own log has before a message: severity and time, and the thread; and where objects are in memory.
_OF_THE_RUN = re.compile(r"^([IWEF]\d{4} [\d:.]+ +\d+|\d{4}-\d\d-\d\d [\d:.]+:) |(?<=at )0x[0-9a-f]+")


@dataclasses.dataclass(frozen=True)
class Finished:
    """A process that has ended.

    Attributes:
        status: As the shell shows it; negative for a signal; None if it was killed because the limit passed.
    """

    command: tuple[str, ...]
    status: int | None
    stdout: str
    stderr: str

    @property
    def output(self) -> str:
        """Both streams, for messages that may be in either."""
        return self.stdout + "\n" + self.stderr

    def expect(self, status: int) -> "Finished":
        """Asserts the exit status; the message shows the command and the end of both streams."""
        assert self.status == status, f"expected exit status {status}\n{self.describe()}"
        return self

    def said_besides(self, plain: "Finished") -> list[str]:
        """Returns the lines on standard error that are neither fdt's nor plain python's, which has run the same script."""
        known = {_OF_THE_RUN.sub("", line) for line in plain.stderr.splitlines()}
        said = [line for line in self.stderr.splitlines() if not line.startswith("fdt: ")]
        return [line for line in said if _OF_THE_RUN.sub("", line) not in known]

    def describe(self) -> str:
        """Returns the command, its status and the end of both streams."""
        status = "killed: the time limit passed" if self.status is None else f"exit status {self.status}"
        parts = [f"$ {' '.join(self.command)}", status]
        for name, text in (("stdout", self.stdout), ("stderr", self.stderr)):
            parts.append(f"--- {name} (end) ---\n{text[-_SHOWN_CHARACTERS:]}")
        return "\n".join(parts)


def environment(**extra: str) -> dict[str, str]:
    """Returns the environment of a test's process: this one's, no GPU, TensorFlow quiet, output not buffered."""
    quiet = {"CUDA_VISIBLE_DEVICES": "-1", "TF_CPP_MIN_LOG_LEVEL": "2", "PYTHONUNBUFFERED": "1"}
    return {**os.environ, **quiet, **extra}


def run(command: Sequence[str | Path], *, limit_s: float, cwd: Path | None = None, **env: str) -> Finished:
    """Runs a command to its end, or kills its whole process group when `limit_s` has passed.

    With PYTHONFAULTHANDLER in its environment it first shows where its threads are.
    """
    arguments = tuple(str(part) for part in command)
    process = _start(arguments, cwd, env)
    try:
        stdout, stderr = process.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        if "PYTHONFAULTHANDLER" in env:
            process.send_signal(signal.SIGABRT)
            with suppress(subprocess.TimeoutExpired):
                process.wait(_END_S)
        _kill_group(process)
        stdout, stderr = process.communicate(timeout=_END_S)
        return Finished(arguments, None, stdout, stderr)
    finally:
        _kill_group(process)
    return Finished(arguments, process.returncode, stdout, stderr)


def run_python(script: Path, *arguments: str | Path, limit_s: float, cwd: Path | None = None, **env: str) -> Finished:
    """`python SCRIPT ARGS`."""
    return run([PYTHON, script, *arguments], limit_s=limit_s, cwd=cwd, **env)


def run_fdt(
    script: Path,
    *arguments: str | Path,
    limit_s: float,
    workers: int = 2,
    mode: str = "sync",
    options: Sequence[str | Path] = (),
    cwd: Path | None = None,
    **env: str,
) -> Finished:
    """`fdt run --mode MODE --workers N OPTIONS SCRIPT ARGS`."""
    command = [PYTHON, "-m", "fdt", "run", "--mode", mode, "--workers", str(workers), *options, script, *arguments]
    return run(command, limit_s=limit_s, cwd=cwd, **env)


class Background:
    """A process that runs while a test does; its lines are collected by two threads."""

    def __init__(self, command: Sequence[str | Path], cwd: Path | None = None, **env: str) -> None:
        self.command = tuple(str(part) for part in command)
        self.process = _start(self.command, cwd, env)
        self._changed = threading.Condition()
        self._lines: dict[str, list[str]] = {"stdout": [], "stderr": []}
        self._open = {"stdout", "stderr"}
        self._threads = [
            threading.Thread(target=self._collect, args=(name,), name=f"collect-{name}") for name in self._lines
        ]
        for thread in self._threads:
            thread.start()

    @property
    def pid(self) -> int:
        return self.process.pid

    def so_far(self) -> Finished:
        """Returns what is known now; the status is None while it runs."""
        with self._changed:
            stdout, stderr = ("".join(self._lines[name]) for name in ("stdout", "stderr"))
        return Finished(self.command, self.process.poll(), stdout, stderr)

    def wait_for_line(self, containing: str, limit_s: float) -> str:
        """Returns the first line of stdout that contains the text; fails if the process ends or the limit passes."""

        def found(so_far: Finished) -> str | None:
            return next((line for line in so_far.stdout.splitlines(keepends=True) if containing in line), None)

        line: str = self.wait_until(found, limit_s, containing)
        return line

    def wait_until(self, found: Callable[[Finished], Any], limit_s: float, what: str = "") -> Any:
        """Returns what is found in its output, once something is; fails if the process ends or the limit passes."""
        with self._changed:
            self._changed.wait_for(lambda: found(self.so_far()) or not self._open, timeout=limit_s)
            result = found(self.so_far())
        assert result, f"{what or 'what was waited for'!r} was not said within {limit_s} s\n{self.so_far().describe()}"
        return result

    def wait_for_end(self, limit_s: float) -> Finished:
        """Returns what is known when it has ended, or when the limit has passed."""
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(limit_s)
            for thread in self._threads:
                thread.join(timeout=_END_S)
        return self.so_far()

    def stop(self) -> None:
        """Asks it to end, then kills the group."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(timeout=_END_S)
        _kill_group(self.process)
        # It has been killed, so it ends; on a machine that has stalled that may take long.
        self.process.wait()
        for thread in self._threads:
            thread.join(timeout=_END_S)

    def _collect(self, name: str) -> None:
        stream = self.process.stdout if name == "stdout" else self.process.stderr
        assert stream is not None
        with stream:
            for line in stream:
                with self._changed:
                    self._lines[name].append(line)
                    self._changed.notify_all()
        with self._changed:
            self._open.discard(name)
            self._changed.notify_all()


@contextmanager
def background(command: Sequence[str | Path], cwd: Path | None = None, **env: str) -> Iterator[Background]:
    """A process for the length of a `with` block."""
    process = Background(command, cwd, **env)
    try:
        yield process
    finally:
        process.stop()


def _start(command: Sequence[str], cwd: Path | None, env: dict[str, str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command,
        cwd=cwd,
        env=environment(**env),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        start_new_session=True,
    )


def _kill_group(process: subprocess.Popen[str]) -> None:
    # The group may outlive its leader: what the command left behind goes too.
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def children_of(pid: int, module: str) -> list[psutil.Process]:
    """Returns the processes below a process that run a module, those only that have not ended."""
    found = []
    for process in psutil.Process(pid).children(recursive=True):
        # A process that has ended, and whom nobody has waited for yet, has no command.
        with suppress(psutil.NoSuchProcess):
            if module in process.cmdline():
                found.append(process)
    return found
