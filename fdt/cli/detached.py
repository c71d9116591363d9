"""Runs scripts without a terminal (`fdt run --detach`), and lists, shows and cancels such runs.

Each run has a folder in the user's state folder, and a keeper process, which starts the script in a session of its own and
writes the script's output and exit status to that folder. `python -m fdt.cli.detached FOLDER` is the keeper.
"""

import contextlib
import dataclasses
import fcntl
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from fdt.base import interpreter, user_folder
from fdt.base.lifetime import die_with
from fdt.cli.segmented_log import Reader, Writer
from fdt.errors import JobError, UsageError

PREFIX = "run-"
_FOLDER, _ABOUT, _LOCK, _STATUS = "runs", "run.json", "lock", "status.json"
# The number of ended runs that stay listed, with their output.
_MAX_ENDED = 20
# Seconds that a script has to end after an interrupt, and that `cancel` waits for its keeper's end.
_INTERRUPT_S, _CANCEL_S = 20.0, 30.0
_START_S = 30.0
_READ_BYTES = 1 << 16
# Seconds between two checks for new output, and for the end of a script whose output another process holds open.
_LOOK_S = 0.1


@dataclasses.dataclass(frozen=True)
class About:
    """A run's command, and its details for the list of runs."""

    command: tuple[str, ...]
    script: str
    mode: str
    num_workers: int
    started_s: float


@dataclasses.dataclass(frozen=True)
class Status:
    """How a run ended: the status as in `subprocess`, and whether the run was cancelled."""

    status: int
    ended_s: float
    is_cancelled: bool

    @property
    def shown(self) -> int:
        """The exit status as a shell shows it."""
        return self.status if self.status >= 0 else 128 - self.status


class Run:
    """One detached run, by its folder."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.name = folder, folder.name
        fields = json.loads((folder / _ABOUT).read_text())
        self.about = About(**{**fields, "command": tuple(fields["command"])})

    @property
    def status(self) -> Status | None:
        """How it ended; None while it runs, or if its keeper was killed."""
        with contextlib.suppress(FileNotFoundError):
            return Status(**json.loads((self.folder / _STATUS).read_text()))
        return None

    @property
    def keeper(self) -> int | None:
        """The keeper's process ID; None if the keeper has ended."""
        with contextlib.suppress(OSError, ValueError), open(self.folder / _LOCK, "rb") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return int(lock.read())
        return None

    @property
    def state(self) -> tuple[str, str]:
        """Its state and the reason, in words."""
        # Read in this order: the keeper writes the script's status, then ends.
        keeper, status = self.keeper, self.status
        if status is not None:
            words = "cancelled" if status.is_cancelled else "failed" if status.status else "finished"
            return words, f"the script ended with status {status.shown}" if status.status else ""
        if keeper is not None:
            return "running", f"detached: fdt attach {self.name}"
        return "failed", "it was killed together with its keeper process"

    def cancel(self) -> str:
        """Interrupts the script, as Ctrl-C would, and waits for its end; returns the run's state.

        Raises:
            JobError: The script does not end.
        """
        with contextlib.suppress(ProcessLookupError):
            pid = self.keeper
            handle = os.pidfd_open(pid) if pid is not None else -1
            # Signals only if the process is still this run's keeper, and not another one with the same ID.
            if handle >= 0 and self.keeper == pid:
                signal.pidfd_send_signal(handle, signal.SIGTERM)
            if handle >= 0:
                ended = select.select([handle], [], [], _CANCEL_S)[0]
                os.close(handle)
                if not ended:
                    raise JobError(
                        f"{self.name} was interrupted and has not ended within {_CANCEL_S:g} s; process {pid}."
                    )
        return self.state[0]


def runs() -> list[Run]:
    """Returns all known runs, oldest first."""
    home = user_folder.state_folder()
    folders = [] if home is None else _folders(home / _FOLDER)
    found = []
    for folder in folders:
        # The folder may be just being made, or removed.
        with contextlib.suppress(OSError, ValueError):
            found.append(Run(folder))
    return found


def find(name: str) -> Run:
    """Returns the run with a name.

    Raises:
        UsageError: There is no run with this name.
    """
    for run in runs():
        if run.name == name:
            return run
    remedy = (
        "`fdt jobs` lists them" if name.startswith(PREFIX) else f"`fdt logs {name}` prints what a job's workers wrote"
    )
    raise UsageError(
        f"There is no run of that name that was started with `fdt run --detach`; {remedy}. Received: {name}"
    )


def start(command: Sequence[str], script: str, mode: str, num_workers: int) -> Run:
    """Starts a command, detached from this terminal.

    Args:
        command: The command.
        script: The script's name, for the list of runs.
        mode: "sync" or "async", for the list.
        num_workers: The requested number of workers, for the list.

    Raises:
        UsageError: There is no folder for its output, or it cannot be started.
    """
    try:
        folder = _new_folder()
        about = About(tuple(command), script, mode, num_workers, time.time())
        (folder / _ABOUT).write_text(json.dumps(dataclasses.asdict(about)))
        keeper = subprocess.Popen(
            interpreter.of_module("fdt.cli.detached", str(folder)),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    except OSError as error:
        raise UsageError(
            f"The run cannot be detached: {error}. Its output needs room in the user's state folder."
        ) from error
    # Marks the keeper, which outlives this process, as ended, so that `Popen` neither waits for it nor warns.
    keeper.returncode = 0
    assert keeper.stdout is not None
    with keeper.stdout as said:
        readable, _, _ = select.select([said], [], [], _START_S)
        is_there = bool(readable and said.readline())
    if not is_there:
        raise UsageError(f"The run cannot be detached: its keeper process did not start. Look at {folder}")
    return Run(folder)


def _folders(parent: Path) -> list[Path]:
    with contextlib.suppress(FileNotFoundError):
        found = [each for each in parent.iterdir() if each.name.removeprefix(PREFIX).isdecimal()]
        return sorted(found, key=lambda each: int(each.name.removeprefix(PREFIX)))
    return []


def _new_folder() -> Path:
    home = user_folder.state_folder()
    if home is None:
        raise OSError("there is neither HOME nor XDG_STATE_HOME")
    parent = home / _FOLDER
    user_folder.make(parent)
    complaint = user_folder.complaint(parent)
    if complaint is not None:
        raise OSError(complaint)
    # A keeper that has written its script's status is about to end, so the run counts as ended.
    ended = [run for run in runs() if run.status is not None or run.keeper is None]
    for run in ended[: max(0, len(ended) - _MAX_ENDED + 1)]:
        shutil.rmtree(run.folder, ignore_errors=True)
    number = max((int(each.name.removeprefix(PREFIX)) for each in _folders(parent)), default=0)
    while True:
        number += 1
        with contextlib.suppress(FileExistsError):
            (parent / f"{PREFIX}{number}").mkdir(mode=0o700)
            return parent / f"{PREFIX}{number}"


# ---- output ---------------------------------------------------------------------------------------------------------


def show(run: Run, tail: int | None, *, follow: bool) -> int:
    """Prints a script's output.

    Args:
        run: The script's run.
        tail: How many of the last lines to begin with; None for all kept output.
        follow: Whether to wait for more output until the script ends.

    Returns:
        The script's exit status; 0 without `follow`.

    Raises:
        JobError: The script was killed with its keeper.
    """
    reader = Reader(run.folder, tail)
    while True:
        # Before reading: if the script has ended by now, all of its output can be read.
        keeper, status = run.keeper, run.status
        while piece := reader.read():
            sys.stdout.buffer.write(piece)
        sys.stdout.flush()
        if status is not None or not follow:
            return status.shown if status is not None and follow else 0
        if keeper is None:
            raise JobError(f"{run.name} was killed together with its keeper process.")
        _wait_for_end(keeper, _LOOK_S)


def _wait_for_end(pid: int, limit_s: float) -> None:
    """Waits at most `limit_s` for a process to end."""
    with contextlib.suppress(ProcessLookupError):
        handle = os.pidfd_open(pid)
        select.select([handle], [], [], limit_s)
        os.close(handle)


# ---- the keeper -----------------------------------------------------------------------------------------------------


class _Keeper:
    """Starts the script, and writes its output and exit status to the run's folder."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._run = folder, Run(folder)
        self._lock = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        # Blocks, since a process that checks whether the lock is held takes it for a moment.
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        os.pwrite(self._lock, str(os.getpid()).encode(), 0)
        self._is_cancelled = False
        own = os.getpid()
        # Shells make background processes ignore Ctrl-C, which the script must not inherit.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        self._process = subprocess.Popen(
            self._run.about.command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=lambda: die_with(own),
        )
        signal.signal(signal.SIGTERM, self._cancel)
        signal.signal(signal.SIGALRM, self._kill)

    def keep(self) -> None:
        assert self._process.stdout is not None
        output, writer = self._process.stdout.fileno(), Writer(self._folder)
        while True:
            readable, _, _ = select.select([output], [], [], _LOOK_S)
            piece = os.read(output, _READ_BYTES) if readable else b""
            writer.write(piece)
            # Processes that the script has started may hold its output open.
            if (readable and not piece) or (not readable and self._process.poll() is not None):
                break
        status = Status(self._process.wait(), time.time(), self._is_cancelled)
        signal.alarm(0)
        partial = self._folder / f"{_STATUS}.partial"
        partial.write_text(json.dumps(dataclasses.asdict(status)))
        partial.replace(self._folder / _STATUS)

    def _cancel(self, _: int, __: FrameType | None) -> None:
        self._is_cancelled = True
        signal.alarm(int(_INTERRUPT_S))
        self._signal(signal.SIGINT)

    def _kill(self, _: int, __: FrameType | None) -> None:
        self._signal(signal.SIGKILL)

    def _signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)


def main() -> None:
    """Runs the keeper of the run whose folder is named on the command line."""
    keeper = _Keeper(Path(sys.argv[1]))
    print("started", flush=True)
    # The process that started the keeper reads no more of its standard output.
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    keeper.keep()


if __name__ == "__main__":
    main()
