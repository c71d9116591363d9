"""Of a large table each of several servers holds some rows, and a step comes to what one server with all of them makes."""

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from fdt.forecast.samples import Sample
from nfdt import layout
from nfdt.feed import Arrays
from nfdt.layout import LEAST_PART_BYTES
from nfdt.rules import make_rule
from nfdt.servers import ParameterServers
from tests.helpers.programs import Traced, servers, state, traced
from tests.helpers.rehearsal import lags_of, rehearse, round_robin
from tests.helpers.table_models import BY_ROWS, LABELS, NUM_ROWS, OPTIMIZERS, WIDTH, WORDS

# Their update reads the whole table, so it stays on one server: Keras 3's division of rows looks for zeros in all of them.
WHOLE = {"adagrad"}


@pytest.fixture(autouse=True)
def _small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layout, "LEAST_PART_BYTES", dict.fromkeys((True, False), 1 << 10))


def step_of(model: str, optimizer: str) -> Traced:
    return traced(BY_ROWS[model](OPTIMIZERS[optimizer]()), (WORDS, LABELS), mode="async")


def on_one(step: Traced, rule: str, monkeypatch: pytest.MonkeyPatch, **named: int) -> ParameterServers:
    """Returns servers that hold tables whole."""
    with monkeypatch.context() as patched:
        patched.setattr(layout, "LEAST_PART_BYTES", dict.fromkeys((True, False), 1 << 40))
        kept = servers(step, make_rule(rule), num_shards=3, **named)
    assert all(table.is_whole for shard in kept.layout.shards for table in shard.tables)
    return kept


def parts_of(kept: ParameterServers) -> list[tuple[int, tuple[int, ...]]]:
    return [(table.start, table.shape) for shard in kept.layout.shards for table in shard.tables]


def differing(step: Traced, one: ParameterServers, other: ParameterServers) -> list[str]:
    mine, others = state(one, step), state(other, step)
    assert set(mine) == set(others)
    return [step.program.variables[i].tensor.name for i in mine if not np.array_equal(mine[i], others[i])]


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("num_workers", [1, 2])
def test_every_server_has_some_rows_and_updates_these(
    optimizer: str, num_workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To the last bit, with delays too."""
    step = step_of("two lookups", optimizer)
    cut = servers(step, make_rule("asgd"), num_workers=num_workers, num_shards=3)
    # `fdt predict` counts the same tables as cut.
    assert len(Sample(step.program, [], []).cut_tables()) == (0 if optimizer in WHOLE else 1)
    if optimizer in WHOLE:
        assert parts_of(cut) == [(0, (NUM_ROWS, WIDTH))]
        return
    assert parts_of(cut) == [(0, (200, WIDTH)), (200, (200, WIDTH)), (400, (200, WIDTH))]
    kept = on_one(step, "asgd", monkeypatch, num_workers=num_workers)
    for each in (cut, kept):
        pushes = round_robin(3, 8) if num_workers > 1 else [0] * 4
        list(rehearse(each, lags_of(pushes), lambda i: [np.roll(a, i, 0)[:5] for a in (WORDS, LABELS)]))
    assert differing(step, cut, kept) == []


@pytest.mark.parametrize("rule", ["dynsgd", "dc-asgd-a", "dc-asgd-c", "dc-asgdk", "ddc-asgd"])
@pytest.mark.parametrize("model", ["combined", "sampled"])
def test_rules_see_the_rows_that_a_worker_pulled(model: str, rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    step = step_of(model, "rows of adagrad")
    cut, kept = servers(step, make_rule(rule), num_shards=3), on_one(step, rule, monkeypatch)
    assert len(parts_of(cut)) == 3
    for each in (cut, kept):
        list(rehearse(each, lags_of(round_robin(3, 8)), lambda i: [np.roll(a, i, 0)[:5] for a in (WORDS, LABELS)]))
    assert differing(step, cut, kept) == []


@pytest.mark.parametrize("words", [np.full((4, 6), 7), np.full((4, 6), NUM_ROWS - 1), np.zeros((0, 6))])
def test_a_batch_of_one_servers_rows_or_of_none(words: np.ndarray, monkeypatch: pytest.MonkeyPatch) -> None:
    step = step_of("embedding", "rows of adagrad")
    cut, kept = servers(step, make_rule("ddc-asgd"), num_shards=3), on_one(step, "ddc-asgd", monkeypatch)
    batch = [words.astype("int32"), LABELS[: len(words)]]
    for each in (cut, kept):
        list(rehearse(each, [0, 1, 1], lambda _: batch))
    mine, others = state(cut, step), state(kept, step)
    assert all(np.array_equal(mine[i], others[i], equal_nan=True) for i in mine)


@pytest.mark.parametrize(("wrong", "shown"), [(NUM_ROWS, NUM_ROWS), (-NUM_ROWS - 1, -1)])
def test_a_row_that_the_table_does_not_have_is_plain_pythons_error(wrong: int, shown: int) -> None:
    step = step_of("embedding", "rows of adagrad")
    words = np.array(WORDS)
    words[2, 3] = wrong
    cut = servers(step, make_rule("asgd"), num_shards=3)
    with pytest.raises(tf.errors.InvalidArgumentError, match=rf"indices\[2,3\] = {shown} is not in \[0, {NUM_ROWS}\)"):
        cut.step(0, Arrays([tf.constant(words), tf.constant(LABELS)]), np.arange(8))


def test_a_norm_over_all_rows_keeps_a_table_on_one_server() -> None:
    class Clipped(OPTIMIZERS["sgd"]().__class__):  # type: ignore[misc]
        def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
            if isinstance(gradient, tf.IndexedSlices):
                values = tf.clip_by_norm(gradient.values, 0.01)
                gradient = tf.IndexedSlices(values, gradient.indices, gradient.dense_shape)
            super().update_step(gradient, variable, learning_rate)

    step = traced(BY_ROWS["embedding"](Clipped(0.1)), (WORDS, LABELS), mode="async")
    assert parts_of(servers(step, make_rule("asgd"), num_shards=3)) == [(0, (NUM_ROWS, WIDTH))]


def test_a_small_table_stays_on_one_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layout, "LEAST_PART_BYTES", LEAST_PART_BYTES)
    step = step_of("embedding", "adam")
    assert parts_of(servers(step, make_rule("asgd"), num_shards=3)) == [(0, (NUM_ROWS, WIDTH))]
