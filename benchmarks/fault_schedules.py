"""Runs of the toy runtime through faults that a seed chooses: real pools, hosts and connections, and steps that take no time.

A run fails if a step does not count once and in its place (`tests.helpers.chain_job.trained_through`), if a fault of its
schedule did not fire, if the job noticed none of them, or if a process is left.
"""

import itertools
import os
import random
import shutil
import signal
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import processes
from processes import RunFailedError

from fdt.base.config import Credentials
from fdt.client import recovery
from fdt.client.job import Job
from fdt.errors import FdtError
from fdt.transport import rpc
from tests.helpers.chain_job import TOKEN, begin, forks_workers, pool_process, rows_of, trained_through, values_after
from tests.helpers.chain_pool import TIMING
from tests.helpers.cut import Way
from tests.helpers.processes import PYTHON, Background, background

STEP_S = "0.003"
# As by default; the other limits of the toy's pools are shorter than that.
SILENCE = ("--silence", "10")
RECONNECT_S = 120.0
# A run here lasts seconds.
recovery._MORE_S = 0.0
HOST = {"TOY_LAUNCHER": "tests.helpers.chain_engine:ChainLauncher"}


class Scene:
    """A pool, what its client reaches it by, and what has happened to it."""

    def __init__(self, seed: int, num_steps: int, num_workers: int = 2, *options: str) -> None:
        self.chosen, self.rows = random.Random(seed), rows_of(num_steps, seed)
        self._stack, self._options = ExitStack(), options
        self.folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory()))
        self.fired, self.state = self.folder / "fired", self.folder / "state"
        self.fired.mkdir()
        self.pools: list[Background] = []
        self.port = 0
        self.start(num_workers)
        self._way: Way | None = None
        self._left: list[int] = []

    def start(self, num_workers: int = 2) -> None:
        """Starts a pool, with nothing but the state folder of the one before."""
        folder = self.folder / f"pool-{len(self.pools)}"
        pool = pool_process(self.port, folder, num_workers, self.state, *self._options)
        process, self.port = self._stack.enter_context(pool)
        self.pools.append(process)

    def kill(self) -> None:
        """Ends the pool at once, and sees that nothing of it stays."""
        below = processes.tree(self.pools[-1].pid)
        self.pools[-1].process.kill()
        self.pools[-1].process.wait(20.0)
        self._left += below

    def restart(self, num_workers: int = 2, *, forget: bool = False) -> None:
        """Has another pool take the place of this one."""
        self.kill()
        if forget:
            shutil.rmtree(self.state)
        self.start(num_workers)

    def way(self) -> Way:
        """Returns what passes on between the client and the pool."""
        self._way = self._way or Way(self.port)
        return self._way

    def host(self, slots: int = 1) -> Background:
        """Has a host join."""
        token = self.folder / "token"
        token.write_text(TOKEN)
        token.chmod(0o600)
        words = ["--join", f"127.0.0.1:{self.port}", "--slots", str(slots), "--trusted-network", "lo", "--no-walls"]
        command = [PYTHON, "-m", "tests.helpers.toy_host", *words, "--token-file", str(token)]
        process = self._stack.enter_context(background(command, processes.ROOT, **HOST))
        process.wait_for_line("joined the pool", 60.0)
        return process

    def moments(self, number: int, first: int = 10) -> list[int]:
        """Returns steps, spread over the run, each at random in its part of it."""
        width = (len(self.rows) - first) // number
        return [first + width * part + self.chosen.randrange(width // 2) for part in range(number)]

    def train(
        self,
        faults: dict[int, Callable[[], object]],
        planned: int,
        schedule: str = "",
        workers: range | None = None,
        num_workers: int = 2,
    ) -> dict[str, Any]:
        """Trains through the faults; returns what came of it.

        Raises:
            RunFailedError: See the module.
        """
        address = self.way().address if self._way is not None else f"127.0.0.1:{self.port}"
        channel = rpc.connect(address, Credentials(TOKEN), TIMING)
        options = {"step_s": STEP_S, "faults": schedule, "fired": str(self.fired)}
        job = begin(channel, address, options, workers, num_workers, RECONNECT_S)
        try:
            trained_through(job, self.rows, faults)
        except (AssertionError, FdtError) as error:
            raise RunFailedError(str(error)) from error
        found = _noticed(job, planned)
        if sorted(path.name for path in self.fired.iterdir()) != sorted(filter(None, schedule.split(","))):
            raise RunFailedError("A fault of the schedule did not fire")
        job.close()
        channel.close()
        return found

    def close(self) -> None:
        """Ends all of it.

        Raises:
            RunFailedError: A process of a pool is left.
        """
        if self._way is not None:
            self._way.close()
        self._left += [pid for pool in self.pools for pid in processes.tree(pool.pid) if pool.process.poll() is None]
        self._stack.close()
        left = [pid for pid in self._left if _command(pid)]
        if left:
            raise RunFailedError(f"{len(left)} process(es) of pools that are gone are left")


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def _noticed(job: Job, planned: int) -> dict[str, Any]:
    faults = job.faults
    if not faults:
        raise RunFailedError("No fault was noticed")
    return {
        "faults": planned,
        "recovery_s": [fault.seconds for fault in faults],
        "repeated": [fault.repeated for fault in faults],
        "workers": [fault.workers for fault in faults],
    }


@contextmanager
def scene(seed: int, num_steps: int, num_workers: int = 2, *options: str) -> Iterator[Scene]:
    """A scene for the length of a `with` block."""
    found = Scene(seed, num_steps, num_workers, *options)
    try:
        yield found
    finally:
        found.close()


def _by_schedule(kind: str, number: int, steps_each: int, *options: str) -> Callable[[int], dict[str, Any]]:
    """Returns a row whose faults happen inside of steps."""

    def run(seed: int) -> dict[str, Any]:
        with scene(seed, number * steps_each, 2, *options) as on:
            values = values_after(on.rows)
            words = [f"{kind}:{on.chosen.randrange(2)}:{values[step]}" for step in on.moments(number)]
            return on.train({}, number, ",".join(words))

    return run


def _forkserver_stopped(seed: int) -> dict[str, Any]:
    # Its workers go on until it is noticed.
    with scene(seed, 5000, 2, *SILENCE) as on:

        def stop() -> None:
            forks_workers(on.pools[-1].pid).suspend()

        return on.train({on.chosen.randrange(100, 400): stop}, 1)


def _host_stopped(seed: int) -> dict[str, Any]:
    """The other host, which had no work, takes its place."""
    with scene(seed, 300, 1, "--hosts", *SILENCE) as on:
        stop = on.host()
        on.host()
        # All its processes, as a machine that has stopped.
        stopped = {on.moments(1)[0]: lambda: [os.kill(pid, signal.SIGSTOP) for pid in processes.tree(stop.pid)]}
        try:
            return on.train(stopped, 1)
        finally:
            for pid in reversed(processes.tree(stop.pid)):
                os.kill(pid, signal.SIGKILL)


def _host_lost(seed: int) -> dict[str, Any]:
    """A host of a job of three is killed, which goes on with two; another joins, and it is three again."""
    with scene(seed, 600, 2, "--hosts") as on:
        first = on.host()
        lost, joined = on.moments(2)

        def lose() -> None:
            for pid in processes.tree(first.pid):
                os.kill(pid, signal.SIGKILL)

        found = on.train({lost: lose, joined: on.host}, 2, "", range(2, 4), 3)
        # On a busy machine a worker may be missed as well.
        if [number for number, _ in itertools.groupby(found["workers"])] != [2, 3]:
            raise RunFailedError(f"Expected to go on with 2 workers and then with 3. Received: {found['workers']}")
        return found


def _reset(seed: int) -> dict[str, Any]:
    with scene(seed, 600) as on:
        way = on.way()
        return on.train(dict.fromkeys(on.moments(20), way.cut), 20)


def _cut(seed: int) -> dict[str, Any]:
    with scene(seed, 300) as on:
        way = on.way()

        def cut() -> None:
            over = threading.Event()

            def hold() -> None:
                with way.held():
                    over.wait(30.0)

            threading.Thread(target=hold, name="cut", daemon=True).start()

        return on.train({on.moments(1)[0]: cut}, 1)


def _pool_killed(*, forget: bool) -> Callable[[int], dict[str, Any]]:
    def run(seed: int) -> dict[str, Any]:
        number = 1 if forget else 5
        with scene(seed, 60 * number + 60) as on:
            return on.train(dict.fromkeys(on.moments(number), lambda: on.restart(forget=forget)), number)

    return run


def _pool_down(seed: int) -> dict[str, Any]:
    with scene(seed, 360) as on:

        def again() -> None:
            on.pools[-1].process.send_signal(signal.SIGTERM)
            if on.pools[-1].process.wait(30.0) != 0:
                raise RunFailedError("A pool that was asked to go down has failed")
            on.start()

        return on.train(dict.fromkeys(on.moments(5), again), 5)


ROWS: dict[str, Callable[[int], dict[str, Any]]] = {
    "worker killed, 20 times in a run": _by_schedule("kill", 20, 60),
    "worker stopped, 3 times in a run": _by_schedule("stop", 3, 100, *SILENCE),
    "process that forks workers stopped": _forkserver_stopped,
    "host stopped": _host_stopped,
    "host lost, the job goes on with fewer; another joins, it grows": _host_lost,
    "client's connection reset, 20 times in a run": _reset,
    "network cut for 30 s": _cut,
    "pool killed and started again, 5 times in a run": _pool_killed(forget=False),
    "the same once, with its state folder deleted": _pool_killed(forget=True),
    "pool goes down (SIGTERM) and is started again, 5 times in a run": _pool_down,
}
