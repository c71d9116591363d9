"""Horovod ranks on two hosts: network namespaces of this machine, joined by a cable of their own (a veth pair)."""

import ipaddress
import os
import platform
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
import psutil
import pytest

from tests.helpers.pool import write_token
from tests.helpers.processes import PYTHON, Background, Finished, background, run, run_python

LIMIT_S = 240.0
START_S = 120.0
POOL, HOST = "10.213.0.1", "10.213.0.2"
TOKEN = "a-token-for-this-test-only"

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces are root's"),
    pytest.mark.skipif(shutil.which("ip") is None, reason="`ip` (iproute2) makes the network namespaces"),
    pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificate"),
]

TRAIN = """
import sys

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
# Says that it is in the middle of training, and goes on when somebody has written to the pipe.
PAUSES = (
    TRAIN
    + """
class Pause(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        if epoch == 0:
            print("in the middle", flush=True)
            open(sys.argv[1]).read()

try:
    model.fit(x, y, batch_size=20, epochs=int(sys.argv[2]), verbose=0, callbacks=[Pause()])
except Exception as error:
    print("caught", type(error).__name__, error, flush=True)
print("weights", all(np.isfinite(w).all() for w in model.get_weights()))
"""
)


@pytest.fixture(scope="module")
def namespaces() -> Iterator[tuple[str, str]]:
    """The pool's and the other host's."""
    names = (f"fdt-{os.getpid()}-pool", f"fdt-{os.getpid()}-host")
    with ExitStack() as made:
        for name in names:
            added = subprocess.run(
                ["ip", "netns", "add", name], capture_output=True, text=True, timeout=30, check=False
            )
            if added.returncode:
                pytest.skip(f"no network namespaces here: {added.stderr.strip()}")
            made.callback(ip, "netns", "delete", name)
        # In the pool's namespace the machine's name resolves to an address that others can reach.
        names_file = Path("/etc/netns", names[0], "hosts")
        names_file.parent.mkdir(parents=True)
        made.callback(shutil.rmtree, names_file.parent)
        names_file.write_text(f"127.0.0.1 localhost\n{POOL} {platform.node()}\n")
        ip("-n", names[0], "link", "add", "eth0", "type", "veth", "peer", "name", "eth0", "netns", names[1])
        for name, address in zip(names, (POOL, HOST), strict=True):
            ip("-n", name, "address", "add", f"{address}/24", "dev", "eth0")
            ip("-n", name, "link", "set", "eth0", "up")
            ip("-n", name, "link", "set", "lo", "up")
        yield names


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], capture_output=True, timeout=30, check=True)


class Cluster:
    """A pool with one worker in the first namespace, reachable by TLS and token."""

    def __init__(self, namespaces: tuple[str, str], directory: Path, process: Background) -> None:
        self.namespaces, self.directory, self.process = namespaces, directory, process
        match = re.search(rf"{POOL}:(\d+)", process.wait_for_line("pool at", START_S))
        assert match, process.so_far().describe()
        self.address = match[0]

    @contextmanager
    def host(self, slots: int = 1) -> Iterator[Background]:
        """More workers, in the second namespace."""
        options = [
            "--join",
            self.address,
            "--slots",
            str(slots),
            "--trusted-network",
            HOST,
            *credentials(self.directory),
        ]
        with background(inside(self.namespaces[1], "serve", *options), cwd=self.directory) as process:
            process.wait_for_line("joined the pool", START_S)
            yield process

    def command(self, script: Path, *arguments: str, workers: int = 2) -> list[str]:
        options = ["--workers", str(workers), "--server", self.address, *credentials(self.directory)]
        return inside(self.namespaces[0], "run", *options, str(script), *arguments)

    def pipe(self, name: str) -> Path:
        """On which a script waits until the test goes on."""
        os.mkfifo(self.directory / name)
        return self.directory / name

    def run(self, text: str, workers: int = 2) -> Finished:
        script = written(self.directory, text)
        return run(self.command(script, workers=workers), limit_s=LIMIT_S, cwd=self.directory)


def inside(namespace: str, *arguments: str) -> list[str]:
    return ["ip", "netns", "exec", namespace, PYTHON, "-m", "fdt", *arguments]


def credentials(directory: Path) -> list[str]:
    return ["--token-file", str(directory / "token"), "--tls-ca", str(directory / "cert.pem")]


def written(directory: Path, text: str) -> Path:
    script = directory / "train.py"
    script.write_text(text)
    return script


@pytest.fixture(scope="module")
def cluster(namespaces: tuple[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    directory = tmp_path_factory.mktemp("cluster")
    token = write_token(directory / "token", TOKEN)
    cert, key = directory / "cert.pem", directory / "key.pem"
    order = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=pool"]
    order += ["-addext", f"subjectAltName=IP:{POOL}", "-out", str(cert), "-keyout", str(key)]
    subprocess.run(order, check=True, capture_output=True, timeout=60)
    options = ["--listen", f"{POOL}:0", "--workers", "1", "--trusted-network", "eth0", "--token-file", str(token)]
    options += ["--tls-cert", str(cert), "--tls-key", str(key)]
    with background(inside(namespaces[0], "serve", *options), cwd=directory) as process:
        yield Cluster(namespaces, directory, process)


def losses(finished: Finished) -> list[float]:
    found = re.findall(r"^losses (.*)$", finished.expect(0).stdout, re.MULTILINE)
    assert found, finished.describe()
    return [float(loss) for line in found for loss in line.split()]


def addresses(process: Background) -> set[str]:
    """Returns the addresses of all TCP sockets of a process and its descendants, in their own network namespace."""
    root = psutil.Process(process.pid)
    return {
        address
        for each in [root, *root.children(recursive=True)]
        for address in _addresses(Path("/proc", str(each.pid)))
    }


def _addresses(process: Path) -> set[str]:
    opened = {os.readlink(link) for link in (process / "fd").iterdir()}
    rows = [line.split() for name in ("tcp", "tcp6") for line in (process / "net" / name).read_text().splitlines()[1:]]
    # An IPv4 address on an IPv6 socket ends like one on its own; each is written as a little-endian number.
    words = [row[1].partition(":")[0][-8:] for row in rows if f"socket:[{row[9]}]" in opened]
    return {str(ipaddress.IPv4Address(int(word, 16).to_bytes(4, "little"))) for word in words}


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


def test_hosts_of_unequal_size_and_states_that_travel_as_blobs(cluster: Cluster) -> None:
    plain = run_python(written(cluster.directory, LARGE), limit_s=LIMIT_S, cwd=cluster.directory)
    with cluster.host(slots=2):
        np.testing.assert_allclose(losses(cluster.run(LARGE, workers=3)), losses(plain), atol=1e-4)


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


def test_the_cable_is_cut(cluster: Cluster) -> None:
    """No process ends, no connection is closed: the host is missed by its silence, and the pool goes on."""
    pipe = cluster.pipe("cut")
    with cluster.host() as host:
        script = written(cluster.directory, PAUSES)
        with background(cluster.command(script, str(pipe), "100000"), cwd=cluster.directory) as training:
            training.wait_for_line("in the middle", LIMIT_S)
            pipe.write_text("")
            ip("-n", cluster.namespaces[1], "link", "set", "eth0", "down")
            line = training.wait_for_line("caught", LIMIT_S)
            assert "WorkerError" in line and f"({HOST})" in line and "stopped answering" in line
            training.wait_for_line("weights True", LIMIT_S)
        ip("-n", cluster.namespaces[1], "link", "set", "eth0", "up")
        assert host.process.wait(LIMIT_S) == 125, host.so_far().describe()
    with cluster.host():
        losses(cluster.run(LOSSES))
