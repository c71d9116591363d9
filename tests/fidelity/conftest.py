"""Runs the cases that were asked for, once for each number of workers, and sums up the differences at the end."""

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import numpy as np
import pytest

from tests.fidelity.cases import Outcome, run_cases
from tests.fidelity.comparison import Difference, largest
from tests.fidelity.plain import plain_outcomes


class Run(Protocol):
    """Returns what a case gave on so many workers (0: plain python)."""

    def __call__(self, case: str, num_workers: int, mode: str = "sync", keras: int = 3) -> dict[str, np.ndarray]: ...


Record = Callable[[str, int, list[Difference]], None]

_PROPERTY = "differences"
# Cases that one process runs: with more, their first test would take longer than a test may.
_CASES_A_PROCESS = 24
_COLUMNS = {"loss": "loss (rel)", "weights": "weights (abs)", "state": "optimizer (rel)", "rate": "accuracy (abs)"}


def _wanted(items: list[pytest.Item], num_workers: int, mode: str, keras: int) -> list[str]:
    """Returns the cases that the collected tests compare; plain python (0 workers) runs them all."""
    found: dict[str, None] = {}
    for item in items:
        parameters = {"mode": "sync", "keras": 3, **getattr(getattr(item, "callspec", None), "params", {})}
        if item.path.parent != Path(__file__).parent or "case" not in parameters or parameters["keras"] != keras:
            continue
        if num_workers == 0 or (num_workers, mode) == (parameters["num_workers"], parameters["mode"]):
            found[parameters["case"]] = None
    return list(found)


@pytest.fixture(scope="session")
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Returns what a case gave on so many workers; the first call of a case runs those beside it too, in one process."""
    outcomes: dict[tuple[int, str, int], dict[str, Outcome]] = {}

    def get(case: str, num_workers: int, mode: str = "sync", keras: int = 3) -> dict[str, np.ndarray]:
        key = (num_workers, mode, keras)
        known = outcomes.setdefault(key, {})
        if case not in known:
            names = _beside(case, _wanted(request.session.items, *key))
            if num_workers == 0:
                known |= plain_outcomes(names, keras)
            else:
                out = tmp_path_factory.mktemp(f"keras{keras}-{mode}{num_workers}")
                known |= run_cases(names, num_workers, mode, out, keras)
        return known[case].expect()

    return get


def _beside(case: str, names: list[str]) -> list[str]:
    """Returns the cases that are run with this one, itself included."""
    first = names.index(case) // _CASES_A_PROCESS * _CASES_A_PROCESS
    return names[first : first + _CASES_A_PROCESS]


@pytest.fixture
def record(request: pytest.FixtureRequest) -> Record:
    """Keeps the differences of a case for the table at the end, which another process may print."""

    def keep(case: str, num_workers: int, differences: list[Difference]) -> None:
        row = (case, num_workers, largest(differences), all(one.within for one in differences))
        request.node.user_properties.append((_PROPERTY, row))

    return keep


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    reports = [r for outcome in ("passed", "failed") for r in terminalreporter.stats.get(outcome, [])]
    properties = [each for report in reports for each in getattr(report, "user_properties", [])]
    rows = [row for name, row in properties if name == _PROPERTY]
    if not rows:
        return
    terminalreporter.section("largest difference from plain python")
    heads = "".join(f"{title:>17}" for title in _COLUMNS.values())
    terminalreporter.write_line(f"{'case':<32}{'workers':>7}{heads}")
    for case, num_workers, found, passed in sorted(rows, key=lambda row: (row[1], row[0])):
        cells = "".join(f"{found[kind]:17.1e}" if kind in found else f"{'-':>17}" for kind in _COLUMNS)
        terminalreporter.write_line(f"{case:<32}{num_workers:>7}{cells}{'' if passed else '  beyond the limit'}")
