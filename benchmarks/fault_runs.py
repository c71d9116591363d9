"""One training of the real runtimes whose workers are killed now and then."""

import argparse
import dataclasses
import json
import math
import os
import random
import signal
import tempfile
import time
from pathlib import Path
from typing import Any

import processes

FIT = str(processes.ROOT / "benchmarks" / "models" / "fit.py")
# Asynchronous workers make so many steps while a ring makes one here; so both kinds of runs take about as long.
ASYNC_STEPS = 4


@dataclasses.dataclass(frozen=True)
class Kills:
    """When workers are killed.

    Attributes:
        between_s: Mean seconds between two, exponential; 0 for none.
        number: At most so many, and with at least three quarters of the mean between two; 0 for any number.
    """

    between_s: float = 0.0
    number: int = 0

    def wait_s(self, chosen: random.Random) -> float:
        """Returns the seconds to the next one."""
        if self.number:
            return chosen.uniform(0.75, 1.25) * self.between_s
        return chosen.expovariate(1 / self.between_s)


UNDISTURBED = Kills()


class Killer:
    """Ends one of the processes that train now and then.

    Args:
        kills: When.
        seed: Of that, and of which.
        log: What is there once the first epoch has ended.
        num_processes: Of the job; spare ones, which wait for another, have used no processor to speak of.
    """

    def __init__(self, kills: Kills, seed: int, log: Path, num_processes: int) -> None:
        self._kills, self._random, self._log, self._num_processes = kills, random.Random(seed), log, num_processes
        self._next_s: float | None = None
        self.count = 0

    def __call__(self, pid: int) -> None:
        now_s = time.monotonic()
        if self._next_s is None:
            # The script says so at the end of its first epoch.
            self._next_s = now_s + self._kills.wait_s(self._random) if self._log.exists() else None
        elif now_s >= self._next_s and self.count < (self._kills.number or math.inf):
            self._next_s = now_s + self._kills.wait_s(self._random)
            workers = sorted((each for each in processes.tree(pid) if _is_worker(each)), key=_processor_ticks)
            if workers:
                os.kill(self._random.choice(workers[-self._num_processes :]), signal.SIGKILL)
                self.count += 1


def _is_worker(pid: int) -> bool:
    """Whether a process was forked by a fork server."""
    return all("fdt.worker.forkserver" in _command(each) for each in (pid, _parent(pid)))


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""


def _parent(pid: int) -> int:
    return _stat(pid, 1)


def _processor_ticks(pid: int) -> int:
    return _stat(pid, 11) + _stat(pid, 12)


def _stat(pid: int, place: int) -> int:
    """Returns one of the numbers that the kernel tells of a process, counted from behind its name; 0 of one that is gone."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[place])
    except OSError:
        return 0


def trained(mode: str, kills: Kills, seed: int, options: argparse.Namespace) -> dict[str, Any]:
    """Trains on two workers; returns rate, loss, and the faults that were survived.

    Raises:
        RunFailedError: It did not end well, or a step does not count once.
    """
    with tempfile.TemporaryDirectory() as folder:
        report, begun = Path(folder) / "report.json", Path(folder) / "first-epoch"
        steps = options.steps * (ASYNC_STEPS if mode == "async" else 1)
        words = ["--epochs", str(options.epochs), "--steps", str(steps), "--begun", str(begun)]
        held = ["--variables", options.variables] if mode == "sync" else []
        run = ["run", "--mode", mode, "--workers", "2", "--report", str(report), *held, FIT, options.model, *words]
        # Asynchronous workers of one host are threads of one process.
        killer = Killer(kills, seed, begun, 2 if mode == "sync" else 1) if kills != UNDISTURBED else None
        result = processes.run(processes.fdt(*run), timeout_s=1200, watch=killer).result()
        faults = json.loads(report.read_text())["faults"]
    expected = options.epochs * steps
    if result["iterations"] != expected:
        raise processes.RunFailedError(f"{result['iterations']} steps were counted, and there were {expected}")
    return {
        "steps_per_s": result["steps"] * (options.epochs - 1) / sum(result["epoch_seconds"][1:]),
        "loss": result["loss"],
        "kills": killer.count if killer else 0,
        "recovery_s": [fault["seconds"] for fault in faults],
        "repeated": [fault["repeated"] for fault in faults],
    }
