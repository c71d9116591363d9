"""How many requests bring variables home that the script looks at."""

import contextlib
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from fdt.capture.remote import RemoteVariables

NUM_VARIABLES = 6


class Touch:
    """Takes the place of `VariableAccess`."""

    def listen(self, touched: Any) -> None:
        self.touched = touched

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        yield


class Step:
    """A step that writes all variables; they are named by their places."""

    def __init__(self) -> None:
        self.program, self.metrics, self.written = 0, set[int](), set(range(NUM_VARIABLES))
        self.places = {i: i for i in range(NUM_VARIABLES)}
        self.state = SimpleNamespace(accept=lambda *_: None)


class Job:
    """Notes what is requested."""

    def __init__(self, small: bool) -> None:
        self.small, self.requests = small, list[list[int]]()

    def is_small(self, program: int, variables: Sequence[int]) -> bool:
        return self.small

    def request(self, program: int, what: Any, variables: Sequence[int] = ()) -> Any:
        self.requests.append(list(variables))
        return SimpleNamespace(result=lambda: SimpleNamespace(state=None, contents=[]))


class Script:
    """Steps, and looks at variables."""

    def __init__(self, small: bool) -> None:
        self.job, self.step, touch = Job(small), Step(), Touch()
        session: Any = SimpleNamespace(job=lambda: self.job)
        self.variables = RemoteVariables(session, touch)  # type: ignore[arg-type]
        self.look = touch.touched

    def looks_at(self, *variables: int) -> list[list[int]]:
        """Makes a step, then looks at variables, one after the other; returns what was requested."""
        self.job.requests = []
        self.variables.ran(self.step)  # type: ignore[arg-type]
        for variable in variables:
            self.look({variable})
        return self.job.requests


ALL = list(range(NUM_VARIABLES))


@pytest.mark.parametrize("looks", [[0], [3, 1], ALL])
def test_what_is_small_comes_home_in_one_message(looks: list[int]) -> None:
    assert Script(small=True).looks_at(*looks) == [ALL]


def test_of_what_is_large_only_what_is_looked_at_comes_home() -> None:
    script = Script(small=False)
    assert [script.looks_at(1, 2) for _ in range(3)] == [[[1], [2]]] * 3
    assert script.looks_at() == []


def test_who_looks_at_all_once_gets_them_in_one_message_the_next_time() -> None:
    script = Script(small=False)
    assert script.looks_at(*ALL) == [[0], [1], [2], [3, 4, 5]]
    assert script.looks_at() == []
    assert script.looks_at(*ALL) == [ALL]
    # Who looks at the same one again has looked at one.
    assert script.looks_at(2, 2, 2, 2, 2) == [ALL]
    assert script.looks_at(2) == [[2]]


def test_what_keras_itself_looks_at_does_not_count() -> None:
    script = Script(small=False)
    script.step.metrics = {4, 5}
    assert script.looks_at(0, 1, 2, 3) == [[0], [1], [2], [3, 4, 5]]
    assert script.looks_at(0, 4, 5) == [ALL]
    # Metrics are asked for without their numbers.
    assert script.looks_at(0, 4) == [[0], []]


def test_who_looks_at_one_from_now_on_gets_one_again() -> None:
    script = Script(small=False)
    script.looks_at(*ALL)
    assert script.looks_at(2) == [ALL]
    assert script.looks_at(2) == [[2]]
