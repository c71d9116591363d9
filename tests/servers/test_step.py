"""A step as one graph does what its parts do one after the other, and workers' pushes follow each other."""

import threading
from collections.abc import Sequence

import keras
import numpy as np
import pytest
import tensorflow as tf

from nfdt.rules import make_rule
from nfdt.servers import ParameterServers
from nfdt.shard import Pushed
from tests.helpers.programs import Given, Traced, servers, state, traced
from tests.helpers.rehearsal import lags_of, rehearse, round_robin
from tests.servers.test_cut import OPTIMIZERS, WORDS, X, Y, dense_model, embedding_model

MODELS = {"dense": (dense_model, X), "table": (embedding_model, WORDS)}
LAGS = list(lags_of(round_robin(2, 9)))


def rows(number: int) -> np.ndarray:
    return np.roll(np.arange(len(Y)), number)[: 2 + number % 4]


def by_parts(kept: ParameterServers, x: np.ndarray) -> list[list[Pushed]]:
    return list(rehearse(kept, LAGS, lambda i: [x[rows(i)], Y[rows(i)]]))


def as_one(kept: ParameterServers, x: np.ndarray) -> list[list[Pushed]]:
    history, pushed = [kept.pull()], []
    assert kept._local is not None
    for number, lag in enumerate(LAGS):
        pulled = history[-1 - min(lag, len(history) - 1)]
        stepped = kept._local(kept.replicas[0], pulled, [tf.constant(x), tf.constant(Y)], rows(number))
        assert stepped.num_bytes > 0 and stepped.compute_s > 0 and stepped.push_s > 0
        pushed.append(stepped.pushed)
        history.append(kept.pull())
    return pushed


@pytest.mark.parametrize("num_shards", [1, 2])
@pytest.mark.parametrize("rule", ["asgd", "ddc-asgd", "dc-asgdk"])
@pytest.mark.parametrize(
    ("model", "optimizer"), [("dense", "momentum"), ("dense", "lamb"), ("table", "adam"), ("table", "sgd")]
)
def test_one_graph_is_its_parts(model: str, optimizer: str, rule: str, num_shards: int) -> None:
    build, x = MODELS[model]
    step = traced(build(OPTIMIZERS[optimizer]()), (x, Y))
    parts, one = (servers(step, make_rule(rule), num_shards=num_shards) for _ in range(2))
    expected, found = by_parts(parts, x), as_one(one, x)
    assert [[p.delay for p in pushed] for pushed in found] == [[min(lag, i)] * num_shards for i, lag in enumerate(LAGS)]
    assert found == expected
    for i, value in state(parts, step).items():
        assert np.array_equal(state(one, step)[i], value), step.program.variables[i].tensor.name
    for i, value in parts.replicas[0].read(range(len(step.variables))).items():
        assert np.array_equal(one.replicas[0].read([i])[i], value)


class Pushes:
    """A model whose gradient is its batch, one, so that its weights count the pushes."""

    def __init__(self, num_workers: int) -> None:
        model = Given([np.zeros(100_000, np.float32)])
        model.compile(keras.optimizers.SGD(1.0))
        self.step: Traced = traced(model, np.ones((1, 100_000), np.float32))
        self.kept = ParameterServers(
            self.step.program, make_rule("asgd"), ["/CPU:0"], ["/CPU:0"] * num_workers, num_workers
        )
        self.kept.assign(self.step.values())
        self.weight = self.step.index(model.parameters[0])


def test_pushes_of_many_threads_follow_each_other() -> None:
    """No push is lost, and whoever pulls gets all entries of one version."""
    num_workers, num_pushes = 4, 50
    pushes = Pushes(num_workers)
    kept, arrays = pushes.kept, [tf.ones([1, 100_000])]
    torn: list[Sequence[float]] = []
    delays: list[int] = []

    def work(worker: int) -> None:
        for _ in range(num_pushes):
            pulled = kept.pull()
            vector = pulled.snapshots[0].vectors[0].numpy()
            if not np.all(vector[:100_000] == -pulled.snapshots[0].version):
                torn.append([vector.min(), vector.max(), pulled.snapshots[0].version])
            assert kept._local is not None
            stepped = kept._local(kept.replicas[worker], pulled, arrays, np.zeros(1, np.int64))
            delays.append(stepped.pushed[0].delay)

    threads = [threading.Thread(target=work, args=(worker,)) for worker in range(num_workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not torn
    assert kept.shards[0].version == num_workers * num_pushes == len(delays)
    assert all(delay >= 0 for delay in delays)
    assert np.all(kept.read([pushes.weight])[pushes.weight] == -num_workers * num_pushes)
