"""How a sweep compares what two runs have printed."""

import pytest

from tests.sweep.comparing import largest_difference, lines
from tests.sweep.running import without_places


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("epoch 3: loss 0.25 (12s)", "epoch 3: loss 0.25 (7s)"),
        ("step 10 loss 0.25, 3.4 ms/step", "step 10 loss 0.25, 12 ms/step"),
        ("[0:00:12] loss: 0.25", "[0:01:08.250000] loss: 0.25"),
        ("2026-11-24 17:03:44,123 INFO loss=0.25", "2025-01-02 07:13:00,001 INFO loss=0.25"),
        ("loss 0.25 - time: 1.5e-03", "loss 0.25 - time: 0.8"),
        ("Loss 0.25 Time 9.50 sec", "Loss 0.25 Time 10.75 sec"),
        ("1m 3s loss 0.25", "59m 12.5s loss 0.25"),
        ("12%| | 3/25 [00:12<01:40, 3.21it/s, loss=0.25]", "12%| | 3/25 [00:02<00:40, 13.9it/s, loss=0.25]"),
        ("loss 0.25 at <object 0x7f01>", "loss 0.25 at <object 0xae12>"),
        ("25/25 ━━━━ 1s 4ms/step - loss: 0.25", "25/25 ━━━━ 0s 986us/step - loss: 0.25"),
    ],
)
def test_times_are_hidden_and_the_figures_beside_them_are_compared(one: str, other: str) -> None:
    assert largest_difference(one, other) == 0.0
    assert largest_difference(one, other.replace("0.25", "0.5")) == pytest.approx(0.25 / 0.251)


@pytest.mark.parametrize(
    "line", ["epoch 3:12.5", "the first 5 samples: 0.25", "at step 10:45.25", "sample 1s0.25", "times 3 of 0.25"]
)
def test_a_figure_that_looks_like_a_time_is_compared(line: str) -> None:
    assert largest_difference(line, line.replace("5", "7")) != 0.0


def test_a_line_that_tells_of_a_time_in_an_unknown_form_is_left_out() -> None:
    assert lines("time of epoch 1 was 3.4\nloss 0.25") == ["loss 0.25"]


def test_of_a_bar_the_last_state_is_kept_and_a_line_with_a_rate_is_not_a_bar() -> None:
    bar = " 5/25 ━━ 1s 4ms/step - loss: 0.9\n25/25 ━━━━ 1s 4ms/step - loss: 0.5\n25/25 ━━━━ 1s 5ms/step - loss: 0.25\n"
    assert lines(bar + "loss 0.25 at 3 ms/step") == ["25/25-loss:0.25", "loss 0.25 at"]


@pytest.mark.parametrize(("one", "other"), [("0.0193", "0.0194"), ("-1.999", "-2.000"), ("loss: 0.100", "loss: 0.101")])
def test_one_of_the_last_of_some_digits_is_rounding(one: str, other: str) -> None:
    assert largest_difference(one, other) == 0.0


@pytest.mark.parametrize(("one", "other"), [("0.0193", "0.0195"), ("3", "4"), ("97.5", "97.6"), ("0.01", "0.02")])
def test_more_of_the_last_digit_or_a_count_is_a_difference(one: str, other: str) -> None:
    assert largest_difference(one, other) != 0.0


def test_where_operations_are_placed_is_nothing_that_a_script_has_printed() -> None:
    placed = "gradients/Tanh_12_grad/mul: (Mul): /job:localhost/replica:0/task:0/device:CPU:0\n"
    printed = "layer: (2, 3) on /device:CPU:0\nIt: 0, Loss: 7.682e-01\n"
    assert without_places(placed * 2 + printed + placed) == printed
