"""The comparison itself: it lets rounding through and nothing else."""

import numpy as np
import pytest

from tests.fidelity.comparison import compare, kind_of

LINE = "5/5 - 1s - 12ms/step - accuracy: 0.9012 - loss: 0.4321 - val_loss: 2.0000e-04"
PLAIN = {
    "history/loss": np.array([2.0, 1.0, 0.5]),
    "history/accuracy": np.array([0.1, 0.5, 0.8]),
    "weights/0": np.array([[0.5, -0.5], [1e-6, 0.0]], "float32"),
    "optimizer/0": np.array([1e-6, 2e-6]),
    "count/iterations": np.array(40),
    "text/lines": np.array(["Epoch 1/3", LINE]),
}

PLANTED = {
    "a loss": {"history/loss": np.array([2.0, 1.0, 0.5002])},
    "a loss that is not a number": {"history/loss": np.array([2.0, 1.0, np.nan])},
    "an epoch less": {"history/loss": np.array([2.0, 1.0])},
    "an accuracy": {"history/accuracy": np.array([0.1, 0.5, 0.80001])},
    "a weight": {"weights/0": np.array([[0.5, -0.5], [3e-4, 0.0]], "float32")},
    "a weight's shape": {"weights/0": np.array([[0.5, -0.5]], "float32")},
    "a slot of the optimizer": {"optimizer/0": np.array([1e-6, 2.1e-6])},
    "the iterations": {"count/iterations": np.array(39)},
    "a printed number": {"text/lines": np.array(["Epoch 1/3", LINE.replace("0.4321", "0.4324")])},
    "a printed word": {"text/lines": np.array(["Epoch 1/3", LINE.replace("accuracy", "acc")])},
    "a line": {"text/lines": np.array(["Epoch 1/3"])},
    "something new": {"weights/1": np.array(0.0)},
}


def beyond(distributed: dict[str, np.ndarray]) -> list[str]:
    return [difference.name for difference in compare(PLAIN, distributed) if not difference.within]


def test_the_same_passes() -> None:
    assert beyond(dict(PLAIN)) == []


def test_rounding_passes() -> None:
    rounded = {
        "history/loss": PLAIN["history/loss"] * (1 + 5e-5),
        "weights/0": PLAIN["weights/0"] + 5e-5,
        "text/lines": np.array(["Epoch 1/3", LINE.replace("1s - 12ms", "3s - 812us").replace("0.4321", "0.4322")]),
    }
    assert beyond({**PLAIN, **rounded}) == []


def test_coloured_times_pass() -> None:
    bars = [
        f"\x1b[1m5/5\x1b[0m \x1b[1m{time}\x1b[0m {rate}/step - loss: 0.4321"
        for time, rate in (("0s", "11ms"), ("1:02", "2s"))
    ]
    plain, distributed = ({"text/lines": np.array([bar])} for bar in bars)
    assert all(difference.within for difference in compare(plain, distributed))


@pytest.mark.parametrize("what", PLANTED)
def test_a_planted_difference_fails(what: str) -> None:
    assert beyond({**PLAIN, **PLANTED[what]}) == list(PLANTED[what])


def test_something_missing_fails() -> None:
    assert beyond({name: value for name, value in PLAIN.items() if name != "weights/0"}) == ["weights/0"]


def test_not_a_number_equals_itself() -> None:
    nan = {"history/loss": np.array([np.nan])}
    assert [difference.value for difference in compare(nan, nan)] == [0.0]


def test_rates_are_told_from_losses() -> None:
    assert [kind_of(f"history/{name}") for name in ("val_accuracy", "val_loss", "auc")] == ["rate", "loss", "loss"]
