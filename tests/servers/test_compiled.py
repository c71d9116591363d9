"""Compiled updates: what is compiled, that it does what the traced graph does, and that it is compiled once."""

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import nfdt.update
from fdt.v1.program_pb2 import ROLE_TRAINABLE
from nfdt.rules import make_rule
from nfdt.servers import ParameterServers
from tests.helpers.programs import Traced, servers, state, traced
from tests.helpers.rehearsal import lags_of, rehearse, round_robin
from tests.helpers.thorough import some_of
from tests.servers.test_cut import OPTIMIZERS, WORDS, X, Y, dense_model, embedding_model

MODELS = {"dense": (dense_model, X), "table": (embedding_model, WORDS)}
# Of the shard's update, with a table or without: all of it, a part, nothing.
COMPILED = {
    # Beside what `nfdt.one_pass` does.
    ("dense", "adam"): "one pass",
    ("dense", "clipvalue"): "all",
    ("dense", "clipnorm"): "all",
    ("dense", "global_clipnorm"): "all",
    # They look at what they have just written, or write in a branch.
    ("dense", "lamb"): "nothing",
    ("dense", "loss_scale"): "nothing",
    ("table", "adam"): "one pass",
    ("table", "momentum"): "one pass",
    ("table", "ema"): "all",
    # Its rows are multiplied by a rate that follows from the iterations, which it writes.
    ("table", "schedule"): "one pass, tables apart",
    # Rows are written one by one.
    ("table", "sgd"): "one pass, tables apart",
    ("table", "adagrad"): "one pass, tables apart",
}


def train(kept: ParameterServers, step: Traced, arrays: Sequence[np.ndarray]) -> dict[int, np.ndarray]:
    """Pushes nine gradients of two workers in turn, each of other rows."""
    for _ in rehearse(kept, lags_of(round_robin(2, 9)), lambda i: [np.roll(a, i, 0)[: 2 + i % 4] for a in arrays]):
        pass
    return dict(state(kept, step))


def extent(kept: ParameterServers) -> str:
    update = kept.shards[0]._apply
    if update._compiled is not None:
        return "all" if update.is_compiled else "part"
    if not any(update._passes):
        return "nothing"
    return "one pass" if all(update._tables) else "one pass, tables apart"


def does_as_traced(
    step: Traced, rule: str, arrays: Sequence[np.ndarray], how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Asserts how an update is done, and that it comes to what its graph does as it was traced."""
    kept = servers(step, make_rule(rule))
    assert extent(kept) == how
    found = train(kept, step, arrays)
    monkeypatch.setattr(nfdt.update, "find_frontier", lambda *_: None)
    plain = servers(step, make_rule(rule))
    assert extent(plain) == "nothing"
    expected = train(plain, step, arrays)
    for i, variable in enumerate(step.program.variables):
        if i in expected:
            assert found[i] == pytest.approx(expected[i], rel=1e-5, abs=1e-7), variable.tensor.name


# What is done in one pass is in test_one_pass. Without compensation less is compiled.
_DEFAULT = [
    ("dense", "global_clipnorm", "asgd"),
    ("table", "sgd", "asgd"),
    ("dense", "global_clipnorm", "ddc-asgd"),
    ("dense", "lamb", "ddc-asgd"),
    ("table", "ema", "ddc-asgd"),
    ("table", "schedule", "ddc-asgd"),
    ("table", "adagrad", "ddc-asgd"),
]


@pytest.mark.parametrize(
    ("model", "optimizer", "rule"),
    some_of([(*each, rule) for rule in ("asgd", "ddc-asgd") for each in COMPILED], _DEFAULT),
)
def test_compiled_it_does_the_same(model: str, optimizer: str, rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    build, x = MODELS[model]
    step = traced(build(OPTIMIZERS[optimizer]()), (x, Y))
    does_as_traced(step, rule, [x, Y], COMPILED[model, optimizer], monkeypatch)


RULES = ["asgd", "dynsgd", "dc-asgd-a", "dc-asgd-c", "dc-asgdk", "ddc-asgd"]


def trained(kept: dict[int, np.ndarray], step: Traced) -> list[np.ndarray]:
    return [kept[i] for i, v in enumerate(step.program.variables) if v.role == ROLE_TRAINABLE]


class ByTape(keras.Sequential):
    """Differentiates by itself, as Keras's guide to customising train_step shows it."""

    def train_step(self, data: Any) -> dict[str, Any]:
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.compute_loss(x, y, self(x, training=True))
            scaled = self.optimizer.scale_loss(loss)
        self.optimizer.apply(tape.gradient(scaled, self.trainable_variables), self.trainable_variables)
        return {"loss": loss}


def by_tape(optimizer: Any) -> keras.Model:
    keras.utils.set_random_seed(3)
    model = ByTape([keras.Input((6,)), keras.layers.Dense(5, activation="relu"), keras.layers.Dense(3)])
    model.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


@pytest.mark.parametrize(
    ("model", "rule"),
    some_of(
        itertools.product(["dense", "table", "tape"], RULES),
        [("dense", "ddc-asgd"), ("table", "dc-asgd-a"), ("tape", "asgd"), ("tape", "dc-asgdk")],
    ),
)
def test_a_scaled_loss_trains_as_one_that_is_not(model: str, rule: str) -> None:
    """Whatever the scale is and however often it changes meanwhile; the optimizer inside runs in a branch."""
    scaled, plain = (keras.optimizers.SGD(0.1, momentum=0.9) for _ in range(2))
    optimizers = keras.optimizers.LossScaleOptimizer(scaled, dynamic_growth_steps=2), plain
    build, x = {**MODELS, "tape": (by_tape, X)}[model]
    steps = [traced(build(optimizer), (x, Y), mode="async") for optimizer in optimizers]
    found, expected = (trained(train(servers(step, make_rule(rule)), step, [x, Y]), step) for step in steps)
    for one, other in zip(found, expected, strict=True):
        assert one == pytest.approx(other, rel=1e-5, abs=1e-7)


@pytest.mark.parametrize(
    ("rule", "thesis"),
    some_of(
        itertools.product(RULES, [False, True]),
        [("asgd", False), ("dc-asgd-a", False), ("ddc-asgd", False), ("ddc-asgd", True)],
    ),
)
def test_what_overflows_is_left_out_and_forgotten(rule: str, thesis: bool) -> None:
    """The scale is halved once for each gradient that overflows; from then on all is as if they had never been."""
    optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1, momentum=0.9))
    step = traced(dense_model(optimizer), (X, Y), mode="async")
    scale = step.index(optimizer.dynamic_scale)
    kept = servers(step, make_rule(rule, "thesis" if thesis else "robust"))
    overflows = 0, 5
    pushes = rehearse(kept, lags_of(round_robin(2, 12)), lambda i: [X * (np.inf if i in overflows else 1), Y])
    for i, _ in enumerate(pushes):
        if i == overflows[-1]:
            before = dict(state(kept, step))
    after = dict(state(kept, step))
    assert before[scale] == after[scale] == 2.0**13
    moved = [np.abs(a - b) for a, b in zip(trained(after, step), trained(before, step), strict=True)]
    assert all(np.isfinite(m).all() and m.max() > 1e-3 for m in moved)


@pytest.mark.parametrize("num_shards", some_of([2, 3], [3]))
@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_tables_over_shards_are_as_on_one(optimizer: str, num_shards: int) -> None:
    step = traced(embedding_model(OPTIMIZERS[optimizer]()), (WORDS, Y))
    one, many = (train(servers(step, make_rule("ddc-asgd"), 2, n), step, [WORDS, Y]) for n in (1, num_shards))
    for i in one:
        assert np.array_equal(one[i], many[i]), step.program.variables[i].tensor.name


@pytest.mark.parametrize("rule", some_of(["asgd", "dc-asgd-a", "dc-asgdk", "ddc-asgd"], "dc-asgd-a ddc-asgd"))
def test_it_is_compiled_once_however_many_rows_come(rule: str) -> None:
    """Whatever is compiled in a push is given tensors whose shapes are known when it is traced."""
    step = traced(embedding_model(OPTIMIZERS["ema"]()), (WORDS, Y))
    kept = servers(step, make_rule(rule))
    train(kept, step, [WORDS, Y])
    calls = [op for graph in graphs_of(kept.shards[0]._locked) for op in compiled_calls(graph)]
    assert calls
    for op in calls:
        assert all(t.dtype == tf.resource or t.shape.is_fully_defined() for t in op.inputs), op.name


def graphs_of(function: Any) -> Iterator[Any]:
    traces = function._list_all_concrete_functions()
    # For pushes by themselves, and for those of a whole step.
    assert len(traces) <= 2
    return (trace.graph for trace in traces)


def compiled_calls(graph: Any) -> list[tf.Operation]:
    return [op for op in graph.get_operations() if "_XlaMustCompile" in op.node_def.attr]
