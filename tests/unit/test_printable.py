"""What of others' texts reaches a terminal."""

import itertools

import pytest

from fdt.base.failure import named
from fdt.base.printable import LogFilter, printable, printable_lines
from fdt.cli import pool_commands
from fdt.errors import WorkerError
from fdt.v1 import pool_pb2

# Retitles the window, clears the screen, is taken for one key, turns the direction round, moves up, C1's form of CSI.
_HOSTILE = [
    "\x1b]0;mine\x07",
    "\x1b[2J",
    "\x1bc",
    "\u202egnp.exe",
    "\x1b[1A",
    "\x9b2J",
    "\u2066",
    "\x7f",
    "\r",
    "a\u2028b",
]


@pytest.mark.parametrize("text", _HOSTILE)
def test_nothing_that_steers_is_left(text: str) -> None:
    for shown in (printable(text), printable_lines(text)):
        assert shown.isprintable() and shown != text


@pytest.mark.parametrize("text", ["", "train.py", "größe 训练 🙂.py", "a b\\x1b"])
def test_what_can_be_read_stays(text: str) -> None:
    assert printable(text) == text


def test_lines_stay_where_there_may_be_several() -> None:
    assert printable("a\n\tb") == "a\\n\\tb"
    assert printable_lines("a\n\tb\x1b[2J") == "a\n\tb\\x1b[2J"


@pytest.mark.parametrize("text", _HOSTILE)
def test_jobs_of_others(text: str) -> None:
    job = pool_pb2.JobSummary(job="job-1", state="failed", script=text, reason=f"so it {text} went", mode="sync")
    lines = pool_commands.format_jobs([job], 0.0)
    assert len(lines) == 2 and all(line.isprintable() for line in lines)


def test_errors_of_others() -> None:
    error = named("WorkerError", "Rank 0 failed:\x1b]0;mine\x07\nby itself")
    assert isinstance(error, WorkerError) and str(error) == "Rank 0 failed:\\x1b]0;mine\\x07\nby itself"


LOG = "epoch 1\r\n\x1b[1;32mgood\x1b[0m \x1b[38;5;9mred\x1b[m\b\b \x1b]0;mine\x07 \x1b[2J \x1b[6n größe \u202e\x1b"
SHOWN = (
    "epoch 1\r\n\x1b[1;32mgood\x1b[0m \x1b[38;5;9mred\x1b[m\b\b \\x1b]0;mine\\x07 \\x1b[2J \\x1b[6n größe \\u202e\\x1b"
)


def test_colours_of_a_log_stay_wherever_it_is_cut() -> None:
    raw = LOG.encode()
    for first, second in itertools.combinations(range(len(raw) + 1), 2):
        shown = LogFilter()
        pieces = [shown.feed(raw[:first]), shown.feed(raw[first:second]), shown.feed(raw[second:])]
        assert "".join([*pieces, shown.feed(b"", last=True)]) == SHOWN


def test_a_log_that_is_no_text() -> None:
    shown = LogFilter()
    assert shown.feed(b"\xff\xfe\x1b[") + shown.feed(b"9" * 100) + shown.feed(b"", last=True) == (
        "\ufffd\ufffd\\x1b[" + "9" * 100
    )
