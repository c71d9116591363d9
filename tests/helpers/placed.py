"""A pool whose hosts a scheduler brings, for tests of any scheduler."""

import itertools
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

import psutil

from tests.helpers.processes import PYTHON, Background, Finished, background, run
from tests.helpers.waiting import wait_until

LIMIT_S = 120.0
DIGITS = Path(__file__).parents[2] / "client_examples" / "digits.py"


class Cluster(Protocol):
    """What a scheduler has two nodes of, for a test."""

    # `--on NAME` and the options that go with it.
    on: tuple[str, ...]

    def queue(self) -> list[str]:
        """Returns a word for each request that waits or runs."""


class Pool:
    """`fdt serve --on NAME`, with two hosts of one worker each at most."""

    def __init__(self, process: Background) -> None:
        self.process = process
        found = re.search(r"127\.0\.0\.1:\d+", process.wait_for_line("pool at", LIMIT_S))
        assert found
        self.address = found[0]

    def fdt(self, command: str, *arguments: str) -> list[str]:
        return [PYTHON, "-m", "fdt", command, "--server", self.address, *arguments]

    def said(self, words: str) -> int:
        """How often the pool has said this."""
        return self.process.so_far().stderr.count(words)

    def waits_until_it_says(self, words: str, times: int = 1) -> None:
        self.process.wait_until(lambda so_far: so_far.stderr.count(words) >= times, LIMIT_S)

    def reason(self) -> str:
        """What `fdt jobs` tells of the newest job."""
        return run(self.fdt("jobs"), limit_s=LIMIT_S).expect(0).stdout.splitlines()[-1]

    def hosts(self) -> list[psutil.Process]:
        return hosts_of(self.address)


@contextmanager
def serving(cluster: Cluster, folder: Path, *more: str) -> Iterator[Pool]:
    """A pool for the length of a `with` block, which must leave the cluster and the folder empty."""
    shared = folder / "shared"
    options = ["--hosts", "0..2", "--idle", "1", "--listen", "127.0.0.1:0", "--shared-folder", str(shared)]
    with background([PYTHON, "-m", "fdt", "serve", *cluster.on, *options, *more], cwd=folder) as process:
        pool = Pool(process)
        yield pool
    left_alone(cluster, shared, pool.address)


def hosts_of(address: str) -> list[psutil.Process]:
    """Returns the hosts of the pool at an address, which are on this machine."""
    found = [(each, each.info["cmdline"] or []) for each in psutil.process_iter(["cmdline"])]
    return [each for each, command in found if ("--join", address) in itertools.pairwise(command)]


def left_alone(cluster: Cluster, shared: Path, *addresses: str) -> None:
    """Asserts that there is no process, no file and no entry in the queue."""
    wait_until(lambda: not cluster.queue(), lambda: str(cluster.queue()), LIMIT_S)
    assert [*shared.iterdir()] == []
    assert [host for address in addresses for host in hosts_of(address)] == []


def figures(finished: Finished) -> list[str]:
    """Returns what digits.py prints, without times."""
    lines = [line for line in finished.stdout.splitlines() if line.startswith("final loss") or "val_loss" in line]
    return [re.sub(r"\d+m?s(/step)?", "", line) for line in lines]
