"""A pool over two hosts: network namespaces of this machine, joined by a cable of their own (a veth pair)."""

import ipaddress
import os
import platform
import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psutil
import pytest

from tests.helpers.certificates import certificate
from tests.helpers.pool import write_token
from tests.helpers.processes import PYTHON, Background, Finished, background, run

LIMIT_S = 240.0
START_S = 120.0
POOL, HOST = "10.213.0.1", "10.213.0.2"
TOKEN = "a-token-for-this-test-only"

# A script that says that it is in the middle of training, goes on when somebody has written to the pipe, its first argument,
# and trains for so many epochs, its second.
PAUSES = """
import sys

import keras
import numpy as np

x = np.random.default_rng(0).random((96, 8), np.float32)
model = keras.Sequential([keras.layers.Dense(16, activation="relu"), keras.layers.Dense(1)])
model.compile(keras.optimizers.SGD(1e-4), "mse")


class Pause(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        if epoch == 0:
            print("in the middle", flush=True)
            open(sys.argv[1]).read()


try:
    model.fit(x, x.sum(axis=1, keepdims=True), batch_size=20, epochs=int(sys.argv[2]), verbose=0, callbacks=[Pause()])
except Exception as error:
    print("caught", type(error).__name__, error, flush=True)
print("weights", all(np.isfinite(w).all() for w in model.get_weights()), flush=True)
"""

NEEDS = [
    pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces are root's"),
    pytest.mark.skipif(shutil.which("ip") is None, reason="`ip` (iproute2) makes the network namespaces"),
]


@contextmanager
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

    def __init__(
        self, namespaces: tuple[str, str], directory: Path, process: Background, mode: str, options: Sequence[str] = ()
    ) -> None:
        self.namespaces, self.directory, self.process, self.mode = namespaces, directory, process, mode
        self._options = options
        match = re.search(rf"{POOL}:(\d+)", process.wait_for_line("pool at", START_S))
        assert match, process.so_far().describe()
        self.address = match[0]

    @contextmanager
    def host(self, slots: int = 1, options: Sequence[str] | None = None) -> Iterator[Background]:
        """More workers, in the second namespace, by default with the options of all hosts."""
        given = [
            "--join",
            self.address,
            "--slots",
            str(slots),
            "--trusted-network",
            HOST,
            *credentials(self.directory),
            *(self._options if options is None else options),
        ]
        with background(inside(self.namespaces[1], "serve", *given), cwd=self.directory) as process:
            process.wait_for_line("joined the pool", START_S)
            yield process

    def command(self, script: Path, *arguments: str, workers: int = 2, options: Sequence[str] = ()) -> list[str]:
        where = ["--workers", str(workers), "--server", self.address, *credentials(self.directory)]
        return inside(self.namespaces[0], "run", "--mode", self.mode, *where, *options, str(script), *arguments)

    def pipe(self, name: str) -> Path:
        """On which a script waits until the test goes on."""
        os.mkfifo(self.directory / name)
        return self.directory / name

    def run(self, text: str, workers: int = 2, options: Sequence[str] = ()) -> Finished:
        script = written(self.directory, text)
        command = self.command(script, workers=workers, options=options)
        return run(command, limit_s=LIMIT_S, cwd=self.directory, PYTHONFAULTHANDLER="1")


def inside(namespace: str, *arguments: str) -> list[str]:
    return ["ip", "netns", "exec", namespace, PYTHON, "-m", "fdt", *arguments]


def credentials(directory: Path) -> list[str]:
    return ["--token-file", str(directory / "token"), "--tls-ca", str(directory / "cert.pem")]


def written(directory: Path, text: str) -> Path:
    script = directory / "train.py"
    script.write_text(text)
    return script


@contextmanager
def serving(
    namespaces: tuple[str, str], directory: Path, mode: str, everywhere: Sequence[str] = ()
) -> Iterator[Cluster]:
    """Starts the pool; files go into the directory, options of all hosts are given to the pool and to those that join."""
    token = write_token(directory / "token", TOKEN)
    cert, key = certificate(directory, ["pool"], [POOL])
    options = [
        "--mode",
        mode,
        "--listen",
        f"{POOL}:0",
        "--workers",
        "1",
        "--trusted-network",
        "eth0",
        "--token-file",
        str(token),
    ]
    options += ["--tls-cert", str(cert), "--tls-key", str(key), *everywhere]
    with background(inside(namespaces[0], "serve", *options), cwd=directory) as process:
        yield Cluster(namespaces, directory, process, mode, everywhere)


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


def listeners(namespace: str) -> list[tuple[str, str]]:
    """Returns the address, of those that others may reach, and the port of all that listens in a namespace."""
    command = ["ip", "netns", "exec", namespace, "ss", "-ltnH"]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True).stdout
    found = [line.split()[3].rpartition(":")[::2] for line in shown.splitlines()]
    return [(address.strip("[]").removeprefix("::ffff:"), port) for address, port in found]
