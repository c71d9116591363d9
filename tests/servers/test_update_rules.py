"""The update rules through the real parameter servers: vectors, limits, stability."""

import math
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from nfdt.compensation import compensate
from nfdt.rules import Reliability, Rule, Strength, Weigh, make_rule
from nfdt.servers import ParameterServers
from tests.helpers.programs import Given, Quadratic, Traced, servers, state, traced
from tests.helpers.rehearsal import lags_of, rehearse, round_robin
from tests.helpers.thorough import marks, some_of
from tests.servers.test_cut import OPTIMIZERS, WORDS, Y, embedding_model

START = np.array([0.5, -0.5])
# (worker, gradient) of each push.
PUSHES = [(0, [1.0, -2.0]), (1, [0.5, 1.0]), (0, [-1.0, 0.25]), (1, [2.0, -0.5])]
ROBUST = make_rule("ddc-asgd")
ADAPTIVE = Rule("adaptive", strength=Strength.ADAPTIVE, lambda0=2.0)


def final(
    rule: Rule,
    optimizer: keras.optimizers.Optimizer,
    pushes: Sequence[tuple[int, Sequence[float]]] = PUSHES,
    start: np.ndarray = START,
    num_shards: int = 1,
) -> list[np.ndarray]:
    """Returns the weights after the pushes."""
    model = Given([start])
    model.compile(optimizer)
    gradients = [np.array(g, start.dtype)[None] for _, g in pushes]
    step = traced(model, gradients[0])
    kept = servers(step, rule, num_workers=len({worker for worker, _ in pushes}), num_shards=num_shards)
    for _ in rehearse(kept, lags_of(worker for worker, _ in pushes), lambda i: [gradients[i]]):
        pass
    return [state(kept, step)[step.index(w)] for w in model.parameters]


def thesis(lambda0: float = 0.0, q: float = 5.0) -> Rule:
    return make_rule("ddc-asgd", "thesis", lambda0=lambda0, q=q)


@pytest.mark.parametrize(
    ("rule", "momentum", "expected"),
    [
        (make_rule("asgd"), 0.0, [0.25, -0.375]),
        (make_rule("dc-asgdk"), 0.0, [0.3375, -0.39375]),
        (make_rule("dc-asgd-a"), 0.0, [0.1164931443, -0.4498220321]),
        (thesis(), 0.0, [0.2608796296, -0.3423611111]),
        (make_rule("ddc-asgd", q=10.0), 0.9, [0.117939484894, -0.17411739352]),
        (make_rule("ddc-asgd", q=5.0), 0.0, [0.240084590604, -0.382145963789]),
    ],
    ids=["asgd", "dc-asgdk", "dc-asgd-a", "thesis", "robust-momentum", "robust"],
)
def test_vectors(rule: Rule, momentum: float, expected: list[float]) -> None:
    (found,) = final(rule, keras.optimizers.SGD(0.1, momentum=momentum))
    assert found == pytest.approx(expected, abs=1e-7)
    assert found.dtype == np.float64


LIMITS = [
    ("robust without compensation and with q = inf is asgd", make_rule("ddc-asgd", lambda0=0.0, q=math.inf), "asgd"),
    ("thesis likewise", thesis(q=math.inf), "asgd"),
    (
        "robust with q = kappa = inf and raw s is dc-asgd-a",
        Rule("r", Strength.ADAPTIVE, 2.0, False, math.inf, Reliability.BY_DELAY, math.inf, Weigh.RATE_AND_MOMENTUM),
        "dc-asgd-a",
    ),
    (
        "thesis with rho = 1/K is dc-asgdk",
        Rule("r", reliability=Reliability.BY_WORKERS, weigh=Weigh.GRADIENT),
        "dc-asgdk",
    ),
    (
        "robust without compensation and momentum and with q = 1 is dynsgd",
        make_rule("ddc-asgd", lambda0=0.0, q=1.0),
        "dynsgd",
    ),
]


@pytest.mark.parametrize(("rule", "limit"), [(r, n) for _, r, n in LIMITS], ids=[text for text, _, _ in LIMITS])
def test_one_rule_is_the_limit_of_another(rule: Rule, limit: str) -> None:
    found = final(rule, keras.optimizers.SGD(0.1))
    assert np.array_equal(found[0], final(make_rule(limit), keras.optimizers.SGD(0.1))[0])


_RULES = [ROBUST, make_rule("dynsgd"), make_rule("dc-asgd-c"), make_rule("dc-asgd-a"), make_rule("ddc-asgd", "thesis")]
_OPTIMIZERS = ["sgd", "adam", "momentum", "rmsprop", "adagrad", "adadelta", "ema"]
# In make test every rule with Adam, and the default rule with one whose state is of another kind.
_PAIRS = [
    pytest.param(
        rule,
        optimizer,
        id=f"{rule.name}-{number}-{optimizer}",
        marks=marks(optimizer != "adam" and (number > 0 or optimizer not in ("sgd", "ema"))),
    )
    for number, rule in enumerate(_RULES)
    for optimizer in _OPTIMIZERS
]


@pytest.mark.parametrize(("rule", "optimizer"), _PAIRS)
def test_without_delay_every_rule_is_the_scripts_optimizer(rule: Rule, optimizer: str) -> None:
    """Where a word comes several times in a batch, too: an optimizer may do something else to their sum."""
    step = traced(embedding_model(OPTIMIZERS[optimizer]()), (WORDS, Y))
    assert all(len(set(words)) < words.size for words in (np.roll(WORDS, i, 0)[:2].reshape(-1) for i in range(6)))
    found, expected = (dict(trained_on_words(servers(step, of), step, [0] * 6)) for of in (rule, make_rule("asgd")))
    for i, variable in enumerate(step.program.variables):
        assert i not in expected or np.array_equal(found[i], expected[i]), variable.tensor.name


@pytest.mark.parametrize("optimizer", some_of(["momentum", "adam", "rmsprop", "adagrad"], "adam"))
def test_a_rule_that_neither_compensates_nor_weighs_is_asgd(optimizer: str) -> None:
    step = traced(embedding_model(OPTIMIZERS[optimizer]()), (WORDS, Y))
    idle = make_rule("ddc-asgd", lambda0=0.0, q=math.inf)
    lags = [0, 1, 1, 2, 0, 3]
    found, expected = (dict(trained_on_words(servers(step, of), step, lags)) for of in (idle, make_rule("asgd")))
    for i, variable in enumerate(step.program.variables):
        assert i not in expected or np.array_equal(found[i], expected[i]), variable.tensor.name


def trained_on_words(kept: ParameterServers, step: Traced, lags: Sequence[int]) -> dict[int, np.ndarray]:
    for _ in rehearse(kept, lags, lambda i: [np.roll(a, i, 0)[: 2 + i % 4] for a in (WORDS, Y)]):
        pass
    return state(kept, step)


def test_names_of_workers_do_not_matter() -> None:
    renamed = [(1 - worker, gradient) for worker, gradient in PUSHES]
    one, other = (final(ROBUST, keras.optimizers.SGD(0.1, momentum=0.9), pushes) for pushes in (PUSHES, renamed))
    assert np.array_equal(one[0], other[0])


def test_compensated_gradient_of_a_quadratic_is_the_fresh_one() -> None:
    """With the curvature in the place of lambda0 g*g / sqrt(s): g(w_bak) + h (w - w_bak) = g(w)."""
    # Constant gradients of size 1 make g*g = 1, so that lambda is the curvature.
    w, then, curvature = np.array([0.7, -1.1]), np.array([0.5, -0.5]), 0.3
    compensated = final_of_compensation(np.ones(2), w, then, curvature)
    assert compensated == pytest.approx(np.ones(2) + curvature * (w - then), abs=1e-15)


def final_of_compensation(gradient: np.ndarray, now: np.ndarray, then: np.ndarray, strength: float) -> np.ndarray:
    rule = Rule("constant", Strength.CONSTANT, strength)
    tensors = [tf.constant(gradient)], tf.constant(now), tf.constant(then)
    compensated, _ = compensate(rule, *tensors, None, tf.constant(1, tf.int64), tf.constant(1.0), [2])
    return np.asarray(compensated.numpy())


def distance(rule: Rule, momentum: float, rate: float, num_workers: int, num_pushes: int) -> float:
    """Returns |w| at the end, on f = w^2 / 2 from w = 1, workers in turn."""
    model = Quadratic(np.ones(1))
    model.compile(keras.optimizers.SGD(rate, momentum=momentum))
    step = traced(model, np.zeros((1, 1)))
    kept = servers(step, rule, num_workers)
    batch = [np.zeros((1, 1))]
    largest = 1.0
    for number, _ in enumerate(rehearse(kept, lags_of(round_robin(num_workers, num_pushes)), lambda _: batch)):
        if number % 100 == 0:
            largest = abs(float(state(kept, step)[step.index(model.w)][0]))
            if largest > 1e6:
                return largest
    return largest


@pytest.mark.parametrize("num_workers", some_of([2, 4, 16], [2]))
def test_asgd_is_stable_up_to_its_limit_and_no_further(num_workers: int) -> None:
    limit = 2 * math.sin(math.pi / (2 * (2 * num_workers - 1)))
    assert distance(make_rule("asgd"), 0.0, 0.95 * limit, num_workers, 3000) < 1.0
    assert distance(make_rule("asgd"), 0.0, 1.05 * limit, num_workers, 3000) > 1.0


@pytest.mark.parametrize("num_workers", some_of([1, 4, 64], [4]))
def test_robust_rule_is_stable_for_any_number_of_workers(num_workers: int) -> None:
    """Without compensation, momentum 0.9: a rate of 0.14 over the curvature, at which asgd diverges from 2 workers on."""
    rule = make_rule("ddc-asgd", lambda0=0.0)
    assert distance(rule, 0.9, 0.14, num_workers, 10_000) < 1e-3


def test_delays_are_counted_between_pull_and_push() -> None:
    assert list(lags_of([0, 1, 0, 1, 1])) == [0, 1, 1, 1, 0]
    model = Given([START])
    model.compile(keras.optimizers.SGD(0.1))
    step = traced(model, START[None])
    pushed = list(rehearse(servers(step, ROBUST), [0, 1, 1, 2, 0], lambda _: [START[None]]))
    assert [p[0].delay for p in pushed] == [0, 1, 1, 2, 0]


class Lookup(keras.Model):
    """A table of which a batch (row numbers) looks up rows, by rows or (dense) by multiplication with one-hot vectors."""

    def __init__(self, dense: bool):
        super().__init__()
        self.table = self.add_weight(shape=(6, 2), dtype="float64", initializer="zeros", name="table")
        self.table.assign(np.random.default_rng(0).normal(size=(6, 2)))
        self._dense = dense

    def train_step(self, data: Any) -> dict[str, Any]:
        with tf.GradientTape() as tape:
            table = self.table.value
            rows = tf.one_hot(data, 6, dtype=tf.float64) @ table if self._dense else tf.gather(table, data)
            loss = tf.reduce_sum(tf.sin(rows) * rows)
        self.optimizer.apply([tape.gradient(loss, table)], [self.table])
        return {}


@pytest.mark.parametrize("update", ["asgd", "dc-asgd-c"])
def test_rows_of_a_table_are_treated_as_a_dense_gradient_would_be(update: str) -> None:
    results = []
    rows = np.random.default_rng(1).integers(0, 6, (12, 5))
    for dense in (True, False):
        model = Lookup(dense)
        model.compile(keras.optimizers.SGD(0.05))
        step = traced(model, rows[0])
        assert [g.sparse for h in step.program.holes for g in h.gradients] == [not dense]
        kept = servers(step, make_rule(update))
        for _ in rehearse(kept, [0, 1, 2, 0, 3, 1, 1, 2, 0, 1, 4, 1], lambda i: [tf.constant(rows[i])]):
            pass
        results.append(state(kept, step)[step.index(model.table)])
    assert results[0] == pytest.approx(results[1], abs=1e-12)


@pytest.mark.parametrize("update", ["dc-asgd-a", "dc-asgdk", "ddc-asgd", "dynsgd"])
def test_every_rule_takes_rows(update: str) -> None:
    rows = np.random.default_rng(1).integers(0, 6, (40, 5))
    model = Lookup(dense=False)
    model.compile(keras.optimizers.SGD(0.02, momentum=0.5))
    step = traced(model, rows[0])
    kept = servers(step, make_rule(update))
    before = np.abs(step.values()[step.index(model.table)]).max()
    for _ in rehearse(kept, [min(i, 1) for i in range(40)], lambda i: [tf.constant(rows[i])]):
        pass
    after = state(kept, step)[step.index(model.table)]
    assert np.isfinite(after).all()
    # sin(w) w has its minimum at zero.
    assert np.abs(after).max() < before
