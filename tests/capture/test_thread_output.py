"""What a thread prints while it is held back, and what others print meanwhile."""

import contextlib
import io
import sys
import threading
from collections.abc import Callable

import pytest

from fdt.capture.thread_output import held_back


def _shown(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    # Not in a fixture: between that and the test, pytest sets another one.
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stdout", stream)
    return stream


def _in_a_thread(function: Callable[[], object]) -> None:
    thread = threading.Thread(target=function)
    thread.start()
    thread.join()


def test_only_one_threads_output_is_held_back(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = _shown(monkeypatch)
    with held_back() as text:
        print("mine")
        _in_a_thread(lambda: print("theirs"))
        with held_back() as inner:
            print("inner")
        print("mine again")
    print("after")
    assert (text.getvalue(), inner.getvalue()) == ("mine\nmine again\n", "inner\n")
    assert shown.getvalue() == "theirs\nafter\n"
    assert sys.stdout is shown


def test_the_first_that_ends_leaves_the_others_output_held_back(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = _shown(monkeypatch)
    entered, ended = threading.Event(), threading.Event()
    texts = []

    def other() -> None:
        with held_back() as text:
            entered.set()
            assert ended.wait(10.0)
            print("theirs")
            texts.append(text.getvalue())

    thread = threading.Thread(target=other)
    with held_back():
        thread.start()
        assert entered.wait(10.0)
    print("mine")
    ended.set()
    thread.join()
    assert texts == ["theirs\n"]
    assert shown.getvalue() == "mine\n"
    assert sys.stdout is shown


def test_a_stream_of_the_scripts_own_that_outlasts_it(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = _shown(monkeypatch)
    own = io.StringIO()
    with contextlib.ExitStack() as script:
        with held_back() as text:
            script.enter_context(contextlib.redirect_stdout(own))
            print("to its own")
        print("to its own, later")
    print("after")
    assert text.getvalue() == ""
    assert own.getvalue() == "to its own\nto its own, later\n"
    assert shown.getvalue() == "after\n"
