"""Updates in one pass: each usual optimizer is recognised, and does what its traced graph does."""

import dataclasses
import itertools
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

import fdt.program.update.formula
from fdt.program.update.formula import Formula
from nfdt.compensation import Late, compensate, unknown_moves
from nfdt.one_pass import OnePass, TablePass
from nfdt.rows import by_row
from nfdt.rules import Strength, make_rule
from tests.helpers.formulas import OF_TABLES, OPTIMIZERS, header
from tests.helpers.programs import servers, traced
from tests.helpers.thorough import some_of
from tests.servers.test_compiled import does_as_traced, extent
from tests.servers.test_cut import WORDS, X, Y, dense_model, embedding_model


def test_the_header_has_what_keras_traces() -> None:
    found = Path(fdt.program.update.formula.__file__).parent / "native" / "formulas.h"
    assert found.read_text() == header(), (
        "make it again: python -m tests.helpers.formulas > fdt/program/update/native/formulas.h"
    )


# Of optimizers that differ in terms alone, the one with most. Without compensation one is enough: the formula is the same.
_DEFAULT = [
    ("adam", "asgd"),
    *((name, "ddc-asgd") for name in ("nesterov_decayed", "adamw", "rmsprop_momentum_centered", "adagrad", "adadelta")),
    *((name, "ddc-asgd") for name in ("adamax", "nadam", "lion")),
]
_DEFAULT_OF_TABLES = [
    ("adam", "asgd"),
    *((name, "ddc-asgd") for name in ("nesterov_decayed", "adamw", "adamax", "lion")),
]


@pytest.mark.parametrize(("optimizer", "rule"), some_of(itertools.product(OPTIMIZERS, ["asgd", "ddc-asgd"]), _DEFAULT))
def test_one_pass_does_what_the_graph_does(optimizer: str, rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    does_as_traced(traced(dense_model(OPTIMIZERS[optimizer]()), (X, Y)), rule, [X, Y], "one pass", monkeypatch)


@pytest.mark.parametrize(
    ("optimizer", "rule"), some_of(itertools.product(OF_TABLES, ["asgd", "ddc-asgd"]), _DEFAULT_OF_TABLES)
)
def test_one_pass_over_a_table_does_what_the_graph_does(
    optimizer: str, rule: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = traced(embedding_model(OPTIMIZERS[optimizer]()), (WORDS, Y))
    does_as_traced(step, rule, [WORDS, Y], "one pass", monkeypatch)


@pytest.mark.parametrize("index", ["int32", "int64"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("rows", "width"), [(1, 1), (700, 1), (500, 64)])
def test_rows_of_a_table_may_come_often_or_not_at_all(rows: int, width: int, dtype: str, index: str) -> None:
    random = np.random.default_rng(0)
    start = random.standard_normal((rows, width)).astype(dtype)
    table, sums = tf.Variable(start), tf.Variable(tf.zeros([rows, width], dtype))
    before = table.read_value()
    scalars, expected = [tf.constant(0.5, dtype)], np.zeros((rows, width))
    for number in (0, 3, 900):
        indices = random.integers(0, rows, number).astype(index)
        values = random.standard_normal((number, width)).astype(dtype)
        update = TablePass(momentum(), lambda _: scalars, [table, sums], lambda _, v=values: [tf.constant(v)])
        update(tf.constant(indices), by_row(tf.constant(indices)), {})
        gradient = np.zeros((rows, width))
        np.add.at(gradient, indices, values)
        expected = 0.5 * expected - gradient
        np.testing.assert_allclose(sums, expected, rtol=1e-4, atol=1e-4)
        start = start + expected
        np.testing.assert_allclose(table, start, rtol=1e-4, atol=1e-4)
    # Who has read it keeps what was read.
    assert np.array_equal(before, np.random.default_rng(0).standard_normal((rows, width)).astype(dtype))


def test_rows_that_are_not_there_are_refused() -> None:
    table, sums = (tf.Variable(tf.zeros([4, 2])) for _ in range(2))
    values = tf.ones([1, 2])
    for index, given, message in (
        (4, values, "no row 4"),
        (-1, values, "no row -1"),
        (0, values[:, :1], "for 1 rows of 2"),
    ):
        update = TablePass(momentum(), lambda _: [tf.constant(0.5)], [table, sums], lambda _, g=given: [g])
        with pytest.raises(tf.errors.InvalidArgumentError, match=message):
            update(tf.constant([index]), tf.constant([0], tf.int64), {})
    assert not np.any(table)


def momentum() -> Formula:
    text = next(text for text, name in fdt.program.update.formula._compiled().items() if name == "table_momentum")
    return Formula(text, ("sum",), (("momentum", 0),), is_exact=True)


def sgd(places: Sequence[int], parameters: tf.Variable, rate: float = 0.5) -> OnePass:
    text = next(text for text, name in fdt.program.update.formula._compiled().items() if name == "sgd")
    scalars = [tf.constant(rate, parameters.dtype)]
    return OnePass(Formula(text, ("gradient",), (("rate", 0),), is_exact=True), lambda _: scalars, [parameters], places)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_tensors_go_to_their_places_and_who_has_read_keeps_what_was_read(dtype: str) -> None:
    """Of several blocks, too."""
    sizes, places = [40_000, 5, 16], [40_000, 16, 16]
    random = np.random.default_rng(0)
    tensors = [random.random(size).astype(dtype) for size in sizes]
    start = np.concatenate([np.pad(random.random(s), (0, p - s)) for s, p in zip(sizes, places, strict=True)]).astype(
        dtype
    )
    joined = np.concatenate([np.pad(t, (0, p - t.size)) for t, p in zip(tensors, places, strict=True)])
    parameters = tf.Variable(start)
    before = parameters.read_value()
    update = sgd(places, parameters)
    update([tf.reshape(tensors[0], [200, 200]), *map(tf.constant, tensors[1:])], {})
    assert np.array_equal(before, start)
    np.testing.assert_allclose(parameters.numpy(), start - joined * np.asarray(0.5, dtype), rtol=1e-7)
    # Now that nobody has read it, where it is.
    held = np.array(parameters.numpy())
    update([tf.constant(tensor) for tensor in tensors], {})
    np.testing.assert_allclose(parameters.numpy(), held - joined * np.asarray(0.5, dtype), rtol=1e-7)


def test_what_does_not_fit_is_refused() -> None:
    parameters = tf.Variable(tf.zeros([32]))
    for places, sizes in (([32], [33]), ([16], [16]), ([16, 16], [16]), ([16, 32], [16, 32])):
        with pytest.raises(tf.errors.InvalidArgumentError, match=r"entries, its place|of 32 places"):
            sgd(places, parameters)([tf.zeros([size]) for size in sizes], {})


@pytest.mark.parametrize(
    ("version", "delay", "remembered", "message"),
    [
        (-1, 0, 4, "no 0 versions before version -1"),
        (-(2**62) - 1, 0, 4, "versions before version -4611686018427387905"),
        (-1, -1, 4, "no -1 versions before version -1"),
        (1, 2, 4, "no 2 versions before version 1"),
        (1, 0, 0, "Of no update"),
    ],
)
def test_no_update_is_remembered_outside_of_what_remembers(
    version: int, delay: int, remembered: int, message: str
) -> None:
    parameters, squares = tf.Variable(tf.zeros([64])), tf.Variable(tf.zeros([64]))
    moved = tf.Variable(np.full([remembered], np.inf, np.float32))
    numbers = tf.constant(delay, tf.int64), tf.constant(version, tf.int64)
    late = Late(make_rule("ddc-asgd"), tf.zeros([64]), *numbers, moved, squares)
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        sgd([64], parameters)([tf.ones([64])], {}, late)
    assert not np.any(parameters) and np.all(np.isinf(moved))


def test_an_operation_that_has_no_text_makes_no_formula() -> None:
    step = traced(dense_model(tf.keras.optimizers.Ftrl(0.1)), (X, Y))
    assert extent(servers(step, make_rule("asgd"))) == "all"


# ---- compensated in the same pass -----------------------------------------------------------------------------------

SIZES, PLACES = [40_000, 5, 16], [40_000, 16, 16]
COMPENSATING = {
    "adaptive": make_rule("dc-asgd-a"),
    "constant": make_rule("dc-asgd-c"),
    "clipped": make_rule("ddc-asgd"),
    "clipped constant": dataclasses.replace(make_rule("dc-asgd-c"), clip=1e-4),
}


def padded(size: float, seed: int, dtype: str) -> np.ndarray:
    random = np.random.default_rng(seed)
    tensors = (size * random.standard_normal(n) for n in SIZES)
    return np.concatenate([np.pad(t, (0, p - t.size)) for t, p in zip(tensors, PLACES, strict=True)]).astype(dtype)


def gradient_of(seed: int, dtype: str) -> list[tf.Tensor]:
    starts = np.cumsum([0, *PLACES])
    vector = padded(1.0, seed, dtype)
    return [tf.constant(vector[start : start + size]) for start, size in zip(starts, SIZES, strict=False)]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("rule", COMPENSATING)
def test_compensated_in_the_same_pass_it_is_what_two_operations_make(rule: str, dtype: str) -> None:
    """Bit by bit, whether the clip matters or not: the first steps are too short for it, the fourth is long."""
    chosen, rates = COMPENSATING[rule], [1e-5, 1e-5, 1e-5, 2.0, 1e-5, 1e-5, 1e-5]
    one, two, kept, apart = (tf.Variable(padded(1.0, 0, dtype)) for _ in range(4))
    for variable in (kept, apart):
        variable.assign(tf.zeros_like(variable))
    moved = tf.Variable(unknown_moves())
    adaptive = chosen.strength is Strength.ADAPTIVE
    history, clipped = [one.read_value()], []
    for number, rate in enumerate(rates):
        then = history[max(0, number - 2)]
        delay, version = tf.constant(min(2, number), tf.int64), tf.constant(number + 1, tf.int64)
        late = Late(chosen, then, delay, version, moved, kept if adaptive else None)
        found = sgd(PLACES, one, rate)(gradient_of(number, dtype), {}, late)
        compensated, expected = compensate(
            chosen, gradient_of(number, dtype), two.read_value(), then, apart if adaptive else None,
            delay, tf.cast(version, tf.float32), PLACES,
        )  # fmt: skip
        clipped.append(chosen.clip < np.inf and bool(expected[0] >= 0.999 * chosen.clip**2 * expected[1] > 0))
        sgd([sum(PLACES)], two, rate)([compensated], {})
        assert np.array_equal(one, two)
        assert np.array_equal(kept, apart)
        np.testing.assert_allclose(found, expected, rtol=1e-6)
        history.append(one.read_value())
    assert any(clipped) == np.isfinite(chosen.clip)


def test_how_far_parameters_can_have_moved_is_remembered() -> None:
    """Of a step that nobody knows, it may be any way."""
    parameters, moved, squares = tf.Variable(tf.zeros([64])), tf.Variable(unknown_moves()), tf.Variable(tf.zeros([64]))
    held = []
    for version in (1, 2, 3):
        held.append(parameters.read_value())
        at = tf.constant(version, tf.int64)
        late = Late(make_rule("ddc-asgd"), held[0], tf.zeros([], tf.int64), at, moved, squares)
        sgd([64], parameters, 0.5)([tf.fill([64], float(version))], {}, late)
    assert moved.numpy()[:5].tolist() == [np.inf, 0.5, 1.0, 1.5, np.inf]
    # Where nobody has read them they are written where they are, and what they were is not known.
    held.clear()
    late = Late(make_rule("ddc-asgd"), tf.zeros([64]), tf.zeros([], tf.int64), tf.constant(2, tf.int64), moved, squares)
    sgd([64], parameters, 0.5)([tf.ones([64])], {}, late)
    assert moved.numpy()[2] == np.inf
