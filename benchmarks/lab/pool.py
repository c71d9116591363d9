"""A pool in a laboratory: `fdt serve` in one namespace, `fdt serve --join` in each of the others."""

import contextlib
import dataclasses
import json
import os
import secrets
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import processes

from fdt.forecast import quantities
from lab.link import Link
from lab.network import DEVICE, POOL, Network
from tests.helpers.certificates import certificate
from tests.helpers.pool import write_token

RUN_LIMIT_S = 900.0
_WARM_LIMIT_S = 240.0
_IDLE_S = 2.0
# A pool that uses less of one core than this, its own and for each host, has nothing more to import.
_IDLE_CORES, _IDLE_CORES_A_HOST = 0.1, 0.05


@dataclasses.dataclass(frozen=True)
class Run:
    """A run of `fdt run` that ended with status 0.

    Attributes:
        output: Of the script and of fdt.
        seconds: From its start to its end, starting TensorFlow and tracing the step included.
        report: What `fdt run --report` wrote.
        sent_bytes: What each member sent over its link meanwhile, headers and the pool's own traffic included.
        received_bytes: The same, received.
    """

    output: str
    seconds: float
    report: Mapping[str, Any]
    sent_bytes: Mapping[str, int]
    received_bytes: Mapping[str, int]


class Lab:
    """`with Lab(hosts=4, bandwidth="100Mbit") as lab: lab.run([...])`, as often as wanted, all on one warm pool.

    The pool's own namespace has a link like the hosts', and no workers: with `--ps-place pool` it is a parameter server of its
    own. The script runs there too, as a client of the pool. All hosts share this machine's cores.
    """

    def __init__(
        self,
        hosts: int,
        bandwidth: str,
        latency: str | None = None,
        mode: str = "both",
        pool_workers: int = 0,
        cores: float | None = None,
        everywhere: Sequence[str] = (),
        served: Sequence[str] = (),
    ) -> None:
        """Notes what to make.

        Args:
            hosts: With one worker each.
            bandwidth: Of every link in each direction, such as "100Mbit".
            latency: One way, such as "1ms"; needs `netem` in the kernel.
            mode: What the pool offers: sync, async or both.
            pool_workers: Workers in the pool's own namespace, which are the first that a job gets.
            cores: See `Network`.
            everywhere: Options of `fdt serve` for the pool and all hosts.
            served: Options of `fdt serve` for the pool alone.
        """
        link = Link(8 * quantities.bandwidth(bandwidth), quantities.duration(latency) if latency else 0.0)
        self.network = Network(hosts, link, cores)
        self.num_workers = hosts + pool_workers
        self._mode, self._pool_workers, self._everywhere, self._served = mode, pool_workers, everywhere, served

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as made:
            self._folder = Path(made.enter_context(tempfile.TemporaryDirectory(prefix="fdt-lab-")))
            made.enter_context(self.network)
            self._start_pool(made)
            self._wait_idle()
            self._made = made.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._made.close()

    def command(self, arguments: Sequence[str]) -> list[str]:
        """Returns the command that runs a script here.

        Args:
            arguments: Options of `fdt run`, the script, its arguments. Without `--workers` all workers take part.
        """
        where = ["--server", self._address, *self._credentials, "--workers", str(self.num_workers)]
        return self._fdt(POOL, "run", *where, *arguments)

    def run(
        self,
        arguments: Sequence[str],
        timeout_s: float = RUN_LIMIT_S,
        watch: Callable[[int], object] | None = None,
    ) -> Run:
        """Runs a script to its end.

        Args:
            arguments: As of `command`; `--report` is added.
            timeout_s: After so long it is killed.
            watch: See `processes.run`.

        Raises:
            RunFailedError: It took too long, or its exit status is not 0.
        """
        report = self._folder / "report.json"
        before = self.network.traffic()
        finished = processes.run(self.command(["--report", str(report), *arguments]), timeout_s=timeout_s, watch=watch)
        sent, received = since(before, self.network.traffic())
        return Run(finished.output, finished.seconds, json.loads(report.read_text()), sent, received)

    def lose(self, host: str) -> None:
        """Has a host vanish, as by a cut of its power: nothing that it would still say arrives."""
        self.network.set_link(host, "down")
        for pid in self.network.pids(host):
            os.kill(pid, signal.SIGKILL)

    def join(self, host: str) -> None:
        """Has another host take the place of one that vanished."""
        self.network.set_link(host, "up")
        self._join(self._made, host)

    def logs(self) -> str:
        """Returns what the pool and the hosts have printed, for messages about failures."""
        return "\n".join(f"--- {log.stem}\n{log.read_text()}" for log in sorted(self._folder.glob("*.log")))

    def _start_pool(self, made: contextlib.ExitStack) -> None:
        own = self.network.address(POOL)
        token = write_token(self._folder / "token", secrets.token_hex())
        cert, key = certificate(self._folder, ["pool"], [own])
        self._credentials = ["--token-file", str(token), "--tls-ca", str(cert)]
        served = ["--mode", self._mode, "--listen", f"{own}:0", "--workers", str(self._pool_workers), *self._served]
        served += ["--token-file", str(token), "--tls-cert", str(cert), "--tls-key", str(key)]
        self._address = self._start(made, POOL, served, rf"{own}:\d+")
        # One after the other, so that a rank's number is its host's.
        for host in self.network.hosts:
            self._join(made, host)

    def _join(self, made: contextlib.ExitStack, host: str) -> None:
        joined = ["--join", self._address, "--slots", "1", *self._credentials]
        self._start(made, host, joined, "joined the pool")

    def _start(self, made: contextlib.ExitStack, member: str, options: Sequence[str], says: str) -> str:
        command = self._fdt(member, "serve", "--trusted-network", DEVICE, *self._everywhere, *options)
        return str(made.enter_context(processes.serving(command, says, self._folder / f"{member}.log"))[0])

    def _fdt(self, member: str, *arguments: str) -> list[str]:
        return self.network.inside(member, [sys.executable, "-m", "fdt", *arguments])

    def _wait_idle(self) -> None:
        """Waits until nothing runs but what waits: every host has imported TensorFlow."""
        deadline_s = time.monotonic() + _WARM_LIMIT_S
        idle_since_s, before_s = time.monotonic(), self._cpu_s()
        idle_cores = _IDLE_CORES + _IDLE_CORES_A_HOST * len(self.network.hosts)
        while time.monotonic() - idle_since_s < _IDLE_S:
            if time.monotonic() > deadline_s:
                raise processes.RunFailedError(f"The pool does not come to rest.\n{self.logs()[-2000:]}")
            time.sleep(0.5)
            now_s = self._cpu_s()
            if now_s - before_s > idle_cores * 0.5:
                idle_since_s = time.monotonic()
            before_s = now_s

    def _cpu_s(self) -> float:
        return sum(processes.cpu_s(pid) for pid in self.network.pids())


def since(
    before: Mapping[str, tuple[int, int]], now: Mapping[str, tuple[int, int]]
) -> tuple[dict[str, int], dict[str, int]]:
    """Returns what each member has sent, and what it has received, between two looks at `Network.traffic`."""
    sent = {member: now[member][0] - before[member][0] for member in now}
    received = {member: now[member][1] - before[member][1] for member in now}
    return sent, received
