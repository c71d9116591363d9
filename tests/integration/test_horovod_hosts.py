"""Horovod ranks on two hosts."""

import re
import signal
from collections.abc import Iterator

import numpy as np
import pytest

from tests.helpers.cluster import (
    HOST,
    LIMIT_S,
    NEEDS,
    PAUSES,
    POOL,
    Cluster,
    addresses,
    inside,
    ip,
    namespaces,
    serving,
    written,
)
from tests.helpers.processes import Finished, background, run_python

pytestmark = NEEDS

TRAIN = """
import keras
import numpy as np

keras.utils.set_random_seed(1)
x = np.random.default_rng(0).random((96, 8), np.float32)
y = x.sum(axis=1, keepdims=True)
model = keras.Sequential([keras.layers.Dense(16, activation="relu"), keras.layers.Dense(1)])
model.compile(keras.optimizers.Adam(0.01), "mse")
"""
LOSSES = TRAIN + 'print("losses", *model.fit(x, y, batch_size=20, epochs=3, verbose=0).history["loss"])\n'
# Weights of 2 MB that the script changes between two fits.
LARGE = (
    LOSSES.replace("Dense(16", "Dense(50_000")
    + "model.set_weights([w / 2 for w in model.get_weights()])\n"
    + """
print("losses", *model.fit(x, y, batch_size=20, epochs=3, verbose=0).history["loss"])
"""
)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with namespaces() as names, serving(names, tmp_path_factory.mktemp("cluster"), "sync") as started:
        yield started


def losses(finished: Finished) -> list[float]:
    found = re.findall(r"^losses (.*)$", finished.expect(0).stdout, re.MULTILINE)
    assert found, finished.describe()
    return [float(loss) for line in found for loss in line.split()]


def test_trains_as_on_one_machine_then_the_host_leaves(cluster: Cluster) -> None:
    plain = run_python(written(cluster.directory, LOSSES), limit_s=LIMIT_S, cwd=cluster.directory)
    with cluster.host() as host:
        over_hosts = cluster.run(LOSSES)
        np.testing.assert_allclose(losses(over_hosts), losses(plain), atol=1e-4)
        assert "sync training on 2 workers" in over_hosts.stderr
        host.process.send_signal(signal.SIGTERM)
        assert host.process.wait(LIMIT_S) == 0
    refused = cluster.run(LOSSES).expect(125)
    assert "has 1 workers" in refused.stderr, refused.describe()


@pytest.mark.thorough
def test_hosts_of_unequal_size_and_states_that_travel_as_blobs(cluster: Cluster) -> None:
    plain = run_python(written(cluster.directory, LARGE), limit_s=LIMIT_S, cwd=cluster.directory)
    with cluster.host(slots=2):
        over_hosts = losses(cluster.run(LARGE, workers=3))
        np.testing.assert_allclose(over_hosts, losses(plain), atol=1e-4)
        # Gradients go in several messages, and a sum of three depends on the order.
        assert losses(cluster.run(LARGE, workers=3)) == over_hosts


def test_ranks_meet_on_the_trusted_network_only(cluster: Cluster) -> None:
    """Whatever the names of the machines resolve to: one to loopback, the other to its address on the network."""
    pipe = cluster.pipe("over hosts")
    with cluster.host() as host:
        script = written(cluster.directory, PAUSES)
        with background(cluster.command(script, str(pipe), "3"), cwd=cluster.directory) as training:
            training.wait_for_line("in the middle", LIMIT_S)
            assert addresses(cluster.process) == {POOL}
            assert addresses(host) == {HOST}
            pipe.write_text("")
            training.wait_for_line("weights True", LIMIT_S)
    assert "caught" not in training.so_far().stdout, training.so_far().describe()


@pytest.mark.thorough
def test_ranks_of_one_machine_meet_on_loopback(cluster: Cluster) -> None:
    """Although its name resolves to an address that others can reach."""
    pipe = cluster.pipe("one machine")
    script = written(cluster.directory, PAUSES)
    command = inside(cluster.namespaces[0], "run", "--workers", "2", str(script), str(pipe), "3")
    with background(command, cwd=cluster.directory) as training:
        training.wait_for_line("in the middle", LIMIT_S)
        assert addresses(training) == {"127.0.0.1"}
        pipe.write_text("")
        training.wait_for_line("weights True", LIMIT_S)


@pytest.mark.thorough
def test_the_cable_is_cut(cluster: Cluster) -> None:
    """No process ends, no connection is closed: the host is missed all the same, and the pool goes on."""
    pipe = cluster.pipe("cut")
    with cluster.host() as host:
        script = written(cluster.directory, PAUSES)
        command = cluster.command(script, str(pipe), "100000", options=("--reconnect", "0"))
        with background(command, cwd=cluster.directory) as training:
            training.wait_for_line("in the middle", LIMIT_S)
            pipe.write_text("")
            ip("-n", cluster.namespaces[1], "link", "set", "eth0", "down")
            line = training.wait_for_line("caught", LIMIT_S)
            # Its silence, or what the kernel says of the connection, whichever is noticed first.
            assert "WorkerLostError" in line and re.search(
                rf"Host .*\({re.escape(HOST)}\) (has stopped answering|was lost)", line
            )
            training.wait_for_line("weights True", LIMIT_S)
        ip("-n", cluster.namespaces[1], "link", "set", "eth0", "up")
        assert host.process.wait(LIMIT_S) == 125, host.so_far().describe()
    with cluster.host():
        losses(cluster.run(LOSSES))
