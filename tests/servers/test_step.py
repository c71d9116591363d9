"""A step is one graph: wherever its parts are it comes to the same, and workers' pushes follow each other."""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import nfdt.servers
from nfdt.next_parameters import NextParameters, take
from nfdt.rules import make_rule
from nfdt.servers import ParameterServers
from nfdt.single import Single
from tests.helpers.programs import traced
from tests.helpers.steps_over_hosts import BUILDING, BUILT, CHAINED, PLACES, STEPS, Pushes
from tests.servers.test_cut import OPTIMIZERS, WORDS, X, Y, dense_model, embedding_model

LIMIT_S = 570
# The file of TensorFlow in which components are registered logs each.
_TELL = {"TF_CPP_MIN_LOG_LEVEL": "0", "TF_CPP_VMODULE": "cluster_function_library_runtime=1"}
_COMMAND = [sys.executable, "-m", "tests.helpers.steps_over_hosts"]
_ROOT = Path(__file__).parents[2]
_PLACES = [
    *PLACES,
    *(f"{place} chained" for place in CHAINED),
    "rounded",
    "rounded in one process",
]
# Of what a process has written that is ended by the limit.
_SHOWN_BYTES = 6000
_TEAMS = [
    "workers of both",
    "workers in turns",
    "workers and a shard each",
    "workers of both, chained",
    "workers and a shard each, chained",
]


def test_pushes_of_many_threads_follow_each_other() -> None:
    """No push is lost, and whoever pulls gets all entries of one version."""
    assert Pushes(["/CPU:0"], ["/CPU:0"] * 4).differences(50) == []


@pytest.fixture(scope="module")
def two_hosts() -> subprocess.CompletedProcess[str]:
    """All cases, in two processes, started once since that takes long; with TensorFlow's log of components."""
    with subprocess.Popen(
        _COMMAND, cwd=_ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as device_host:
        try:
            assert device_host.stdout is not None
            address = device_host.stdout.readline().strip()
            command = [*_COMMAND, address]
            done = subprocess.run(
                command, cwd=_ROOT, env=os.environ | _TELL, capture_output=True, text=True, timeout=LIMIT_S, check=False
            )
        except subprocess.TimeoutExpired as error:
            # Bytes, whatever was asked for.
            said = [(stream or b"")[-_SHOWN_BYTES:].decode(errors="replace") for stream in (error.stdout, error.stderr)]
            pytest.fail("\n".join([f"Did not end within {LIMIT_S} s. The last that it wrote:", *said]))
        finally:
            device_host.kill()
    assert done.returncode == 0, done.stderr
    return done


@pytest.fixture(scope="module")
def over_hosts(two_hosts: subprocess.CompletedProcess[str]) -> dict[str, list[str]]:
    """What was not as it should be, by the names of the cases."""
    return dict(json.loads(line) for line in two_hosts.stdout.splitlines())


def test_tensorflows_table_of_components_grows_while_no_step_is_made(
    two_hosts: subprocess.CompletedProcess[str],
) -> None:
    """It is a vector: an element for which there is no room moves the others, into which calls may be looking."""
    building, number, during_steps, moved = False, 0, 0, []
    for line in two_hosts.stderr.splitlines():
        if line in (BUILDING, BUILT):
            building = line == BUILDING
        elif "CFLR::Instantiate: " in line:
            is_full = number & (number - 1) == 0
            number, during_steps = number + 1, during_steps + (not building)
            moved += [line] if is_full and not building else []
    assert during_steps > 50
    assert moved == []


@pytest.mark.parametrize("place", _PLACES)
@pytest.mark.parametrize("step", [" ".join(step) for step in STEPS])
def test_over_two_hosts_a_step_comes_to_the_same(over_hosts: dict[str, list[str]], step: str, place: str) -> None:
    """By the same lags: delays, sums of squares, all variables of shards and replica; with 16-bit floats nearly."""
    assert over_hosts[f"{place}, {step}"] == []


@pytest.mark.parametrize("where", _TEAMS)
def test_pushes_over_two_hosts_follow_each_other(over_hosts: dict[str, list[str]], where: str) -> None:
    assert over_hosts[where] == []


@pytest.mark.parametrize("rule", ["asgd", "ddc-asgd", "dc-asgdk"])
@pytest.mark.parametrize(("model", "x", "optimizer"), [(dense_model, X, "momentum"), (embedding_model, WORDS, "adam")])
def test_nothing_but_what_comes_in_is_left_to_the_driver(
    model: Callable[[Any], keras.Model],
    x: np.ndarray,
    optimizer: str,
    rule: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An operation without a device runs beside whoever calls the graph: tensors would travel there and back."""
    step = traced(model(OPTIMIZERS[optimizer]()), (x, Y), mode="async")
    monkeypatch.setattr(nfdt.servers, "Loop", Single)
    kept = ParameterServers(step.program, make_rule(rule), ["/CPU:0"] * 2, ["/CPU:0"] * 2)
    single = kept._step(("/CPU:0", "/CPU:0"))
    assert isinstance(single, Single)
    operations = single._call._concrete.graph.get_operations()
    assert [each for each in operations if not each.device and each.type != "Placeholder"] == []


def test_a_step_that_waits_for_one_that_failed_fails_with_it() -> None:
    step = traced(dense_model(OPTIMIZERS["momentum"]()), (X, Y), mode="async")
    kept = ParameterServers(step.program, make_rule("asgd"), ["/CPU:0"], ["/CPU:0"] * 2)
    handover, (shard,) = NextParameters(kept.shards), kept.shards
    handover.begin(None, kept.pull)
    (taken, _) = handover.begin(None, kept.pull)
    reason = tf.errors.InvalidArgumentError(None, None, "not a number")
    waiting = Future[Any]()

    def wait() -> None:
        try:
            waiting.set_result(take(shard, taken))
        except tf.errors.OutOfRangeError as error:
            waiting.set_exception(handover.fail(error))

    threading.Thread(target=wait, daemon=True).start()
    assert handover.fail(reason) is reason
    assert waiting.exception(LIMIT_S) is reason
