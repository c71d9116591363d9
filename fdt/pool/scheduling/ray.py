"""Starts hosts on Ray, each an actor in its own placement group. Only a separate process, `ray_driver.py`, imports Ray.

The driver owns the actors: Ray ends them when the driver ends, even if it is killed. So no host outlives its driver.
"""

import contextlib
import importlib.util
import json
import os
import select
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from fdt.base import interpreter
from fdt.errors import UsageError
from fdt.pool.scheduling.request import (
    CA_FILE,
    TOKEN_FILE,
    HostRequest,
    Observation,
    Rendering,
    SchedulerUnreachableError,
    named_arguments,
)
from fdt.worker.processes import last_words

# The arguments, with their defaults.
_DEFAULTS = {"address": "auto", "placement": "pack", "restarts": "4", "authentication": "token", "autoscaling": "no"}
_CHOICES = {"placement": ("pack", "spread"), "authentication": ("token", "none"), "autoscaling": ("no", "yes")}
# The time limit of a question; Ray waits half a minute for a missing cluster.
_LIMIT_S = 60.0
# The time that hosts have to end, before they are killed.
_GRACE_S = 10.0
_COMMAND = interpreter.of_module("fdt.pool.scheduling.ray_driver")
# The folder of a host's files, which it inherits as open descriptors (`ray_driver.Host`).
FILES = "/dev/fd"


class Ray:
    """Implements `fdt.pool.scheduling.request.Scheduler`. Arguments are NAME=VALUE.

    - `address` of the cluster, HOST:PORT (default: `auto`, the one that this machine is a node of);
    - `placement`: `pack` fills nodes up, `spread` gives each host a node without another host of the pool;
    - `restarts`: how often Ray itself restarts a killed host;
    - `authentication`: `none` sends the hosts' token to a cluster without authentication;
    - `autoscaling`: `yes` waits for nodes that do not exist yet.
    """

    restarts = True

    def __init__(self) -> None:
        self._driver: _Driver | None = None

    def render(self, request: HostRequest) -> Rendering:
        """Returns the actor's description. It has the token as an argument, so no file is written."""
        return Rendering((), (), json.dumps(_actor(request), indent=2) + "\n")

    def check(self, request: HostRequest) -> None:
        """Compares the request with the resources of the cluster's nodes, unless the cluster may add nodes."""
        with _refusing(), _Driver(request) as driver:
            if _given(request)["autoscaling"] == "no":
                driver.ask("check", actor=_actor(request))

    def start(self, request: HostRequest) -> str:
        """Starts the driver if there is none, and requests an actor; returns the host's name."""
        if self._driver is None or self._driver.has_ended():
            self._driver = _Driver(request)
        self._driver.ask("start", name=request.name, actor=_actor(request))
        return request.name

    def observe(self, pool: str, started: Mapping[str, HostRequest]) -> Mapping[str, Observation]:
        """Asks the driver for the hosts' states; without a driver all have ended."""
        gone = Observation(waits=False, ended=True, reason="ended with Ray's driver")
        seen: Mapping[str, Any] = {}
        if started and self._driver is not None and not self._driver.has_ended():
            seen = self._driver.ask("observe", names=list(started))
        return {name: Observation(**seen[name]) if name in seen else gone for name in started}

    def stop(self, names: Sequence[str]) -> None:
        """Has the driver end hosts, which leave the pool first if they run."""
        if names and self._driver is not None and not self._driver.has_ended():
            self._driver.ask("stop", names=list(names), grace_s=_GRACE_S)

    def sweep(self, pool: str) -> None:
        """Has the driver end all hosts, then ends the driver."""
        driver, self._driver = self._driver, None
        if driver is not None:
            with contextlib.closing(driver):
                if not driver.has_ended():
                    driver.ask("sweep", grace_s=_GRACE_S)


def _given(request: HostRequest) -> dict[str, str]:
    given = named_arguments(request.config.arguments, _DEFAULTS)
    for name, choices in _CHOICES.items():
        if given[name] not in choices:
            raise UsageError(f"Expected {name}={' or '.join(choices)}. Received: {name}={given[name]}")
    if not given["restarts"].isdecimal():
        raise UsageError(f"Expected a number of restarts, such as restarts=4. Received: restarts={given['restarts']}")
    return given


def _actor(request: HostRequest) -> dict[str, Any]:
    """Returns the description of an actor for the driver, which `--dry-run` shows."""
    config, given = request.config, _given(request)
    files = {TOKEN_FILE: request.token} | ({CA_FILE: request.tls_ca} if request.tls_ca else {})
    bundle = {"CPU": config.slots} | ({"GPU": config.gpus} if config.gpus else {})
    return {
        "placement_group": {
            "name": f"{request.pool}/{request.name}",
            "bundle": bundle,
            "placement": given["placement"],
        },
        "options": {
            "name": f"{request.pool}/{request.name}",
            "num_cpus": config.slots,
            "num_gpus": config.gpus,
            "max_restarts": int(given["restarts"]),
            # A restarted actor runs its host again.
            "max_task_retries": -1,
            # Two, so that `stop` can be called while `run` runs.
            "max_concurrency": 2,
        },
        "arguments": {"command": request.command(folder=FILES), "files": files},
    }


@contextlib.contextmanager
def _refusing() -> Iterator[None]:
    """Turns SchedulerUnreachableError into UsageError, in checks before a pool starts."""
    try:
        yield
    except SchedulerUnreachableError as error:
        raise UsageError(
            f"Ray does not answer: {error}. Does `ray status` work on this machine? address=HOST:PORT names another cluster."
        ) from error


class _Driver:
    """A process that is a driver of Ray. Questions and answers are lines of JSON on its standard input and output."""

    def __init__(self, request: HostRequest) -> None:
        """Starts the process and waits until it is connected to the cluster.

        Raises:
            UsageError: Ray is not installed, or the cluster has no authentication or another version.
            SchedulerUnreachableError: There is no cluster.
        """
        if importlib.util.find_spec("ray") is None:
            raise UsageError("Ray is not installed on this machine: pip install 'fdt[ray]'. Received: --on ray")
        given = _given(request)
        # The pool's operator needs Ray's output only if the driver ends.
        self._said: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115
        self._num_asked, self._unread = 0, b""
        self._process = subprocess.Popen(
            _COMMAND,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,
            # In a session of its own a terminal's Ctrl-C does not reach the driver, so the pool can end the hosts first.
            start_new_session=True,
        )
        try:
            self.ask(
                "connect", address=given["address"], authentication=given["authentication"], namespace=request.pool
            )
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> "_Driver":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def has_ended(self) -> bool:
        """Returns whether the driver has ended, and with it all its hosts."""
        return self._process.poll() is not None

    def ask(self, what: str, **arguments: Any) -> Any:
        """Returns the answer to a question.

        Raises:
            UsageError: The driver or Ray refuses it.
            SchedulerUnreachableError: There is no answer in time, or Ray does not answer the driver.
        """
        assert self._process.stdin is not None
        self._num_asked += 1
        question = json.dumps({"number": self._num_asked, "do": what, **arguments}) + "\n"
        try:
            self._process.stdin.write(question.encode())
            self._process.stdin.flush()
        except OSError as error:
            raise self._lost() from error
        answer = self._answer(time.monotonic() + _LIMIT_S)
        if answer["kind"] == "refused":
            raise UsageError(answer["said"])
        if answer["kind"] == "unreachable":
            raise SchedulerUnreachableError(answer["said"])
        return answer["said"]

    def _answer(self, end_s: float) -> dict[str, Any]:
        """Returns the answer to the last question; skips late answers to earlier ones."""
        assert self._process.stdout is not None
        # Not `select.select`, which fails for descriptors above 1023; a pool's process may have more.
        readable = select.poll()
        readable.register(self._process.stdout, select.POLLIN)
        while True:
            line, newline, rest = self._unread.partition(b"\n")
            if newline:
                self._unread = rest
                answer: dict[str, Any] = json.loads(line)
                if answer["number"] == self._num_asked:
                    return answer
                continue
            if not readable.poll(1000 * max(0.0, end_s - time.monotonic())):
                raise SchedulerUnreachableError(f"no answer within {_LIMIT_S:.0f} s")
            read = os.read(self._process.stdout.fileno(), 1 << 16)
            if not read:
                raise self._lost()
            self._unread += read

    def _lost(self) -> SchedulerUnreachableError:
        # The driver's output is closed a moment before `wait` returns.
        try:
            self._process.wait(_GRACE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
        return SchedulerUnreachableError(
            f"its driver has ended: {last_words(Path(f'/proc/self/fd/{self._said.fileno()}'))}"
        )

    def close(self) -> None:
        """Ends the driver; Ray ends its remaining actors."""
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            # The driver leaves the cluster at the end of its input.
            self._process.communicate(timeout=_GRACE_S)
        self._process.kill()
        self._process.communicate(timeout=_GRACE_S)
        self._said.close()
