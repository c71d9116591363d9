"""Holds back what one thread prints, as while a step is traced; what others print comes out as before."""

import contextlib
import io
import sys
import threading
from collections.abc import Iterator
from typing import Any, TextIO

_lock = threading.Lock()


class _ByThread:
    """Standard output while some threads' is held back.

    Attributes:
        others: Where all other threads print.
        held: By thread, where its output goes: the last one counts.
    """

    def __init__(self, others: TextIO) -> None:
        self.others = others
        self.held: dict[int, list[io.StringIO]] = {}

    def __getattr__(self, name: str) -> Any:
        held = self.held.get(threading.get_ident())
        return getattr(held[-1] if held else self.others, name)


@contextlib.contextmanager
def held_back() -> Iterator[io.StringIO]:
    """Within it nothing that this thread prints comes out.

    Yields:
        What it has printed.
    """
    text, thread = io.StringIO(), threading.get_ident()
    with _lock:
        stream: Any = sys.stdout if isinstance(sys.stdout, _ByThread) else _ByThread(sys.stdout)
        sys.stdout = stream
        stream.held.setdefault(thread, []).append(text)
    try:
        yield text
    finally:
        with _lock:
            stream.held[thread].remove(text)
            if not stream.held[thread]:
                del stream.held[thread]
            # Where the script has put a stream of its own into this one's place, it puts this one back, which passes all on.
            if not stream.held and sys.stdout is stream:
                sys.stdout = stream.others
