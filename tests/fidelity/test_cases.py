"""One process serves many cases: what one case does to it costs no other."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from tests.fidelity import cases
from tests.helpers.processes import Finished


def dies_in(fatal: str) -> object:
    """Returns a stand-in for a process that is killed in one case and finds a second one raising."""

    def run(names: Sequence[str], num_workers: int, mode: str, out: Path, keras: int) -> Finished:
        for name in names:
            if name == fatal:
                return Finished(("run",), -9, "", "Killed")
            if name == "raises":
                (out / f"{name}.error").write_text("ValueError: mine")
            else:
                np.savez(out / f"{name}.npz", value=np.array(len(name)))
        return Finished(("run",), 0, "", "")

    return run


def test_a_lost_process_costs_one_case(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cases, "_run", dies_in("fatal"))
    outcomes = cases.run_cases(["one", "fatal", "raises", "four"], 2, "sync", tmp_path)
    assert {name: outcome.error is None for name, outcome in outcomes.items()} == {
        "one": True,
        "fatal": False,
        "raises": False,
        "four": True,
    }
    with pytest.raises(AssertionError, match=r"ended in case fatal[\s\S]*exit status -9[\s\S]*Killed"):
        outcomes["fatal"].expect()
    with pytest.raises(AssertionError, match="ValueError: mine"):
        outcomes["raises"].expect()
    assert outcomes["four"].expect()["value"] == 4


def test_it_is_not_started_again_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cases, "_run", lambda *_: Finished(("run",), None, "", ""))
    outcomes = cases.run_cases(list("abcdefgh"), 2, "sync", tmp_path)
    errors = [outcomes[name].error or "" for name in "abcdefgh"]
    assert ["the process ended in case" in error for error in errors] == [True] * 4 + [False] * 4
    assert all("not run" in error for error in errors[4:])
