"""Many steps in one call: they come to what as many calls come to, follow those of other workers, and wait for them."""

import itertools
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from nfdt.feed import Arrays
from nfdt.rules import make_rule
from nfdt.servers import ParameterServers
from tests.helpers.programs import traced
from tests.helpers.steps_over_hosts import Pushes
from tests.helpers.thorough import some_of
from tests.servers.test_cut import OPTIMIZERS, WORDS, X, Y, dense_model, embedding_model

LIMIT_S = 60.0
MODELS = {"dense": (dense_model, X), "table": (embedding_model, WORDS)}


@pytest.mark.parametrize(
    ("of", "rule", "num_shards"),
    some_of(
        itertools.product(
            ["dense momentum", "dense lamb", "table adam", "table loss_scale"], ["asgd", "ddc-asgd"], [1, 2]
        ),
        [
            ("dense momentum", "asgd", 1),
            *((of, "ddc-asgd", 2) for of in ("dense lamb", "table adam", "table loss_scale")),
        ],
    ),
)
def test_many_steps_of_a_call_are_as_many_calls(of: str, rule: str, num_shards: int) -> None:
    """To the last bit: parameters, optimizer, what the worker counts for itself, outputs."""
    model, optimizer = of.split()
    build, x = MODELS[model]
    step = traced(build(OPTIMIZERS[optimizer]()), (x, Y), mode="async")
    rows = [np.roll(np.arange(len(Y)), number)[:3] for number in range(7)]

    def trained(calls: Sequence[Sequence[np.ndarray]]) -> tuple[list[np.ndarray], list[np.ndarray]]:
        kept = ParameterServers(step.program, make_rule(rule), ["/CPU:0"] * num_shards, ["/CPU:0"] * 2)
        kept.assign(step.values())
        arrays = Arrays([tf.constant(x), tf.constant(Y)])
        stepped = [kept.steps(1, arrays, call) for call in calls]
        assert [pushed.delay for each in stepped for pushes in each.pushes for pushed in pushes] == [0] * 7 * len(
            kept.shards
        )
        for each in stepped:
            assert each.num_bytes > 0 and each.compute_s > 0 and each.push_s > 0, each
        every = range(len(step.variables))
        values = {**kept.replicas[1].read(every), **kept.read(every)}
        return [values[i] for i in every], [output.numpy() for output in stepped[-1].outputs]

    (one, last), (by_one, last_by_one) = trained([rows]), trained([[each] for each in rows])
    for variable, value, expected in zip(step.program.variables, one, by_one, strict=True):
        assert np.array_equal(value, expected), variable.tensor.name
    assert all(map(np.array_equal, last, last_by_one))


@pytest.mark.parametrize("num_shards", [1, 2])
def test_pushes_of_many_workers_follow_each_other(num_shards: int) -> None:
    pushes = Pushes(["/CPU:0"] * num_shards, ["/CPU:0"] * 3)
    assert pushes.differences(60, at_once=20) == []
    # Who pushes reads the latest: between its pull and its push nobody else can push more often than there are others' steps.
    assert max(pushes.delays) < 60


@pytest.mark.parametrize("max_delay", [0, 1])
def test_who_is_ahead_waits_within_a_call_and_computes_with_the_latest(max_delay: int) -> None:
    pushes = Pushes(["/CPU:0"], ["/CPU:0"] * 2, max_delay=max_delay)
    assert pushes.differences(100, at_once=50) == []
    # While one makes a step, the other one catches up with it, makes that one too and is as far ahead.
    assert max(pushes.delays) <= 2 * max_delay + 1


def test_who_is_held_takes_no_thread_and_goes_on_when_all_are_let_in() -> None:
    pushes = Pushes(["/CPU:0"], ["/CPU:0"] * 2, max_delay=0)
    for worker in range(2):
        pushes.gate.set_idle(worker, False)
    arrays = Arrays([tf.ones([1, 100_000]), tf.ones([1, 50_000])])
    ended = threading.Event()

    def work() -> None:
        pushes.kept.steps(0, arrays, [np.zeros(1, np.int64)] * 5)
        ended.set()

    threading.Thread(target=work, daemon=True).start()
    # The other worker, which makes no step, lets this one make one alone.
    while pushes.gate.is_open(0):
        assert not ended.is_set()
    assert not ended.is_set()
    pushes.gate.open()
    assert ended.wait(LIMIT_S)
    pushes.kept.steps(1, arrays, [np.zeros(1, np.int64)])
    assert pushes.kept.pull().snapshots[0].version == 6


def test_workers_on_devices_of_their_own_do_the_same() -> None:
    command = [sys.executable, "-m", "tests.helpers.loop_on_devices"]
    root = Path(__file__).parents[2]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=300, check=False)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
