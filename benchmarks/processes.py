"""Starts what is measured, and reads what /proc says about it (Linux)."""

import contextlib
import dataclasses
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
SAMPLE_S = 0.1
START_LIMIT_S = 120.0
_RESULT = re.compile(r"RESULT (\{.*\})")


class RunFailedError(RuntimeError):
    """A process that was to be measured did not end well."""


@dataclasses.dataclass(frozen=True)
class Finished:
    """A process that ended with status 0."""

    output: str
    seconds: float

    def result(self) -> dict[str, Any]:
        """Returns the JSON of the last line `RESULT {...}` that the process printed."""
        found = _RESULT.findall(self.output)
        if not found:
            raise RunFailedError(f"No line RESULT in what it printed:\n{self.output[-2000:]}")
        result: dict[str, Any] = json.loads(found[-1])
        return result


def python(script: str, *arguments: str) -> list[str]:
    """Returns the command that runs a script of this repository with this Python."""
    return [sys.executable, script, *arguments]


def fdt(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "fdt", *arguments]


def readable(command: Sequence[str]) -> str:
    """Returns the command as a person would type it in the repository's root, free of this machine's paths."""
    words = (word.replace(f"{ROOT}/", "") for word in command)
    return " ".join("python" if word == sys.executable.replace(f"{ROOT}/", "") else word for word in words)


def environment(more: Mapping[str, str] | None = None) -> dict[str, str]:
    return os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3"} | dict(more or {})


def run(
    command: Sequence[str],
    more: Mapping[str, str] | None = None,
    timeout_s: float = 300,
    watch: Callable[[int], object] | None = None,
    folder: Path = ROOT,
) -> Finished:
    """Runs a command in a folder, the repository's root unless told, to its end.

    Args:
        command: The program and its arguments.
        more: Environment variables to add.
        timeout_s: After so long the process and its children are killed.
        watch: Called with the process id every SAMPLE_S while it runs.
        folder: Where it runs: in a checkout of another commit with the packages there, in its pools and workers, too.

    Raises:
        RunFailedError: It took too long, or its exit status is not 0.
    """
    if folder != ROOT:
        # Pools and workers do not look into the folder that they are started in.
        more = {"PYTHONPATH": str(folder), **(more or {})}
    start = time.perf_counter()
    with tempfile.TemporaryFile("w+") as output:
        process = subprocess.Popen(
            command, cwd=folder, env=environment(more), stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
        watcher = _Watcher(process.pid, watch) if watch else None
        try:
            status = process.wait(timeout_s)
        except BaseException as error:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            if not isinstance(error, subprocess.TimeoutExpired):
                raise
            raise RunFailedError(f"Still running after {timeout_s} s: {readable(command)}") from error
        finally:
            if watcher:
                watcher.stop()
        seconds = time.perf_counter() - start
        output.seek(0)
        text = output.read()
    if status != 0:
        raise RunFailedError(f"Exit status {status}: {readable(command)}\n{text[-2000:]}")
    return Finished(text, seconds)


@contextlib.contextmanager
def serving(
    command: Sequence[str], says: str, log: Path, more: Mapping[str, str] | None = None
) -> Iterator[re.Match[str]]:
    """Runs a part of a pool until the block ends, when it is asked to leave.

    Args:
        command: The program and its arguments.
        says: A pattern of what it prints when it is ready.
        log: Where its output goes.
        more: Environment variables to add.

    Yields:
        What it said.

    Raises:
        RunFailedError: It ended, or has said nothing after START_LIMIT_S.
    """
    with open(log, "w") as output:
        process = subprocess.Popen(command, cwd=ROOT, env=environment(more), stdout=output, stderr=subprocess.STDOUT)
    try:
        deadline = time.monotonic() + START_LIMIT_S
        while (found := re.search(says, log.read_text())) is None:
            if process.poll() is not None or time.monotonic() > deadline:
                raise RunFailedError(f"Not ready: {readable(command)}\n{log.read_text()[-2000:]}")
            time.sleep(0.1)
        yield found
    finally:
        process.terminate()
        process.wait(30)


class _Watcher:
    """A thread that looks at a process every SAMPLE_S until stopped."""

    def __init__(self, pid: int, look: Callable[[int], object]) -> None:
        self._pid, self._look = pid, look
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="watch")
        self._thread.start()

    def _loop(self) -> None:
        while not self._stopped.wait(SAMPLE_S):
            self._look(self._pid)

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join()


def tree(pid: int) -> list[int]:
    """Returns a process and all its descendants."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (fields := _stat(int(entry.name))):
            children.setdefault(int(fields[1]), []).append(int(entry.name))
    found = [pid]
    for parent in found:
        found.extend(children.get(parent, []))
    return found


def pss_bytes(pid: int) -> int:
    """Returns the memory of a process, a page shared by n processes counted as 1/n; 0 when it has ended."""
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:
        return 0
    match = re.search(r"^Pss:\s+(\d+) kB", text, re.MULTILINE)
    return int(match[1]) * 1024 if match else 0


def tree_pss_bytes(pid: int) -> int:
    return sum(pss_bytes(each) for each in tree(pid))


def tree_cpu_s(pid: int) -> float:
    """Returns the processor seconds that a process and its living descendants have used."""
    return sum(cpu_s(each) for each in tree(pid))


def cpu_s(pid: int) -> float:
    """Returns the processor seconds that a process has used; 0 when it has ended."""
    fields = _stat(pid)
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK") if fields else 0.0


def _stat(pid: int) -> list[str] | None:
    """Returns the fields of /proc/PID/stat after the name: state, parent, …; None when it has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None


@contextlib.contextmanager
def within(more: Mapping[str, str]) -> Iterator[None]:
    """Adds to this process's environment, which all that it starts has, for the length of the block."""
    before = dict(os.environ)
    os.environ.update(more)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


@contextlib.contextmanager
def checked_out(commit: str | None) -> Iterator[Path | None]:
    """Within it a commit's files are in a folder of their own; of None there is no folder."""
    if commit is None:
        yield None
        return
    with tempfile.TemporaryDirectory() as folder:
        git = ["git", "-C", str(ROOT), "worktree"]
        subprocess.run([*git, "add", "--detach", "--quiet", folder, commit], check=True)
        try:
            yield Path(folder)
        finally:
            subprocess.run([*git, "remove", "--force", folder], check=True)
