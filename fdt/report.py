"""What a person is told: lines on the terminal, and the JSON report of `--report`."""

import dataclasses
import json
import sys
from typing import Any

from fdt.config import RunConfig
from fdt.versions import versions
from protos import job_pb2, program_pb2


def say(line: str) -> None:
    """Prints one line of ours on standard error."""
    print(f"fdt: {line}", file=sys.stderr, flush=True)


@dataclasses.dataclass
class FitRecord:
    """One `fit`.

    Attributes:
        seconds: From the call of `fit` to its return.
        first_step_seconds: From the call of `fit` to the end of the first step, as the client heard of it.
        global_batch: Rows of a full step, over all workers.
        bytes_to_pool: Programs, arrays and values sent during this `fit`.
        logs: Of the last epoch.
        ranks: What each worker did during this `fit`.
    """

    steps: int
    epochs: int
    seconds: float
    first_step_seconds: float | None
    global_batch: int
    bytes_to_pool: int
    bytes_from_pool: int
    bytes_exchanged: int
    logs: dict[str, float]
    ranks: list[dict[str, Any]]


class Report:
    """Gathers what `--report` writes."""

    def __init__(self, config: RunConfig):
        self._config = config
        self.pool: program_pb2.Versions | None = None
        self.fits: list[FitRecord] = []

    def write(self, exit_status: int) -> None:
        """Writes the file, whole or not at all."""
        path = self._config.report
        if path is None:
            return
        partial = path.with_name(path.name + ".part")
        partial.write_text(json.dumps(self._content(exit_status), indent=2) + "\n")
        partial.replace(path)

    def _content(self, exit_status: int) -> dict[str, Any]:
        return {
            "format": 1,
            "script": self._config.script,
            "mode": self._config.mode,
            "workers": self._config.num_workers,
            "versions": {"client": _fields(versions()), "pool": _fields(self.pool)},
            "exit_status": exit_status,
            "fits": [dataclasses.asdict(fit) for fit in self.fits],
        }


def usage_since(before: list[job_pb2.WorkerUsage], after: list[job_pb2.WorkerUsage]) -> list[dict[str, Any]]:
    """Returns each worker's account of what came between two moments, as the report shows it."""
    start = {usage.rank: usage for usage in before}
    accounts = []
    for usage in sorted(after, key=lambda u: u.rank):
        first = start.get(usage.rank, job_pb2.WorkerUsage())
        account: dict[str, Any] = {"rank": usage.rank}
        for name in ("steps", "samples", "compute_s", "exchange_s", "wait_s", "exchanged_bytes"):
            account[name] = round(getattr(usage, name) - getattr(first, name), 6)
        account["peak_memory_bytes"] = usage.peak_memory_bytes
        accounts.append(account)
    return accounts


def _fields(message: program_pb2.Versions | None) -> dict[str, str]:
    return {f.name: getattr(message, f.name) for f in program_pb2.Versions.DESCRIPTOR.fields} if message else {}
