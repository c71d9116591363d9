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
    """Ends one of a run's workers now and then."""

    def __init__(self, kills: Kills, seed: int, log: Path) -> None:
        self._kills, self._random, self._log = kills, random.Random(seed), log
        self._next_s: float | None = None
        self.count = 0

    def __call__(self, pid: int) -> None:
        now_s = time.monotonic()
        if self._next_s is None:
            # The script says so at the end of its first epoch.
            self._next_s = now_s + self._kills.wait_s(self._random) if self._log.exists() else None
        elif now_s >= self._next_s and self.count < (self._kills.number or math.inf):
            self._next_s = now_s + self._kills.wait_s(self._random)
            workers = [each for each in processes.tree(pid) if _is_worker(each)]
            if workers:
                os.kill(self._random.choice(workers), signal.SIGKILL)
                self.count += 1


def _is_worker(pid: int) -> bool:
    """Whether a process was forked by a fork server."""
    return all("fdt.pool.forkserver" in _command(each) for each in (pid, _parent(pid)))


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""


def _parent(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


def trained(mode: str, kills: Kills, seed: int, options: argparse.Namespace) -> dict[str, Any]:
    """Trains on two workers; returns rate, loss, and the faults that were survived.

    Raises:
        RunFailedError: It did not end well, or a step does not count once.
    """
    with tempfile.TemporaryDirectory() as folder:
        report, begun = Path(folder) / "report.json", Path(folder) / "first-epoch"
        words = ["--epochs", str(options.epochs), "--steps", str(options.steps), "--begun", str(begun)]
        run = ["run", "--mode", mode, "--workers", "2", "--report", str(report), FIT, options.model, *words]
        killer = Killer(kills, seed, begun) if kills != UNDISTURBED else None
        result = processes.run(processes.fdt(*run), timeout_s=1200, watch=killer).result()
        faults = json.loads(report.read_text())["faults"]
    expected = options.epochs * options.steps
    if result["iterations"] != expected:
        raise processes.RunFailedError(f"{result['iterations']} steps were counted, and there were {expected}")
    return {
        "steps_per_s": result["steps"] * (options.epochs - 1) / sum(result["epoch_seconds"][1:]),
        "loss": result["loss"],
        "kills": killer.count if killer else 0,
        "recovery_s": [fault["seconds"] for fault in faults],
        "repeated": [fault["repeated"] for fault in faults],
    }
