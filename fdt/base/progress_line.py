"""Shows one line while a run does something that takes long.

On a terminal the line is rewritten in place and erased at the end. Elsewhere a new line is printed every ten seconds. In a
library (`fdt.attach`) lines are records of the logger `fdt`, if the program that uses it has set up `logging`.
"""

import contextlib
import logging
import os
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator

# After how long the line appears, and how often it is rewritten on a terminal, or printed again elsewhere.
_FIRST_S, _AGAIN_S = 1.0, 0.5
_FIRST_ELSEWHERE_S = _AGAIN_ELSEWHERE_S = 10.0
_ERASE = "\r\x1b[K"

_LOG = logging.getLogger("fdt")

Words = str | Callable[[], str]


class Waiting:
    """The running activities. A separate thread shows them while there are any.

    Attributes:
        of_library: Whether a program calls us, not a person.
    """

    def __init__(self) -> None:
        self.of_library = False
        self._lock = threading.Lock()
        self._doing: list[Words] = []
        self._since_s = self._shown_s = 0.0
        self._is_shown = False
        self._ended = threading.Event()

    @contextlib.contextmanager
    def doing(self, words: Words) -> Iterator[None]:
        """Shows an activity in this context.

        Args:
            words: The activity, or a function that returns its progress; "" to show nothing.
        """
        with self._lock:
            self._doing.append(words)
            if len(self._doing) == 1:
                self._since_s, self._shown_s, self._ended = time.monotonic(), 0.0, threading.Event()
                threading.Thread(target=self._show, args=(self._ended,), name="fdt-waiting", daemon=True).start()
        try:
            yield
        finally:
            with self._lock:
                self._doing.remove(words)
                if not self._doing:
                    self._ended.set()
                    self._erase()

    def above(self, line: str) -> None:
        """Prints a permanent line above the rewritten one."""
        with self._lock:
            self._erase()
            self._tell(line)

    def _show(self, ended: threading.Event) -> None:
        while not ended.wait(_AGAIN_S):
            with self._lock:
                if not ended.is_set():
                    self._write(time.monotonic())

    def _write(self, now_s: float) -> None:
        is_terminal = _is_terminal() and not self._is_logged()
        line = self._line(now_s, _FIRST_S if is_terminal else _FIRST_ELSEWHERE_S)
        if not line or (not is_terminal and self._shown_s and now_s - self._shown_s < _AGAIN_ELSEWHERE_S):
            return
        self._shown_s = now_s
        # The terminal may be closed, or the script may have replaced the stream.
        with contextlib.suppress(OSError, ValueError, AttributeError):
            if is_terminal:
                begin = _ERASE if self._is_shown else _new_line()
                self._is_shown = True
                sys.stderr.write(begin + f"fdt: {line}"[: _columns() - 1])
                sys.stderr.flush()
            else:
                self._tell(line)

    def _is_logged(self) -> bool:
        return self.of_library and _LOG.hasHandlers()

    def _tell(self, line: str) -> None:
        if self._is_logged():
            _LOG.info("%s", line)
        else:
            print(f"{_new_line() if _is_terminal() else ''}fdt: {line}", file=sys.stderr, flush=True)

    def _line(self, now_s: float, after_s: float) -> str:
        """Returns the line to show; "" if there is none yet."""
        waited_s = now_s - self._since_s
        said = dict.fromkeys(words if isinstance(words, str) else words() for words in self._doing)
        shown = "; ".join(filter(None, said))
        return f"{shown} ({waited_s:.0f} s)" if shown and waited_s >= after_s else ""

    def _erase(self) -> None:
        if self._is_shown:
            self._is_shown = False
            with contextlib.suppress(OSError, ValueError, AttributeError):
                sys.stderr.write(_ERASE)
                sys.stderr.flush()


def _new_line() -> str:
    """Returns what begins a line on a terminal, wherever the script's output has left the cursor, as amid a progress bar.

    As many spaces as there are columns just fill an empty line, since a terminal wraps before the next character only; if
    anything stands in the line, they go on in the next one.
    """
    return " " * _columns() + _ERASE


def _columns() -> int:
    return shutil.get_terminal_size().columns


def _is_terminal() -> bool:
    try:
        return sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
    except (AttributeError, ValueError):
        return False


# One per process, since a process has one terminal.
WAITING = Waiting()


def of_bytes(sent: int, size: int) -> str:
    """Returns a transfer's progress, such as "1.2 GB (61 %)"."""
    shown = f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.0f} MB"
    return f"{shown} ({100 * sent // max(1, size)} %)"
