"""Worker processes: started, watched, ended. None outlives the pool."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

from fdt.config import Timing

# How much of a log's end is looked at for its last line.
_TAIL_BYTES = 4096


class Processes:
    """Processes by name. Each has a session of its own and a log file; its end is reported at once."""

    def __init__(self, on_exit: Callable[[str, int], None], timing: Timing) -> None:
        """Starts nothing.

        Args:
            on_exit: Called from a watching thread with the name and the exit status (negative: a signal's number).
            timing: `stop_s` is how long a process is given to end.
        """
        self._on_exit = on_exit
        self._timing = timing
        self._lock = threading.Lock()
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._watchers: dict[str, threading.Thread] = {}

    def start(self, name: str, module: str, environment: Mapping[str, str], directory: Path, log: Path) -> None:
        """Starts `python -m module` in `directory`."""
        with open(log, "ab", buffering=0) as output:
            process = subprocess.Popen(
                # -P: what lies in the directory must not stand in for a module.
                [sys.executable, "-P", "-m", module],
                env=dict(environment),
                cwd=directory,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        watcher = threading.Thread(target=self._watch, args=(name, process), name=f"fdt-watch-{name}", daemon=True)
        with self._lock:
            self._running[name] = process
            self._watchers[name] = watcher
        watcher.start()

    def terminate(self, name: str) -> None:
        """Asks the process to end."""
        self._signal(name, signal.SIGTERM)

    def kill(self, name: str) -> None:
        """Ends the process and all it has started."""
        self._signal(name, signal.SIGKILL)

    def close(self) -> None:
        """Kills what still runs and waits until it is gone."""
        with self._lock:
            names, watchers = list(self._running), list(self._watchers.values())
        for name in names:
            self.kill(name)
        for watcher in watchers:
            watcher.join(self._timing.stop_s)

    def _signal(self, name: str, number: int) -> None:
        with self._lock:
            process = self._running.get(name)
            # Under the lock the process has not been reaped, so its number is still its own.
            if process is not None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, number)

    def _watch(self, name: str, process: subprocess.Popen[bytes]) -> None:
        # Without reaping, so that the number cannot pass to a stranger before `_signal` knows.
        with contextlib.suppress(ChildProcessError):
            os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        with self._lock:
            # What the process itself has started must not stay behind.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            status = process.wait()
            del self._running[name], self._watchers[name]
        self._on_exit(name, status)


def last_line(log: Path) -> str:
    """Returns the last line of a log that is not empty; '' if there is none."""
    try:
        with open(log, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _TAIL_BYTES))
            lines = file.read().decode(errors="replace").split("\n")
    except OSError:
        return ""
    return next((line.strip() for line in reversed(lines) if line.strip()), "")
