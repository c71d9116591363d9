"""Runs a script a second time, in a fork that this process makes before the first run."""

import contextlib
import os
import signal
import sys
import tempfile
from collections.abc import Callable
from typing import NoReturn

_QUESTION_BYTES = 1024


class SecondRun:
    """A process that waits for a question, then runs the script and answers.

    The script's output there is not shown. `last_words` returns the last line on standard error, to explain a missing answer.
    """

    def __init__(self, run: Callable[[str, Callable[[str], None]], None]) -> None:
        """Forks; called while this process has one thread.

        Args:
            run: Runs the script in the fork; called with the question, and a function that takes the answer.
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

    def _wait_and_run(self, asked: int, tell: int, run: Callable[[str, Callable[[str], None]], None]) -> NoReturn:
        status = 1
        try:
            # Reading returns b"" if the other end of the pipe is closed, or its process has ended.
            if question := os.read(asked, _QUESTION_BYTES):
                null = os.open(os.devnull, os.O_RDWR)
                os.dup2(null, 0)
                os.dup2(null, 1)
                os.dup2(self._output.fileno(), 2)
                run(question.decode(), lambda answer: _write(tell, answer.encode()))
            status = 0
        except BaseException:
            sys.excepthook(*sys.exc_info())
        finally:
            with contextlib.suppress(Exception):
                sys.stderr.flush()
            os._exit(status)

    def ask(self, question: str) -> str:
        """Makes the process run the script; returns its answer, "" if it ended without one."""
        os.write(self._ask, question.encode())
        told = b""
        while piece := os.read(self._told, 1 << 16):
            told += piece
        return told.decode()

    def last_words(self) -> str:
        """Returns the last line that the process wrote to standard error."""
        self._output.seek(0)
        lines = self._output.read().decode(errors="replace").strip().splitlines()
        return lines[-1].removeprefix("fdt: ") if lines else "it said nothing"

    def close(self) -> None:
        """Ends the process."""
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
