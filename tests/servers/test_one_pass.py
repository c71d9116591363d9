"""Updates in one pass: each usual optimizer is recognised, and does what its traced graph does."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

import nfdt.formula
from nfdt.formula import Formula
from nfdt.one_pass import OnePass, TablePass
from nfdt.rules import make_rule
from tests.helpers.formulas import OF_TABLES, OPTIMIZERS, header
from tests.helpers.programs import servers, traced
from tests.servers.test_compiled import does_as_traced, extent
from tests.servers.test_cut import WORDS, X, Y, dense_model, embedding_model


def test_the_header_has_what_keras_traces() -> None:
    found = Path(nfdt.formula.__file__).parent / "native" / "formulas.h"
    assert found.read_text() == header(), "make it again: python -m tests.helpers.formulas > nfdt/native/formulas.h"


@pytest.mark.parametrize("rule", ["asgd", "ddc-asgd"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_one_pass_does_what_the_graph_does(optimizer: str, rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    does_as_traced(traced(dense_model(OPTIMIZERS[optimizer]()), (X, Y)), rule, [X, Y], "one pass", monkeypatch)


@pytest.mark.parametrize("rule", ["asgd", "ddc-asgd"])
@pytest.mark.parametrize("optimizer", OF_TABLES)
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
        update(tf.constant(indices), {})
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
            update(tf.constant([index]), {})
    assert not np.any(table)


def momentum() -> Formula:
    text = next(text for text, name in nfdt.formula._compiled().items() if name == "table_momentum")
    return Formula(text, ("sum",), (("momentum", 0),))


def sgd(places: Sequence[int], parameters: tf.Variable, rate: float = 0.5) -> OnePass:
    text = next(text for text, name in nfdt.formula._compiled().items() if name == "sgd")
    scalars = [tf.constant(rate, parameters.dtype)]
    return OnePass(Formula(text, ("gradient",), (("rate", 0),)), lambda _: scalars, [parameters], places)


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


def test_an_operation_that_has_no_text_makes_no_formula() -> None:
    step = traced(dense_model(tf.keras.optimizers.Ftrl(0.1)), (X, Y))
    assert extent(servers(step, make_rule("asgd"))) == "all"
