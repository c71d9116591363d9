"""Steps whose workers, shards and arrays are on two processes, beside the same ones in one process.

python -m tests.helpers.steps_over_hosts          # lends its devices, and says where
python -m tests.helpers.steps_over_hosts ADDRESS  # uses them; prints a line of JSON for each case: what differs

What it prints to the standard error tells when steps are being built (`BUILDING`, `BUILT`), beside what TensorFlow logs.
"""

import dataclasses
import faulthandler
import json
import socket
import sys
import threading
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from nfdt import layout
from nfdt.devices import JOB
from nfdt.feed import Arrays
from nfdt.rules import make_rule
from nfdt.servers import ParameterServers
from nfdt.staleness_bound import StalenessBound
from tests.helpers import table_models
from tests.helpers.programs import Given, Traced, state, traced
from tests.helpers.rehearsal import lags_of, round_robin
from tests.servers.test_cut import OPTIMIZERS, WORDS, X, Y, dense_model, embedding_model

NEAR, FAR = (f"/job:{JOB}/replica:0/task:{task}/device:CPU:0" for task in range(2))
MODELS = {"dense": (dense_model, X), "table": (embedding_model, WORDS), "rows": (table_models.two_lookups, WORDS)}
LAGS = list(lags_of(round_robin(2, 9)))


@dataclasses.dataclass(frozen=True)
class Place:
    """Where the parts of a step are."""

    shards: tuple[str, ...]
    worker: str
    arrays: str


PLACES = {
    "worker": Place((NEAR, NEAR), FAR, FAR),
    "worker of a stream": Place((NEAR, NEAR), FAR, NEAR),
    "shards": Place((FAR, FAR), NEAR, NEAR),
    "a shard each": Place((NEAR, FAR), FAR, FAR),
    "all": Place((FAR, FAR), FAR, FAR),
}
# Where a step takes what the one before has left for it.
CHAINED = ("worker", "a shard each", "shards")
ALONE = Place((NEAR, NEAR), NEAR, NEAR)
STEPS = [
    ("dense", "momentum", "ddc-asgd"),
    ("dense", "lamb", "asgd"),
    ("table", "adam", "dc-asgdk"),
    ("table", "sgd", "ddc-asgd"),
    ("rows", "adagrad", "ddc-asgd"),
    # Cut over the shards, whose snapshots of them are versions.
    ("rows", "rows of adagrad", "ddc-asgd"),
]


BUILDING, BUILT = "building steps", "built steps"
TOLD_S = 550


def built(*arguments: Any, **named: Any) -> ParameterServers:
    """Builds parameter servers, and says so."""
    print(BUILDING, file=sys.stderr, flush=True)
    kept = ParameterServers(*arguments, **named)
    print(BUILT, file=sys.stderr, flush=True)
    return kept


class Pushes:
    """A model whose gradient is its batch, one, so that its weights count the pushes; several workers push at once."""

    def __init__(
        self,
        shards: list[str],
        workers: list[str],
        max_delay: int | None = None,
        calls: int = 1,
    ) -> None:
        model = Given([np.zeros(100_000, np.float32), np.zeros(50_000, np.float32)])
        model.compile(keras.optimizers.SGD(1.0))
        self.step: Traced = traced(model, (np.ones((1, 100_000), np.float32), np.ones((1, 50_000), np.float32)))
        self.gate = StalenessBound(len(workers), max_delay)
        rule = make_rule("asgd")
        self.kept = built(self.step.program, rule, shards, workers, gate=self.gate)
        # Calls of a worker's step that are under way at once; each then has what the one before has left.
        self.calls = calls
        self.kept.assign(self.step.values())
        self.workers = workers
        self.weights = [self.step.index(weight) for weight in model.parameters]

    def differences(self, num_pushes: int, at_once: int = 1) -> list[str]:
        """Returns what shows that a push was lost, or that a pull came between the parts of a push.

        Args:
            num_pushes: Of each worker, and call that is under way.
            at_once: Of these, in one call; then each pulls for itself.
        """
        found: list[str] = []
        delays: list[int] = []

        def work(worker: int) -> None:
            self.gate.set_idle(worker, False)
            with tf.device(self.workers[worker]):
                arrays = Arrays([tf.ones([1, 100_000]), tf.ones([1, 50_000])], self.workers[worker])
            for _ in range(num_pushes // at_once):
                pulled = self.kept.pull()
                for snapshot in pulled.snapshots:
                    values = np.unique(snapshot.vectors[0].numpy())
                    if not {-snapshot.version} <= set(values) <= {-snapshot.version, 0}:
                        found.append(f"{values} in version {snapshot.version}")
                given = None if self.calls > 1 or at_once > 1 else pulled
                stepped = self.kept.steps(worker, arrays, [np.zeros(1, np.int64)] * at_once, given)
                delays.extend(pushed.delay for pushes in stepped.pushes for pushed in pushes)
            self.gate.set_idle(worker, True)

        callers = [*range(len(self.workers))] * self.calls
        threads = [threading.Thread(target=work, args=(worker,)) for worker in callers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.delays = delays
        expected = num_pushes * len(callers)
        found += [f"version {shard.version}" for shard in self.kept.shards if shard.version != expected]
        found += [f"delay {delay}" for delay in delays if delay < 0]
        if len(delays) != expected * len(self.kept.shards):
            found.append(f"{len(delays)} pushes")
        for index, value in self.kept.read(self.weights).items():
            found += [f"variable {index}: {v}" for v in np.unique(value) if v != -expected]
        return found


def trained(
    step: Traced,
    x: np.ndarray,
    rule: str,
    place: Place,
    rounded: bool = False,
    latest: bool = False,
) -> tuple[ParameterServers, list[list]]:
    """Trains by lags, or by the latest parameters, set anew once; returns the servers, and what became of each push."""
    kept = built(step.program, make_rule(rule), place.shards, [place.worker], 2, rounded)
    kept.assign(step.values())
    with tf.device(place.arrays):
        arrays = Arrays([tf.identity(tf.constant(x)), tf.identity(tf.constant(Y))], place.arrays)
    history, told = [kept.pull()], []
    for number, lag in enumerate(LAGS):
        rows = np.roll(np.arange(len(Y)), number)[: 2 + number % 4]
        if latest and number == len(LAGS) // 2:
            kept.assign(step.values())
        stepped = kept.step(0, arrays, rows, None if latest else history[-1 - min(lag, len(history) - 1)])
        assert stepped.num_bytes > 0 and stepped.pull_s >= 0 and stepped.compute_s > 0 and stepped.push_s > 0
        told.append([dataclasses.astuple(pushed) for pushed in stepped.pushed])
        history.append(kept.pull())
        assert [s.tensors[0].device for s in history[-1].snapshots] == list(place.shards[: len(kept.shards)])
    return kept, told


def differences(step: Traced, alone: tuple[ParameterServers, list], there: tuple[ParameterServers, list]) -> list[str]:
    """Returns what two trainings do not have in common."""
    found = [] if alone[1] == there[1] else [f"pushes: {alone[1]} {there[1]}"]
    every = range(len(step.variables))
    for read in (lambda kept: state(kept, step), lambda kept: kept.replicas[0].read(every)):
        mine, others = read(alone[0]), read(there[0])
        names = [step.program.variables[i].tensor.name for i in mine if not np.array_equal(mine[i], others[i])]
        found += [f"{name} differs" for name in names]
    return found


def cases() -> Iterator[tuple[str, list[str]]]:
    """Yields the name of each case and what is not as it should be."""
    for model, optimizer, rule in STEPS:
        build, x = MODELS[model]
        step = traced(build((OPTIMIZERS | table_models.OPTIMIZERS)[optimizer]()), (x, Y))
        alone = trained(step, x, rule, ALONE)
        for name, place in PLACES.items():
            found = differences(step, alone, trained(step, x, rule, place))
            yield f"{name}, {model} {optimizer} {rule}", found
        latest = trained(step, x, rule, ALONE, latest=True)
        for name in CHAINED:
            found = differences(step, latest, trained(step, x, rule, PLACES[name], latest=True))
            yield f"{name} chained, {model} {optimizer} {rule}", found
        near = differences(step, alone, trained(step, x, rule, ALONE, rounded=True))
        yield f"rounded in one process, {model} {optimizer} {rule}", near
        kept, told = trained(step, x, rule, PLACES["a shard each"], rounded=True)
        yield f"rounded, {model} {optimizer} {rule}", rounding(step, alone, kept, told)
    yield "workers of both", Pushes([NEAR], [FAR, NEAR, FAR]).differences(40)
    yield "workers in turns", Pushes([NEAR], [FAR] * 4).differences(40)
    yield "workers and a shard each", Pushes([NEAR, FAR], [FAR, NEAR, FAR]).differences(40)
    yield "workers of both, chained", Pushes([NEAR], [FAR, NEAR], calls=2).differences(40)
    yield "workers and a shard each, chained", Pushes([NEAR, FAR], [FAR, NEAR, FAR], calls=2).differences(40)


def rounding(step: Traced, alone: tuple[ParameterServers, list], kept: ParameterServers, told: list) -> list[str]:
    """Returns what is wrong where numbers travelled as 16-bit floats: all must be near, and something must differ."""
    found = [] if [[p[0] for p in each] for each in told] == [[p[0] for p in each] for each in alone[1]] else ["delays"]
    mine, others = state(alone[0], step), state(kept, step)
    found += [f"{i} is far" for i in mine if not np.allclose(mine[i], others[i], rtol=0.05, atol=0.02)]
    return found if any(not np.array_equal(mine[i], others[i]) for i in mine) else [*found, "nothing was rounded"]


def lend() -> None:
    spec = tf.train.ClusterSpec({JOB: {1: "127.0.0.1:0"}})
    server = tf.distribute.Server(spec, job_name=JOB, task_index=1)
    print(server.target.removeprefix("grpc://").replace("localhost", "127.0.0.1"), flush=True)
    sys.stdin.read()


def borrow(device_host: str) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        own = f"127.0.0.1:{probe.getsockname()[1]}"
    spec = tf.train.ClusterSpec({JOB: {0: own, 1: device_host}})
    tf.config.experimental_connect_to_cluster(spec, job_name=JOB, task_index=0, make_master_device_default=False)
    # Small tables are cut, too.
    layout.LEAST_PART_BYTES = dict.fromkeys((True, False), 1 << 10)
    for name, found in cases():
        print(json.dumps([name, found]), flush=True)


if __name__ == "__main__":
    # Where it stands shortly before it is ended.
    faulthandler.dump_traceback_later(TOLD_S)
    borrow(sys.argv[1]) if sys.argv[1:] else lend()
