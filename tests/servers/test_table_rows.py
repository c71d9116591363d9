"""Of a table that is only looked up workers get the rows that a batch uses, and a step comes to what it does with all rows."""

import functools
from collections.abc import Sequence
from typing import Any, cast

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from fdt.capture.keras import opening
from fdt.program import table_lookups
from fdt.program.table_lookups import ByRows, Whole, tables_of
from nfdt import plain_operations
from nfdt.feed import Arrays
from nfdt.row_transfer import Part, fetch
from nfdt.rows import distinct
from nfdt.rules import make_rule
from nfdt.servers import ParameterServers
from nfdt.table_snapshots import Values
from tests.helpers.programs import Traced, servers, state, traced
from tests.helpers.rehearsal import lags_of, rehearse, round_robin
from tests.helpers.table_models import BY_ROWS, LABELS, NUM_ROWS, OPTIMIZERS, WIDTH, WORDS, embedding, tied

RULES = ["asgd", "dynsgd", "dc-asgd-a", "dc-asgd-c", "dc-asgdk", "ddc-asgd"]


def step_of(model: str, optimizer: str) -> Traced:
    return traced(BY_ROWS[model](OPTIMIZERS[optimizer]()), (WORDS, LABELS), mode="async")


def whole(step: Traced, monkeypatch: pytest.MonkeyPatch, **named: int) -> ParameterServers:
    """Returns servers from which workers pull whole tables."""
    with monkeypatch.context() as patched:
        patched.setattr(table_lookups, "LEAST_BYTES", 1 << 40)
        kept = servers(step, make_rule("ddc-asgd"), **named)
    assert kept._computation.tables == ()
    return kept


def differing(step: Traced, one: ParameterServers, other: ParameterServers) -> list[str]:
    mine, others = state(one, step), state(other, step)
    return [step.program.variables[i].tensor.name for i in mine if not np.array_equal(mine[i], others[i])]


@pytest.mark.parametrize("model", BY_ROWS)
def test_tables_that_are_only_looked_up_are_found(model: str) -> None:
    step = step_of(model, "sgd")
    (verdict,) = tables_of(step.program).values()
    assert isinstance(verdict, ByRows)
    (line,) = opening._tables(cast(Any, step))
    assert line.startswith("tables that go by rows, those that a batch uses: ") and line.endswith(" (0.2 MB)")
    kept = servers(step, make_rule("asgd"))
    (table,) = kept._computation.tables
    assert len(table.places) == len(verdict.lookups) == (2 if model in ("two lookups", "sampled") else 1)
    assert kept.replicas[0].read([table.variable])[table.variable].shape == (0, WIDTH)


def test_a_table_that_is_used_otherwise_is_pulled_whole() -> None:
    step = traced(tied(OPTIMIZERS["sgd"]()), (WORDS, LABELS), mode="async")
    # Its gradient is that of the product, too, which is dense.
    assert dict(tables_of(step.program)) == {}
    assert servers(step, make_rule("asgd"))._computation.tables == ()


@pytest.mark.parametrize(
    ("model", "optimizer"), [*(("two lookups", each) for each in OPTIMIZERS), *((each, "adagrad") for each in BY_ROWS)]
)
def test_with_one_worker_it_is_plain_keras(model: str, optimizer: str) -> None:
    """To the last bit."""
    built = BY_ROWS[model](OPTIMIZERS[optimizer]())
    step = traced(built, (WORDS, LABELS), mode="async")
    kept = servers(step, make_rule("ddc-asgd"), num_workers=1)
    assert kept._computation.tables
    for _ in range(3):
        kept.step(0, Arrays([tf.constant(WORDS), tf.constant(LABELS)]), np.arange(8))
    built.fit(np.tile(WORDS, (3, 1)), np.tile(LABELS, 3), batch_size=8, shuffle=False, verbose=0)
    found, plain = {**kept.replicas[0].read(range(len(step.variables))), **state(kept, step)}, step.values()
    for i, variable in enumerate(step.program.variables):
        assert np.array_equal(found[i], plain[i]), variable.tensor.name


@pytest.mark.parametrize(
    ("model", "optimizer", "rule"),
    [
        *(("embedding", optimizer, rule) for rule in RULES for optimizer in ("adam", "rows of adagrad")),
        ("combined", "adagrad", "ddc-asgd"),
        ("sampled", "sgd", "asgd"),
    ],
)
def test_with_delays_it_is_what_the_whole_table_makes(
    model: str, optimizer: str, rule: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To the last bit, on two servers."""
    step = step_of(model, optimizer)
    by_rows = servers(step, make_rule(rule), num_shards=2)
    monkeypatch.setattr(table_lookups, "LEAST_BYTES", 1 << 40)
    pulled = servers(step, make_rule(rule), num_shards=2)
    told = [
        list(rehearse(kept, lags_of(round_robin(3, 8)), lambda i: [np.roll(a, i, 0)[:5] for a in (WORDS, LABELS)]))
        for kept in (by_rows, pulled)
    ]
    assert by_rows._computation.tables and not pulled._computation.tables
    assert told[0] == told[1]
    assert differing(step, by_rows, pulled) == []


@functools.cache
def both() -> tuple[Traced, ParameterServers, ParameterServers]:
    step = step_of("two lookups", "rows of adagrad")
    with pytest.MonkeyPatch.context() as patched:
        pulled = whole(step, patched)
    return step, servers(step, make_rule("ddc-asgd")), pulled


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(0, 999), min_size=1, max_size=12),
    st.lists(st.integers(0, NUM_ROWS - 1), min_size=6, max_size=48),
)
def test_however_workers_follow_each_other_it_is_what_the_whole_table_makes(
    order: Sequence[int], words: Sequence[int]
) -> None:
    """To the last bit: the order in which up to a thousand workers push, and the words of their batches."""
    step, *kept = both()
    rows = len(words) // 6
    batch = np.asarray(words[: rows * 6], "int32").reshape(rows, 6)
    for each in kept:
        each.assign(step.values())
    told = [
        list(rehearse(each, lags_of(order), lambda i: [(batch + i) % NUM_ROWS, LABELS[np.arange(rows) % 8]]))
        for each in kept
    ]
    assert told[0] == told[1]
    assert differing(step, *kept) == []


@pytest.mark.parametrize("wrong", [NUM_ROWS, -NUM_ROWS - 1])
@pytest.mark.parametrize("num_workers", [1, 2])
def test_a_row_that_the_table_does_not_have_is_plain_pythons_error(wrong: int, num_workers: int) -> None:
    model = embedding(OPTIMIZERS["adam"]())
    step = traced(model, (WORDS, LABELS), mode="async")
    kept = servers(step, make_rule("asgd"), num_workers=num_workers)
    words = np.array(WORDS)
    words[2, 3] = wrong
    with pytest.raises(tf.errors.InvalidArgumentError) as plain:
        model(words)
    told = plain.value.message.split(" is not in ")[0].split("indices")[-1]
    assert told.startswith("[2,3] = ")
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"is not in \[0, 600\)") as raised:
        kept.step(0, Arrays([tf.constant(words), tf.constant(LABELS)]), np.arange(8))
    assert f"indices{told} is not in [0, {NUM_ROWS})" in raised.value.message


def test_row_numbers_become_distinct_ones_without_a_compiler_too() -> None:
    asked = [tf.constant([[5, 2], [5, 9]]), tf.constant([], tf.int64), tf.constant(2), tf.constant([0, 9], tf.int64)]
    found, places = plain_operations.distinct(asked, 10)
    assert found.numpy().tolist() == [5, 2, 9, 0]
    assert [place.numpy().tolist() for place in places] == [[[0, 1], [0, 2]], [], 1, [3, 2]]
    for wrong in ([[1, 10]], [3, -1], 11):
        with pytest.raises(tf.errors.InvalidArgumentError, match=r"indices are not in \[0, 10\)"):
            plain_operations.distinct([tf.constant(wrong)], 10)


def test_row_numbers_become_distinct_ones_and_their_places() -> None:
    asked = [tf.constant([[5, 2], [5, 9]]), tf.constant([], tf.int64), tf.constant(2), tf.constant([0, 9], tf.int64)]
    found, places = distinct(asked, 10)
    assert found.numpy().tolist() == [5, 2, 9, 0]
    assert [place.numpy().tolist() for place in places] == [[[0, 1], [0, 2]], [], 1, [3, 2]]
    for wrong, where in (([[1, 10]], r"\[0,1\] = 10"), ([3, -1], r"\[1\] = -1"), (11, " = 11")):
        with pytest.raises(tf.errors.InvalidArgumentError, match=rf"indices{where} is not in \[0, 10\)"):
            distinct([tf.constant(wrong)], 10)


@pytest.mark.parametrize("rounded", [False, True])
def test_rows_are_fetched_each_once(rounded: bool) -> None:
    table = tf.reshape(tf.range(40, dtype=tf.float32), [10, 4])
    for asked in ([[[7, 7, 1]], [1]], [[], []]):
        tensors = [tf.cast(tf.constant(each), tf.int32) for each in asked]
        # Another name of the same device: the way over devices.
        fetched = fetch([Part(Values(tf.Variable(table)), table, "/device:CPU:0")], tensors, "/CPU:0", rounded)
        there = [tf.gather(fetched.rows, places) for places in fetched.places]
        for found, numbers in zip(there, tensors, strict=True):
            assert np.array_equal(found, tf.gather(table, numbers))
        assert [places.dtype for places in fetched.places] == [tf.int32] * 2
        number = len({row for each in tensors for row in each.numpy().ravel()})
        assert fetched.rows.shape == (number, 4)
        assert float(fetched.num_bytes) == number * (4 * (2 if rounded else 4) + 4)


def test_bytes_of_a_step_are_those_of_its_rows() -> None:
    step = step_of("embedding", "sgd")
    kept = servers(step, make_rule("asgd"))
    stepped = kept.step(0, Arrays([tf.constant(WORDS), tf.constant(LABELS)]), np.arange(8))
    rows = len(np.unique(WORDS)) + WORDS.size
    # The dense layer there and back, its bias padded.
    dense = 2 * 4 * (6 * WIDTH * 3 + 16)
    assert stepped.num_bytes == dense + rows * (WIDTH * 4 + 4)


@pytest.mark.parametrize("verdict", ["Square uses all of it", "the step returns all of it"])
def test_the_reason_is_told(verdict: str) -> None:
    class Model(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.table = self.add_weight(shape=(NUM_ROWS, WIDTH), initializer="uniform", name="table")

        def train_step(self, data: tuple[tf.Tensor, tf.Tensor]) -> dict[str, tf.Tensor]:
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(tf.gather(self.table.value, data[0]))
            self.optimizer.apply(tape.gradient(loss, [self.table.value]), [self.table])
            if verdict.startswith("Square"):
                return {"loss": loss, "norm": tf.reduce_sum(tf.square(self.table.value))}
            return {"loss": loss, "table": self.table.value.read_value()}

    model = Model()
    model.compile(OPTIMIZERS["sgd"]())
    step = traced(model, (WORDS, LABELS), mode="async")
    (found,) = tables_of(step.program).values()
    assert found == Whole(verdict)
    (line,) = opening._tables(cast(Any, step))
    assert "(0.2 MB) is pulled whole in each step: " + verdict in line
    assert servers(step, make_rule("asgd"))._computation.tables == ()
