"""Sizes that differ from batch to batch: arithmetic is that of their numbers, and conditions tell the batches it holds for."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fdt.program.layout import sized_shares
from fdt.program.size import Conditions, Size, is_same, of_inputs

_SHAPES = ((8, 17), (8, 5, 3))
_ALL = {(i, d) for i, shape in enumerate(_SHAPES) for d in range(len(shape))}
# Of the sizes a (8), b (17), c (5) and d (3), and a number.
_EXPRESSIONS: dict[str, Callable[..., Any]] = {
    "sum": lambda a, b, c, d, n: a + b - c + n,
    "product": lambda a, b, c, d, n: a * b * (c + n) * d,
    "exact quotient": lambda a, b, c, d, n: (n * a * b * c) // (a * n),
    "quotient": lambda a, b, c, d, n: (a * b + c) // (d + 1),
    "remainder": lambda a, b, c, d, n: (a * b + c) % (n + 1),
    "reversed": lambda a, b, c, d, n: n * 100 - a * (b % d),
}


def _sizes(conditions: Conditions) -> list[Any]:
    first, second = of_inputs(_SHAPES, _ALL, conditions)
    return [*first, *second[1:]]


@pytest.mark.parametrize("name", _EXPRESSIONS)
@given(rows=st.integers(1, 9), b=st.integers(1, 40), c=st.integers(1, 9), d=st.integers(1, 9), n=st.integers(1, 5))
def test_a_size_has_the_number_of_each_batch(name: str, rows: int, b: int, c: int, d: int, n: int) -> None:
    conditions = Conditions()
    size = _EXPRESSIONS[name](*_sizes(conditions), n)
    assert size.value == _EXPRESSIONS[name](8, 17, 5, 3, n)
    assert size.of([(rows, b), (rows, c, d)]) == _EXPRESSIONS[name](rows, b, c, d, n)


def test_terms_that_cancel_leave_a_number() -> None:
    a, b, *_ = _sizes(Conditions())
    found = [a - a, (a + 1) * (a - 1) - a * a, (a * b) // b - a + 2, (6 * a) % 3, 0 * a]
    assert found == [0, -1, 2, 0, 0] and all(type(number) is int for number in found)


def test_shares_add_up_to_the_rows_of_all_batches() -> None:
    conditions = Conditions()
    rows, *_ = _sizes(conditions)
    shares = sized_shares(rows, 3)
    assert is_same(sum(shares), rows)
    assert [share.of([(7, 1), (7, 1, 1)]) for share in shares] == [3, 2, 2]


@pytest.mark.parametrize(
    ("asks", "holds", "breaks"),
    [
        (lambda a, b, c, d: a == 8, (8, 1, 1, 1), (9, 17, 5, 3)),
        (lambda a, b, c, d: b == 1, (8, 2, 5, 3), (8, 1, 5, 3)),
        (lambda a, b, c, d: b > c, (1, 9, 8, 1), (8, 5, 5, 3)),
        (lambda a, b, c, d: c <= b, (1, 8, 8, 1), (8, 4, 5, 3)),
        (lambda a, b, c, d: int(c * d), (1, 1, 3, 5), (8, 17, 5, 4)),
        (lambda a, b, c, d: [0] * b, (1, 17, 1, 1), (8, 18, 5, 3)),
        (lambda a, b, c, d: np.zeros(5)[: c + 1], (1, 1, 5, 1), (8, 17, 4, 3)),
        (lambda a, b, c, d: bool((a * b) % 2 == 0), (1, 2, 1, 1), (3, 3, 5, 3)),
    ],
)
def test_what_is_asked_is_a_condition(
    asks: Callable[..., Any], holds: tuple[int, ...], breaks: tuple[int, ...]
) -> None:
    conditions = Conditions()
    asks(*_sizes(conditions))
    assert conditions.hold(_SHAPES)
    assert conditions.hold([holds[:2], (holds[0], *holds[2:])])
    assert not conditions.hold([breaks[:2], (breaks[0], *breaks[2:])])


def test_what_holds_for_all_batches_is_not_asked() -> None:
    conditions = Conditions()
    a, b, *_ = _sizes(conditions)
    before = str(conditions)
    assert a + 1 > 0 and a != -1 and a * b + 3 != 0 and a - a == 0 and not is_same(a, b) and -a - 1 < 0
    assert str(conditions) == before


def test_sizes_that_do_not_differ_are_conditions_too() -> None:
    """A division made while only lengths differ does not serve a batch of fewer rows."""
    conditions = Conditions()
    ((rows, length),) = of_inputs([(8, 17)], {(0, 1)}, conditions)
    assert rows == 8 and isinstance(length, Size)
    assert conditions.hold([(8, 30)]) and not conditions.hold([(7, 17)])


def test_sizes_that_are_equal_now_are_taken_for_one() -> None:
    conditions = Conditions()
    ((one,), (other,)) = of_inputs([(6,), (6,)], {(0, 0), (1, 0)}, conditions)
    assert is_same(one, other)
    assert conditions.hold([(9,), (9,)]) and not conditions.hold([(9,), (8,)])


def test_a_trial_leaves_no_conditions() -> None:
    conditions = Conditions()
    a, *_ = _sizes(conditions)
    with conditions.trial():
        int(a)
    assert conditions.hold([(5, 1), (5, 1, 1)])
    int(a)
    assert not conditions.hold([(5, 1), (5, 1, 1)])
