"""Parameter servers and workers on two hosts."""

import json
import re
import signal
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.helpers.cluster import (
    HOST,
    LIMIT_S,
    NEEDS,
    PAUSES,
    POOL,
    Cluster,
    ip,
    listeners,
    namespaces,
    serving,
    written,
)
from tests.helpers.processes import Background, background, run_fdt
from tests.helpers.seen import SEEN

pytestmark = NEEDS

# Every kind of variable: statistics of batches, seeds of dropout, rows of a table, metrics; and arrays of several types.
KINDS = """
import keras
import numpy as np

keras.utils.set_random_seed(1)
random = np.random.default_rng(0)
words, flags = random.integers(0, 50, (96, 6)).astype("int32"), random.random((96, 3)) > 0.5
inputs = [keras.Input((6,), dtype="int32"), keras.Input((3,), dtype="bool")]
flat = keras.layers.Flatten()(keras.layers.Embedding(50, 8)(inputs[0]))
hidden = keras.layers.Concatenate()([flat, keras.layers.Rescaling(1.0)(inputs[1])])
hidden = keras.layers.Dropout(0.1)(keras.layers.BatchNormalization()(keras.layers.Dense(32)(hidden)))
model = keras.Model(inputs, keras.layers.Dense(1)(hidden))
model.compile(keras.optimizers.Adam(0.01), "mse", metrics=["mae"])
losses = model.fit([words, flags], flags.sum(axis=1), batch_size=20, epochs=4, verbose=0).history["loss"]
print("losses", *losses)
print("iterations", int(model.optimizer.iterations))
"""
# Each looked up row loses 1 whatever the table holds, so the table tells how often each was, and no delay changes that.
COUNTED = """
import keras
import numpy as np
import tensorflow as tf

words = np.random.default_rng(0).integers(0, 540_000, (960, 20)).astype("int32")
table = keras.layers.Embedding(540_000, 64, embeddings_initializer="zeros")
model = keras.Sequential([keras.Input((20,), dtype="int32"), table])
model.compile(keras.optimizers.SGD(1.0), lambda y, rows: tf.reduce_sum(rows))
for _ in range(2):
    model.fit(words, np.zeros(960), batch_size=16, verbose=0)
    counts, once = -table.embeddings.numpy(), np.bincount(words.ravel(), minlength=540_000)[:, None]
    print("each row once a batch", np.array_equal(counts, once + 0 * counts), np.array_equal(counts, 2 * once + 0 * counts))
"""
VALIDATED = Path(__file__).parents[1] / "fidelity" / "scripts" / "validated_by_all.py"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with namespaces() as names, serving(names, tmp_path_factory.mktemp("cluster"), "async") as started:
        yield started


def losses(text: str) -> list[float]:
    return [float(loss) for loss in re.findall(r"^losses (.*)$", text, re.MULTILINE)[-1].split()]


def test_workers_of_both_hosts_validate(cluster: Cluster) -> None:
    with cluster.host(slots=2):
        finished = cluster.run(VALIDATED.read_text(), workers=3).expect(0)
    assert float(finished.stdout.split()[-1]) < 1e-5
    assert "validation runs on the workers" in finished.stderr


# With 3 slots all workers are on the host that joined, and the servers on the pool's machine have no worker beside them.
@pytest.mark.parametrize(
    ("slots", "options"),
    [
        pytest.param(2, ("--ps", "2", "--max-delay", "0"), id="a server a host"),
        pytest.param(2, (), id="one server", marks=pytest.mark.thorough),
        pytest.param(
            3, ("--ps", "2", "--ps-place", "pool"), id="servers on the pool's machine", marks=pytest.mark.thorough
        ),
    ],
)
def test_every_batch_once_over_two_hosts_then_the_host_leaves(
    cluster: Cluster, slots: int, options: tuple[str, ...]
) -> None:
    with cluster.host(slots=slots) as host:
        report = cluster.directory / "report.json"
        finished = cluster.run(textwrap.dedent(SEEN), workers=3, options=("--report", str(report), *options)).expect(0)
        expected = [f"epoch {epoch} seen 1 1 iterations {100 * (epoch + 1)}" for epoch in range(10)]
        assert finished.stdout.splitlines() == expected
        (fit,) = json.loads(report.read_text())["fits"]
        assert fit["steps"] == 1000
        assert [rank["rank"] for rank in fit["ranks"]] == [0, 1, 2]
        assert sum(rank["steps"] for rank in fit["ranks"]) == 1000
        assert sum(rank["samples"] for rank in fit["ranks"]) == 10_000
        assert all(rank["steps"] for rank in fit["ranks"])
        host.process.send_signal(signal.SIGTERM)
        assert host.process.wait(LIMIT_S) == 0
    refused = cluster.run(SEEN, workers=3).expect(125)
    assert "has 1 workers" in refused.stderr, refused.describe()


def test_each_host_updates_its_rows_of_a_large_table(cluster: Cluster) -> None:
    with cluster.host():
        finished = cluster.run(COUNTED, options=("--ps", "2", "--update", "asgd")).expect(0)
    assert finished.stdout.splitlines() == ["each row once a batch True False", "each row once a batch False True"]
    assert (
        "tables that go by rows, those that a batch uses: sequential/embedding/embeddings (138.2 MB)" in finished.stderr
    )


@pytest.mark.thorough
def test_two_hosts_average_to_the_same_as_one(cluster: Cluster) -> None:
    """Averaging leaves nothing to chance, so where a worker is makes no difference."""
    averaging = ("--update", "averaging", "--average-every", "2")
    alone = run_fdt(
        written(cluster.directory, KINDS), mode="async", workers=2, options=averaging, limit_s=LIMIT_S
    ).expect(0)
    with cluster.host():
        together = cluster.run(KINDS, options=averaging).expect(0)
    assert losses(together.stdout) == pytest.approx(losses(alone.stdout), rel=1e-6)
    assert "iterations 20" in together.stdout


@pytest.mark.thorough
@pytest.mark.parametrize("wire", ["exact", "fp16"])
def test_delayed_gradients_of_every_kind_of_variable(cluster: Cluster, wire: str) -> None:
    with cluster.host():
        finished = cluster.run(KINDS, options=("--ps", "2", "--wire", wire)).expect(0)
    assert "iterations 20" in finished.stdout, finished.describe()
    found = losses(finished.stdout)
    assert found[-1] < 0.5 * found[0], finished.describe()


def tunnels_of(host: Background) -> list[psutil.Process]:
    """Returns the processes through which the workers of a host reach others: theirs alone have no children."""
    tree = psutil.Process(host.pid).children(recursive=True)
    return [process for process in tree if not process.children()]


def workers_of(host: Background) -> list[psutil.Process]:
    """Returns the processes that serve a job, or wait for one."""
    return [parent for parent in (process.parent() for process in tunnels_of(host)) if parent is not None]


def kill(cluster: Cluster, host: Background) -> None:
    for process in workers_of(host):
        process.kill()


def kill_tunnel(cluster: Cluster, host: Background) -> None:
    for process in tunnels_of(host):
        process.kill()


def stop(cluster: Cluster, host: Background) -> None:
    for process in workers_of(host):
        process.suspend()


def kill_host(cluster: Cluster, host: Background) -> None:
    host.process.kill()


def cut(cluster: Cluster, host: Background) -> None:
    ip("-n", cluster.namespaces[1], "link", "set", "eth0", "down")


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        (kill_host, f"({HOST})"),
        # The silence, or what the kernel says of the connection, whichever is noticed first.
        pytest.param(cut, f"({HOST})", marks=pytest.mark.thorough),
    ],
)
def test_a_parameter_servers_host_is_gone(
    cluster: Cluster, fault: Callable[[Cluster, Any], None], expected: str
) -> None:
    """The script hears of it by name, and the pool goes on."""
    pipe = cluster.pipe(fault.__name__)
    with cluster.host() as host:
        options = ("--ps", "2", "--reconnect", "0")
        command = cluster.command(written(cluster.directory, PAUSES), str(pipe), "100000", options=options)
        with background(command, cwd=cluster.directory) as training:
            training.wait_for_line("in the middle", LIMIT_S)
            pipe.write_text("")
            fault(cluster, host)
            line = training.wait_for_line("caught", LIMIT_S)
            assert "WorkerLostError" in line and expected in line, training.so_far().describe()
            training.wait_for_line("weights True", LIMIT_S)
        if fault is cut:
            ip("-n", cluster.namespaces[1], "link", "set", "eth0", "up")
    with cluster.host():
        assert "iterations 20" in cluster.run(KINDS).expect(0).stdout


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        pytest.param(kill, f"({HOST}) ended with signal 9", marks=pytest.mark.thorough),
        (kill_tunnel, f"({HOST})"),
        pytest.param(stop, f"({HOST}) has stopped answering", marks=pytest.mark.thorough),
    ],
)
def test_a_parameter_servers_worker_is_replaced(
    cluster: Cluster, fault: Callable[[Cluster, Any], None], expected: str
) -> None:
    """The host has another process for it, and the script sees a pause. Nothing listens but on the trusted network."""
    pipe = cluster.pipe(fault.__name__)
    with cluster.host() as host:
        command = cluster.command(written(cluster.directory, PAUSES), str(pipe), "4", options=("--ps", "2"))
        with background(command, cwd=cluster.directory) as training:
            training.wait_for_line("in the middle", LIMIT_S)
            # The pool's port and a tunnel on each host.
            assert {address for name in cluster.namespaces for address, _ in listeners(name)} == {POOL, HOST}
            fault(cluster, host)
            pipe.write_text("")
            training.wait_for_line("weights True", LIMIT_S)
            finished = training.so_far()
    assert "caught" not in finished.stdout and "Training goes on" in finished.stderr, finished.describe()
    assert expected in finished.stderr, finished.describe()
