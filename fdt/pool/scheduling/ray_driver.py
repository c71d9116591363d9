"""Runs as Ray's driver for the hosts of one pool: answers questions that `fdt.pool.scheduling.ray` sends to standard input."""

import collections
import contextlib
import dataclasses
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import IO, Any

import ray
from ray.exceptions import AuthenticationError, RayError
from ray.util.placement_group import PlacementGroup, placement_group, placement_group_table, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

# The longest wait until a spread host is placed, before the next one is requested.
_PLACED_S = 2.0
# The number of lines at the end of a host's output that are reported.
_LAST_LINES = 20
# Ray's label with a node's id.
_NODE = "ray.io/node-id"


class Host:
    """A Ray actor that runs one host of a pool as a child process. Ray pickles this class by value."""

    def __init__(self, command: Sequence[str], files: Mapping[str, str]) -> None:
        """
        Args:
            command: The host's command, which names its files as /dev/fd/NAME.
            files: Texts by name, which are kept in memory and never written to a disk.
        """
        self._command, self._files = list(command), dict(files)
        # Guards the attributes below.
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._ends = False

    def run(self) -> tuple[int, str]:
        """Runs the host until it ends; returns its status and the end of its output.

        If the host is killed, this process exits with an error, so that Ray restarts both.
        """
        with self._lock:
            if self._ends:
                return 0, ""
            process = self._process = self._started()
        words: collections.deque[str] = collections.deque(maxlen=_LAST_LINES)
        assert process.stdout is not None
        for line in process.stdout:
            words.append(line.decode(errors="replace"))
            sys.stdout.write(words[-1])
        status = process.wait()
        if status < 0 and not self._ends:
            os._exit(1)
        return status, "".join(words)

    def stop(self, grace_s: float) -> None:
        """Asks the host to end, and kills it after the grace period."""
        with self._lock:
            self._ends, process = True, self._process
        if process is not None:
            process.terminate()
            try:
                process.wait(grace_s)
            except subprocess.TimeoutExpired:
                process.kill()

    def _started(self) -> "subprocess.Popen[bytes]":
        import ctypes

        libc, command, opened = ctypes.CDLL(None), self._command, []
        for name, text in self._files.items():
            opened.append(os.memfd_create(name))
            os.fchmod(opened[-1], 0o600)
            os.write(opened[-1], text.encode())
            command = [f"/dev/fd/{opened[-1]}" if part == f"/dev/fd/{name}" else part for part in command]
        try:
            return subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                pass_fds=opened,
                # Ray's settings are left out: one may be the cluster's token, and a host and its workers need none.
                env={name: value for name, value in os.environ.items() if not name.startswith("RAY_")},
                # PR_SET_PDEATHSIG: when Ray's process is killed, the host gets SIGTERM and leaves the pool.
                preexec_fn=lambda: libc.prctl(1, signal.SIGTERM),
            )
        finally:
            for descriptor in opened:
                os.close(descriptor)


@dataclasses.dataclass(frozen=True)
class _Placed:
    """A requested host.

    Attributes:
        group: Its placement group, of one bundle.
        actor: Its actor, in the group.
        end: Ray's reference to what `Host.run` returns.
    """

    group: PlacementGroup
    actor: Any
    end: Any


class _RefusedError(Exception):
    """A request can never be granted."""


class Driver:
    """The hosts of one pool. Ray ends them when this process ends."""

    def __init__(self) -> None:
        """Makes a driver without hosts, not yet connected."""
        self._placed: dict[str, _Placed] = {}
        # By name, why hosts ended that were not told to.
        self._ended: dict[str, str] = {}
        # Spread hosts that cannot be placed before the node of an earlier host is known.
        self._queued: dict[str, dict[str, Any]] = {}

    def connect(self, address: str, authentication: str, namespace: str) -> None:
        """Joins the cluster.

        Raises:
            _RefusedError: The cluster has no authentication, or another version.
            RayError, OSError: There is no cluster at the address.
        """
        if authentication == "token" and os.environ.get("RAY_AUTH_MODE") != "token":
            raise _RefusedError(
                "The hosts' token would go to a Ray cluster that lets everybody in who reaches it. Start Ray with "
                "RAY_AUTH_MODE=token (Ray 2.52 and later) and set that here too; or, if you trust everybody on the "
                "cluster's network, give authentication=none."
            )
        if ":" in address and "://" not in address:
            # Tries the address first: Ray itself would look for a missing cluster for a minute.
            host, _, port = address.rpartition(":")
            socket.create_connection((host, int(port)), timeout=_PLACED_S).close()
        try:
            ray.init(address=address, namespace=namespace, log_to_driver=False, logging_level="ERROR")
        except (AuthenticationError, RuntimeError) as error:
            # For example, the cluster has another version of Ray or of Python.
            raise _RefusedError(f"Ray refuses this driver: {error}") from error

    def check(self, actor: dict[str, Any]) -> None:
        """Refuses a host that fits no node of the cluster.

        Raises:
            _RefusedError: No node has the host's resources.
        """
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        bundle = actor["placement_group"]["bundle"]
        if not any(all(node.get(name, 0) >= number for name, number in bundle.items()) for node in nodes):
            most = ", ".join(f"{max((node.get(name, 0) for node in nodes), default=0):g} {name}" for name in bundle)
            raise _RefusedError(
                f"No node of the cluster is large enough for a host: expected {_words(bundle)}, and the most that one has is "
                f"{most}. If larger ones come when they are needed, give autoscaling=yes."
            )

    def start(self, name: str, actor: dict[str, Any]) -> None:
        """Requests a host."""
        self._queued[name] = actor
        self._advance()

    def observe(self, names: Sequence[str]) -> dict[str, dict[str, Any]]:
        """Returns the states of hosts, as the fields of `fdt.pool.scheduling.request.Observation`."""
        self._advance()
        return {name: self._observation(name) for name in names}

    def stop(self, names: Sequence[str], grace_s: float) -> None:
        """Ends hosts; running ones leave the pool first."""
        for name in names:
            self._queued.pop(name, None)
        placed = [self._placed.pop(name) for name in names if name in self._placed]
        asked = [each.end for each in placed if _state(each.group) == "CREATED" and not _is_there(each.end)]
        for each in placed:
            if each.end in asked:
                each.actor.stop.remote(grace_s)
        if asked:
            ray.wait(asked, num_returns=len(asked), timeout=grace_s)
        for each in placed:
            _release(each)

    def sweep(self, grace_s: float) -> None:
        """Ends all hosts."""
        self.stop([*self._queued, *self._placed], grace_s)

    def _advance(self) -> None:
        """Requests the queued hosts whose placement can be decided now."""
        for name, actor in list(self._queued.items()):
            if actor["placement_group"]["placement"] == "spread":
                if not all(_has_place(each.group) for each in self._placed.values()):
                    return
                taken = sorted(node for each in self._placed.values() for node in _nodes(each.group))
                self._placed[name] = _placed(actor, [{_NODE: f"!in({','.join(taken)})"}] if taken else None)
            else:
                self._placed[name] = _placed(actor, None)
            del self._queued[name]

    def _observation(self, name: str) -> dict[str, Any]:
        if name in self._queued:
            return _seen("pending (the host before it has no node yet)", waits=True)
        if name in self._placed and _is_there(self._placed[name].end):
            placed = self._placed.pop(name)
            self._ended[name] = _result(placed.end)
            _release(placed)
        if name not in self._placed:
            return _seen(self._ended.get(name, "ended"), ended=True)
        placed = self._placed[name]
        table = placement_group_table(placed.group)
        if table["state"] == "CREATED":
            return _seen(f"running on node {', '.join(_nodes(placed.group))[:12]}")
        why = {
            "INFEASIBLE": "no node has {}",
            "NO_RESOURCES": "no node has {} free",
        }.get(table["stats"]["scheduling_state"], table["stats"]["scheduling_state"])
        return _seen(f"{table['state'].lower()} ({why.format(_words(table['bundles'][0]))})", waits=True)


def _placed(actor: dict[str, Any], selectors: list[dict[str, str]] | None) -> _Placed:
    """Requests a placement group and an actor in it; waits a little for a spread host's node, which the next host avoids."""
    asked = actor["placement_group"]
    more = {} if selectors is None else {"bundle_label_selector": selectors}
    group = placement_group([asked["bundle"]], strategy="STRICT_PACK", name=asked["name"], **more)
    strategy = PlacementGroupSchedulingStrategy(group)
    handle = ray.remote(Host).options(scheduling_strategy=strategy, **actor["options"]).remote(**actor["arguments"])
    placed = _Placed(group, handle, handle.run.remote())
    if asked["placement"] == "spread":
        group.wait(_PLACED_S)
    return placed


def _release(placed: _Placed) -> None:
    """Kills a host's actor and frees its placement group."""
    ray.kill(placed.actor)
    remove_placement_group(placed.group)


def _state(group: PlacementGroup) -> str:
    return str(placement_group_table(group)["state"])


def _nodes(group: PlacementGroup) -> list[str]:
    return [node for node in placement_group_table(group)["bundles_to_node_id"].values() if node]


def _has_place(group: PlacementGroup) -> bool:
    return bool(_nodes(group))


def _is_there(reference: Any) -> bool:
    ready, _ = ray.wait([reference], timeout=0)
    return bool(ready)


def _result(end: Any) -> str:
    """Returns how a host ended, in words."""
    try:
        status, words = ray.get(end, timeout=_PLACED_S)
    except RayError as error:
        return " ".join(str(error).split())
    last = words.strip().splitlines()[-1:]
    return f"ended with status {status}" + "".join(f": {line}" for line in last)


def _words(bundle: Mapping[str, float]) -> str:
    return ", ".join(f"{number:g} {name}" for name, number in bundle.items())


def _seen(reason: str, waits: bool = False, ended: bool = False) -> dict[str, Any]:
    return {"waits": waits, "ended": ended, "reason": reason}


def _answer(driver: Driver, question: dict[str, Any]) -> dict[str, Any]:
    number, what = question.pop("number"), question.pop("do")
    known: dict[str, Callable[..., Any]] = {
        "connect": driver.connect,
        "check": driver.check,
        "start": driver.start,
        "observe": driver.observe,
        "stop": driver.stop,
        "sweep": driver.sweep,
    }
    try:
        return {"number": number, "kind": "done", "said": known[what](**question)}
    except _RefusedError as error:
        return {"number": number, "kind": "refused", "said": str(error)}
    except (OSError, RayError) as error:
        return {"number": number, "kind": "unreachable", "said": " ".join(str(error).split())}
    except (TypeError, ValueError) as error:
        # Ray raises this for invalid requests, such as a placement that this version does not know.
        return {"number": number, "kind": "refused", "said": f"Ray refuses the request: {error}"}


def _serve(questions: IO[str], answers: IO[str]) -> None:
    driver = Driver()
    for line in questions:
        answers.write(json.dumps(_answer(driver, json.loads(line))) + "\n")
        answers.flush()
    with contextlib.suppress(RayError):
        ray.shutdown()


def main() -> None:
    """Answers questions until standard input ends."""
    # Ray's output must not mix with the answers.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    _serve(sys.stdin, answers)


if __name__ == "__main__":
    main()
