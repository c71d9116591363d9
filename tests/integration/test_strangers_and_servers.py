"""What a stranger gets from the TensorFlow servers of an asynchronous job over two hosts."""

import os
import re
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

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
from tests.helpers.processes import PYTHON, background, run

pytestmark = NEEDS

# Another network, on which the pool's machine and the other host are too; the third machine there is the stranger's.
ELSEWHERE = {POOL: "10.214.0.1", HOST: "10.214.0.2"}
STRANGER = "10.214.0.3"


@contextmanager
def elsewhere(names: Sequence[str]) -> Iterator[str]:
    """The stranger's namespace, with a switch between its machine and both hosts."""
    stranger = f"fdt-{os.getpid()}-stranger"
    ip("netns", "add", stranger)
    try:
        ip("-n", stranger, "link", "add", "switch", "type", "bridge")
        ip("-n", stranger, "address", "add", f"{STRANGER}/24", "dev", "switch")
        ip("-n", stranger, "link", "set", "switch", "up")
        for number, (name, address) in enumerate(zip(names, ELSEWHERE.values(), strict=True)):
            port = f"port{number}"
            ip("-n", name, "link", "add", "eth1", "type", "veth", "peer", "name", port, "netns", stranger)
            ip("-n", name, "address", "add", f"{address}/24", "dev", "eth1")
            ip("-n", name, "link", "set", "eth1", "up")
            ip("-n", stranger, "link", "set", port, "master", "switch", "up")
        yield stranger
    finally:
        ip("netns", "delete", stranger)


def asked(namespace: str, directory: Path, targets: Sequence[str]) -> list[str]:
    """Returns which targets answered a session that comes from a namespace."""
    command = ["ip", "netns", "exec", namespace, PYTHON, "-m", "tests.helpers.stranger", directory / "stolen", *targets]
    finished = run(command, limit_s=LIMIT_S, CUDA_VISIBLE_DEVICES="").expect(0)
    told = [line for line in finished.stdout.splitlines() if line.split()[0] in targets]
    assert len(told) == len(targets), finished.describe()
    return [line.split()[0] for line in told if "answered" in line]


def attacked(cluster: Cluster, stranger: str) -> tuple[list[str], list[str]]:
    """Returns who answered: from the other network, and from the trusted one, each host asked by the other."""
    pool, host = cluster.namespaces
    open_on = {POOL: listeners(pool), HOST: listeners(host)}
    outside = [f"{ELSEWHERE[machine]}:{port}" for machine, found in open_on.items() for _, port in found]
    inside = {machine: [f"{machine}:{port}" for _, port in found] for machine, found in open_on.items()}
    attacks = [(stranger, outside), (host, inside[POOL]), (pool, inside[HOST])]
    # Together: each waits for those that do not answer.
    with ThreadPoolExecutor(len(attacks)) as at_once:
        answered = at_once.map(lambda attack: asked(attack[0], cluster.directory, attack[1]), attacks)
    from_outside, to_pool, to_host = answered
    return from_outside, to_pool + to_host


# Where they listen is in test_parameter_server_hosts, whom a tunnel takes in is in test_isolation.
@pytest.mark.thorough
@pytest.mark.parametrize("is_open", [False, True], ids=["tunnel", "open servers"])
def test_who_is_answered_while_a_job_trains(is_open: bool, tmp_path: Path) -> None:
    """With --open-servers, everybody: what the attack is worth, and what the option means where no wall stands behind it."""
    everywhere = ("--open-servers", "--no-walls") if is_open else ()
    with (
        namespaces() as names,
        elsewhere(names) as stranger,
        serving(names, tmp_path, "async", everywhere) as cluster,
        cluster.host(),
    ):
        pipe = cluster.pipe("pipe")
        command = cluster.command(written(tmp_path, PAUSES), str(pipe), "3", options=("--ps", "2"))
        with background(command, cwd=tmp_path) as training:
            training.wait_for_line("in the middle", LIMIT_S)
            addresses = {address for name in names for address, _ in listeners(name)}
            from_outside, from_inside = attacked(cluster, stranger)
            stolen = sorted(path.name for path in tmp_path.glob("stolen*"))
            pipe.write_text("")
            training.wait_for_line("weights True", LIMIT_S)
        assert "caught" not in training.so_far().stdout, training.so_far().describe()
        if is_open:
            assert "*" in addresses or "0.0.0.0" in addresses
            # One TensorFlow server a host.
            assert [re.sub(":.*", "", each) for each in from_outside] == [*ELSEWHERE.values()]
            assert [re.sub(":.*", "", each) for each in from_inside] == [POOL, HOST]
            assert len(stolen) == 4
        else:
            # The pool's port and a tunnel on each host, all on the trusted network alone.
            assert addresses == {POOL, HOST}
            assert (from_outside, from_inside, stolen) == ([], [], [])
