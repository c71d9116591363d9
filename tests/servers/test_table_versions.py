"""A version of a table is what the table was when it was taken, whatever is written after it."""

import threading
from collections.abc import Sequence

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from fdt.base.native import library
from nfdt.rules import make_rule
from nfdt.table_snapshots import Values, Versions
from tests.helpers.programs import servers, traced
from tests.helpers.table_models import BY_ROWS, LABELS, OPTIMIZERS, WORDS

NUM_ROWS = 12
ALL = tf.range(NUM_ROWS)


def versions() -> Versions:
    first = np.random.default_rng(0).normal(size=(NUM_ROWS, 3)).astype("float32")
    return Versions(tf.Variable(first), library("nfdt").ops)


def update(kept: Versions, rows: Sequence[int], value: float) -> None:
    numbers = tf.constant(rows, tf.int64)
    kept.before_update(numbers)
    kept.table.scatter_update(tf.IndexedSlices(tf.fill([len(rows), 3], value), numbers))


UPDATE = st.lists(st.integers(0, NUM_ROWS - 1), max_size=5)
DROP = st.integers(0, 99)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.one_of(UPDATE, DROP, st.just("take"))))
def test_a_version_is_the_table_as_it_was(history: Sequence[list[int] | int | str]) -> None:
    kept, held = versions(), []
    for number, event in enumerate(history):
        if event == "take":
            held.append((kept.take(), kept.table.numpy()))
        elif isinstance(event, int):
            held = [each for place, each in enumerate(held) if place != event % len(held)]
        else:
            update(kept, event, float(number))
    for version, then in held:
        assert np.array_equal(kept.rows(version, ALL), then)
    assert np.array_equal(kept.rows_now(ALL), kept.table.numpy())


def test_an_old_version_keeps_each_row_once() -> None:
    kept = versions()
    old, then = kept.take(), kept.table.numpy()
    for number in range(100):
        update(kept, [number % 4, 7], float(number))
    assert "5 rows kept" in repr(old)
    assert np.array_equal(kept.rows(old, ALL), then)
    assert "0 rows kept" in repr(kept.take())


def test_a_version_does_not_change_while_rows_are_written() -> None:
    kept, differing, is_over = versions(), [], threading.Event()

    def read() -> None:
        while not is_over.is_set():
            version = kept.take()
            first, second = (kept.rows(version, ALL).numpy() for _ in range(2))
            # Each update writes one value to all rows.
            if not np.array_equal(first, second) or len(np.unique(first[:, 0])) > 1:
                differing.append((first, second))

    update(kept, range(NUM_ROWS), -1.0)
    reader = threading.Thread(target=read)
    reader.start()
    try:
        for number in range(300):
            before = kept._newest.read_value()
            after = library("nfdt").ops.fdt_next_version(
                table=kept.table.handle, newest=before, rows=tf.range(NUM_ROWS)
            )
            for row in range(NUM_ROWS):
                kept.table.scatter_update(tf.IndexedSlices(tf.fill([1, 3], float(number)), [row]))
            # As in a shard, which shows a version when the update has ended.
            kept._newest.assign(after)
    finally:
        is_over.set()
        reader.join(timeout=60)
    assert not reader.is_alive()
    assert differing == []


def test_what_was_not_kept_before_an_assignment_is_lost() -> None:
    kept = versions()
    old, then = kept.take(), kept.table.numpy()
    update(kept, [3], 1.0)
    kept.before_assignment()
    kept.table.assign(tf.zeros([NUM_ROWS, 3]))
    assert np.array_equal(kept.rows(old, [3]), then[3:4])
    with pytest.raises(tf.errors.FailedPreconditionError, match="set after this version"):
        kept.rows(old, [2])
    assert np.array_equal(kept.rows(kept.take(), ALL), np.zeros([NUM_ROWS, 3]))


def test_a_row_that_there_is_not_is_refused() -> None:
    kept = versions()
    for row in (-1, NUM_ROWS):
        with pytest.raises(tf.errors.InvalidArgumentError, match=f"no row {row} in a table of {NUM_ROWS}"):
            kept.rows(kept.take(), [row])


@pytest.mark.parametrize(
    ("optimizer", "kind"), [("sgd", Versions), ("rows of adagrad", Versions), ("adam", Values), ("momentum", Values)]
)
def test_tables_of_which_an_update_writes_rows_have_versions(optimizer: str, kind: type) -> None:
    step = traced(BY_ROWS["embedding"](OPTIMIZERS[optimizer]()), (WORDS, LABELS), mode="async")
    (shard,) = servers(step, make_rule("ddc-asgd")).shards
    assert [type(table) for table in shard._tables] == [kind]
