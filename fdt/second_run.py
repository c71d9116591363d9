"""A second run of a script, in a fork of this process that was made before the first: nothing of the first is in it."""

import contextlib
import os
import pickle
import signal
import sys
import tempfile
from collections.abc import Callable
from typing import Any, NoReturn


class SecondRun:
    """A process that waits until it is asked to run the script, and then tells one object of it.

    What the script prints there is not shown; its last line on standard error is, if nothing was told.
    """

    def __init__(self, run: Callable[[Callable[[Any], None]], None]) -> None:
        """Forks; called while this process has one thread.

        Args:
            run: Runs the script in the fork; is given a function that takes what is to be told.
        """
        asked, self._ask = os.pipe()
        self._told, tell = os.pipe()
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 - closed with this object
        self._pid = os.fork()
        if not self._pid:
            os.close(self._ask)
            os.close(self._told)
            self._wait_and_run(asked, tell, run)
        os.close(asked)
        os.close(tell)

    def _wait_and_run(self, asked: int, tell: int, run: Callable[[Callable[[Any], None]], None]) -> NoReturn:
        status = 1
        try:
            # The other end of a pipe that was closed, by its process's end too, reads as nothing.
            if os.read(asked, 1):
                null = os.open(os.devnull, os.O_RDWR)
                os.dup2(null, 0)
                os.dup2(null, 1)
                os.dup2(self._output.fileno(), 2)
                run(lambda told: _write(tell, pickle.dumps(told)))
            status = 0
        except BaseException:
            sys.excepthook(*sys.exc_info())
        finally:
            with contextlib.suppress(Exception):
                sys.stderr.flush()
            os._exit(status)

    def ask(self) -> Any | None:
        """Has it run the script; returns what it told, or None if it ended without."""
        os.write(self._ask, b"1")
        told = b""
        while piece := os.read(self._told, 1 << 16):
            told += piece
        return pickle.loads(told) if told else None

    def last_words(self) -> str:
        """Returns the last line that it wrote to standard error."""
        self._output.seek(0)
        lines = self._output.read().decode(errors="replace").strip().splitlines()
        return lines[-1].removeprefix("fdt: ") if lines else "it said nothing"

    def close(self) -> None:
        """Ends it."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self._pid, 0)
        for descriptor in (self._ask, self._told):
            os.close(descriptor)
        self._output.close()


def _write(descriptor: int, content: bytes) -> None:
    while content:
        content = content[os.write(descriptor, content) :]
