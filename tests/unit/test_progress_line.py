"""The line that tells what is being done: when it is seen, and that nothing of it is left."""

import io
import re
import sys
import threading
from typing import TypeVar

import pytest

from fdt.base import progress_line
from fdt.base.progress_line import WAITING, Waiting, of_bytes
from fdt.client import report

_COLUMNS = 60


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True

    def lines(self) -> list[str]:
        """Returns what stands on the screen: a terminal wraps before the first character that has no room."""
        lines, column = [""], 0
        for part in re.findall(r"\x1b\[K|.|\n", self.getvalue(), re.DOTALL):
            if part == "\n":
                lines.append("")
                column = 0
            elif part == "\r":
                column = 0
            elif part == "\x1b[K":
                lines[-1] = lines[-1][:column]
            else:
                if column == _COLUMNS:
                    lines.append("")
                    column = 0
                lines[-1] = lines[-1][:column].ljust(column) + part + lines[-1][column + 1 :]
                column += 1
        return [line.rstrip() for line in lines]


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> "_Shown":
    return _Shown(monkeypatch)


_Stream = TypeVar("_Stream", bound=io.StringIO)


class _Shown:
    """A line whose thread never wakes: the test says when, and what time it is."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch):
        self.now_s = 100.0
        monkeypatch.setattr(progress_line.time, "monotonic", lambda: self.now_s)
        monkeypatch.setattr(progress_line, "_AGAIN_S", 1e6)
        monkeypatch.setenv("TERM", "xterm")
        monkeypatch.setenv("COLUMNS", str(_COLUMNS))
        # Other tests of this process may have had a server's log set up.
        monkeypatch.setattr(progress_line._LOG, "handlers", [])
        self._monkeypatch, self.waiting = monkeypatch, Waiting()

    def on(self, stream: _Stream) -> _Stream:
        self._monkeypatch.setattr(sys, "stderr", stream)
        return stream

    def tick(self, seconds: float) -> None:
        self.now_s += seconds
        self.waiting._write(self.now_s)


def test_on_a_terminal_a_line_is_written_again_and_leaves_nothing(shown: _Shown) -> None:
    stream = shown.on(_Terminal())
    with shown.waiting.doing("tracing"):
        shown.tick(0.9)
        assert stream.getvalue() == "", "what takes no time is not told"
        shown.tick(0.2)
        assert stream.lines() == ["fdt: tracing (1 s)"]
        shown.tick(0.5)
        assert stream.lines() == ["fdt: tracing (2 s)"]
    assert stream.lines() == [""]
    with shown.waiting.doing("sending"):
        shown.tick(0.9)
    assert stream.lines() == [""], "each begins anew"


def test_a_program_that_logs_has_them_in_its_log(shown: _Shown, caplog: pytest.LogCaptureFixture) -> None:
    stream = shown.on(_Terminal())
    shown.waiting.of_library = True
    with caplog.at_level("INFO", logger="fdt"), shown.waiting.doing("starting workers"):
        shown.waiting.above("sync training on 2 workers")
        shown.tick(10)
    records = [(record.name, record.levelname, record.getMessage()) for record in caplog.records]
    assert records == [("fdt", "INFO", "sync training on 2 workers"), ("fdt", "INFO", "starting workers (10 s)")]
    assert stream.getvalue() == ""


def test_a_program_without_a_log_and_a_person_see_them(
    shown: _Shown, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = shown.on(io.StringIO())
    with caplog.at_level("INFO", logger="fdt"):
        shown.waiting.above("of a run, whose script logs")
        shown.waiting.of_library = True
        monkeypatch.setattr(progress_line._LOG, "hasHandlers", lambda: False)
        shown.waiting.above("of a program that does not")
    assert stream.getvalue() == "fdt: of a run, whose script logs\nfdt: of a program that does not\n"
    assert not caplog.records


def test_elsewhere_a_line_comes_every_ten_seconds(shown: _Shown) -> None:
    stream = shown.on(io.StringIO())
    with shown.waiting.doing("starting workers"):
        for _ in range(70):
            shown.tick(0.5)
    lines = stream.getvalue().splitlines()
    assert lines == [f"fdt: starting workers ({seconds} s)" for seconds in (10, 20, 30)]


def test_what_is_done_at_once_is_one_line_and_empty_words_are_none(shown: _Shown) -> None:
    stream = shown.on(_Terminal())
    words = [""]
    with shown.waiting.doing(lambda: words[0]):
        shown.tick(5.0)
        assert stream.getvalue() == ""
        words[0] = f"sending {of_bytes(732_000_000, 1_200_000_000)}"
        with shown.waiting.doing("tracing"), shown.waiting.doing("tracing"):
            shown.tick(0.5)
    assert "fdt: sending 1.2 GB (61 %); tracing (6 s)" in stream.getvalue()


def test_lines_that_stay_are_above_it(shown: _Shown, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "WAITING", shown.waiting)
    stream = shown.on(_Terminal())
    with shown.waiting.doing("tracing"):
        shown.tick(2.0)
        report.say("sync training")
        shown.tick(0.5)
        assert stream.lines() == ["fdt: sync training", "fdt: tracing (2 s)"]
    assert stream.lines() == ["fdt: sync training", ""]


@pytest.mark.parametrize("width", [1, _COLUMNS - 1, _COLUMNS])
def test_what_the_script_has_left_in_a_line_stays(shown: _Shown, width: int) -> None:
    """As a progress bar that is not at its end."""
    stream, bar = shown.on(_Terminal()), "=" * width
    stream.write(bar)
    shown.waiting.above("validation runs on the workers")
    assert stream.lines() == [bar, "fdt: validation runs on the workers", ""]
    stream.write(bar)
    with shown.waiting.doing("tracing"):
        shown.tick(2.0)
        assert stream.lines() == [bar, "fdt: validation runs on the workers", bar, "fdt: tracing (2 s)"]


def test_a_closed_stream_harms_nobody(shown: _Shown) -> None:
    stream = shown.on(_Terminal())
    with shown.waiting.doing("tracing"):
        shown.tick(2.0)
        stream.close()
        shown.tick(2.0)


def test_its_thread_ends_with_what_is_done() -> None:
    # Those of tests before may be about to end.
    before = set(threading.enumerate())
    with WAITING.doing("nothing"):
        (thread,) = [
            thread for thread in threading.enumerate() if thread.name == "fdt-waiting" and thread not in before
        ]
    thread.join(10.0)
    assert not thread.is_alive()


@pytest.mark.parametrize(
    ("sent", "size", "words"), [(0, 0, "0 MB (0 %)"), (5, 10_000_000, "10 MB (0 %)"), (10**9, 10**9, "1.0 GB (100 %)")]
)
def test_how_far_a_transfer_is(sent: int, size: int, words: str) -> None:
    assert of_bytes(sent, size) == words
