"""A Ray cluster for a test: a head and a second node on this machine, with ports, a token and a folder of their own."""

import contextlib
import importlib.util
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.helpers.waiting import wait_until

_START_S, _END_S = 60.0, 30.0
# Under load a raylet may not come up in the time that Ray gives it.
_TRIES = 3
# Workers of Ray take ports from 10002 to 19999, and the system gives connections those from 32768 on.
_PORTS = range(20_100, 29_900)

_LOOK = """
import json, ray
from ray.util.placement_group import placement_group_table
ray.init(address="{address}", log_to_driver=False, logging_level="ERROR")
groups = [group for group in placement_group_table().values() if group["state"] != "REMOVED"]
print(json.dumps({{
    "nodes": sum(node["Alive"] for node in ray.nodes()),
    "actors": [each["name"] for each in ray.util.list_named_actors(all_namespaces=True)],
    "groups": [group["name"] for group in groups],
    "in_use": sorted({{node for group in groups for node in group["bundles_to_node_id"].values() if node}}),
}}))
"""
_OCCUPY = """
import ray
from ray.util.placement_group import placement_group
ray.init(address="{address}", log_to_driver=False, logging_level="ERROR")
assert placement_group([{{"CPU": 2}}] * 2, strategy="STRICT_SPREAD", name="somebody else's").wait(30)
print("occupied", flush=True)
input()
"""


class Cluster:
    """A running cluster of two nodes with two processors each. `RAY_ADDRESS` in the environment leads to it."""

    on = ("--on", "ray", "--trusted-network", "lo")

    def __init__(self, folder: Path, address: str) -> None:
        self.folder, self.address = folder, address

    def look(self) -> dict[str, Any]:
        """Returns what is there: `nodes`, a number; names of `actors` and `groups`; ids of nodes `in_use`."""
        code = [sys.executable, "-c", _LOOK.format(address=self.address)]
        done = subprocess.run(code, capture_output=True, text=True, timeout=_START_S, check=False)
        assert not done.returncode, done.stderr
        seen: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return seen

    def queue(self) -> list[str]:
        """Returns the names of hosts' actors and placement groups."""
        seen = self.look()
        return [name for name in (*seen["actors"], *seen["groups"]) if name.startswith("fdt-")]

    def nodes_in_use(self) -> list[str]:
        """Returns the nodes on which somebody has a place."""
        in_use: list[str] = self.look()["in_use"]
        return in_use

    def hosts(self) -> list[psutil.Process]:
        """Returns processes of hosts whose parents are this cluster's."""
        found = [each for each in psutil.process_iter(["cmdline"]) if "--join" in (each.info["cmdline"] or [])]
        return [each for each in found if self._is_its(each.parent())]

    def _is_its(self, process: psutil.Process | None) -> bool:
        try:
            return process is not None and str(self.folder) in process.environ().get("RAY_AUTH_TOKEN_PATH", "")
        except psutil.Error:
            return False

    @contextmanager
    def occupied(self) -> Iterator[None]:
        """Somebody else has all processors for the length of a `with` block."""
        code = [sys.executable, "-c", _OCCUPY.format(address=self.address)]
        with subprocess.Popen(code, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as somebody:
            assert somebody.stdout is not None and somebody.stdout.readline() == "occupied\n"
            try:
                yield
            finally:
                somebody.communicate(timeout=_END_S)


@contextmanager
def ray_cluster() -> Iterator[Cluster]:
    """A cluster for the length of a `with` block; skips the test where there cannot be one."""
    if importlib.util.find_spec("ray") is None:
        pytest.skip("Ray is not installed: it is in the group `dev`, and the extra `ray`")
    said = ""
    for _ in range(_TRIES):
        # Paths of Unix sockets have 107 characters at most.
        folder = Path(tempfile.mkdtemp(prefix="fdtr", dir="/tmp"))
        with pytest.MonkeyPatch.context() as patch, ExitStack() as ending:
            ending.callback(shutil.rmtree, folder, ignore_errors=True)
            (folder / "token").write_text(secrets.token_hex(32))
            (folder / "token").chmod(0o600)
            patch.setenv("RAY_AUTH_MODE", "token")
            patch.setenv("RAY_AUTH_TOKEN_PATH", str(folder / "token"))
            patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
            # Ray is nice to others by 15, which on a busy machine leaves hosts next to nothing.
            patch.setenv("RAY_worker_niceness", "0")
            cluster = Cluster(folder, f"127.0.0.1:{secrets.choice(_PORTS)}")
            patch.setenv("RAY_ADDRESS", cluster.address)
            try:
                _start(ending, cluster)
            except AssertionError as error:
                said = str(error)
                continue
            yield cluster
            return
    pytest.skip(f"a Ray cluster did not start in {_TRIES} tries: {said}")


def _start(ending: ExitStack, cluster: Cluster) -> None:
    port = cluster.address.rpartition(":")[2]
    _node(ending, cluster, "--head", f"--port={port}", f"--temp-dir={cluster.folder}/r", "--include-dashboard=false")
    wait_until(lambda: _num_nodes(cluster) == 1, lambda: _said(cluster), _START_S)
    _node(ending, cluster, f"--address={cluster.address}")
    wait_until(lambda: _num_nodes(cluster) == 2, lambda: _said(cluster), _START_S)


def _num_nodes(cluster: Cluster) -> int:
    try:
        return int(cluster.look()["nodes"])
    except (AssertionError, subprocess.TimeoutExpired):
        return 0


def _node(ending: ExitStack, cluster: Cluster, *arguments: str) -> None:
    options = ["--block", "--disable-usage-stats", "--node-ip-address=127.0.0.1", "--num-cpus=2", "--num-gpus=0"]
    with open(cluster.folder / "said", "ab") as said:
        process = subprocess.Popen(
            [Path(sys.executable).parent / "ray", "start", *options, "--object-store-memory=80000000", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=said,
            start_new_session=True,
        )
    ending.callback(_end, process)


def _said(cluster: Cluster) -> str:
    return "\n".join((cluster.folder / "said").read_text(errors="replace").splitlines()[-20:])


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ends a node, and what of it does not end by itself."""
    started = [process]
    with contextlib.suppress(psutil.NoSuchProcess):
        started = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_END_S)
    for each in started:
        with contextlib.suppress(psutil.NoSuchProcess, ProcessLookupError):
            os.kill(each.pid, signal.SIGKILL)
    process.wait(_END_S)
