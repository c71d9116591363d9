"""Does a job train on while strangers, and a client gone wild, beset its pool? Steps a second before, during and after.

    python benchmarks/siege.py            # about 17 minutes a round; writes benchmarks/results/siege.{json,md}

One pool with a token, one job that trains a small dense network on one worker. Each attack (`besiegers.py`) lasts a minute, in
a process of its own of the lowest priority: attackers would have their own processors, here they share ours. What that alone
costs is seen by the same attack on another pool of this machine, which has no job. The rate is read off the pool's list of
jobs; descriptors, threads and memory of its control process before and after tell what stays behind.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import besiegers
import grpc
import processes
import psutil
from record import Record
from tables import spread, table

from fdt.base.config import Credentials, Timing
from fdt.transport import rpc
from fdt.v1 import pool_pb2, pool_pb2_grpc

FIT = processes.ROOT / "benchmarks" / "models" / "fit.py"
# The pool drops what is silent within seconds; only then is what it holds compared.
SETTLE_S = 20.0
WITHIN = 0.10


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=60.0, help="that an attack lasts")
    parser.add_argument(
        "--quiet", type=float, default=20.0, help="seconds before and after it in which the rate is read"
    )
    parser.add_argument("--attacks", nargs="*", choices=tuple(besiegers.ATTACKS), default=list(besiegers.ATTACKS))
    parser.add_argument("--quick", action="store_true", help="one round, short, nothing written")
    options = parser.parse_args()
    if options.quick:
        options.rounds, options.seconds, options.quiet = 1, 15.0, 8.0
    return options


class Siege:
    """A pool, a job on it, and what can be seen of both from outside."""

    def __init__(self, address: str, bystander: str, token_file: Path, pool: psutil.Process) -> None:
        self.address, self.bystander, self.token_file, self._pool = address, bystander, token_file, pool
        self._channel = rpc.connect(address, Credentials(token_file.read_text().strip()), Timing())

    def steps(self) -> int:
        """Returns the steps that the job has made."""
        running = [job for job in self._jobs() if job.state == "running"]
        if not running:
            raise processes.RunFailedError(f"The job ended: {[(job.state, job.reason) for job in self._jobs()]}")
        return int(running[0].steps)

    def wait_for_steps(self, number: int) -> None:
        """Waits until the job has made so many steps."""
        end_s = time.monotonic() + processes.START_LIMIT_S
        while not any(job.steps >= number for job in self._jobs()):
            if time.monotonic() > end_s:
                raise processes.RunFailedError("The job did not begin to train.")
            time.sleep(0.2)

    def _jobs(self) -> list[pool_pb2.JobSummary]:
        end_s = time.monotonic() + 60
        while True:
            try:
                return list(pool_pb2_grpc.PoolStub(self._channel).ListJobs(pool_pb2.ListJobsRequest(), timeout=10).jobs)
            except grpc.RpcError as error:
                if time.monotonic() > end_s:
                    raise processes.RunFailedError(f"The pool does not answer: {error}") from error

    def rate(self, seconds: float) -> float:
        """Returns the job's steps a second over so many seconds."""
        before, began_s = self.steps(), time.monotonic()
        time.sleep(seconds)
        return (self.steps() - before) / (time.monotonic() - began_s)

    def held(self) -> dict[str, int]:
        """Returns what the control process holds."""
        return {
            "descriptors": self._pool.num_fds(),
            "threads": self._pool.num_threads(),
            "rss_mb": self._pool.memory_info().rss // 1_000_000,
        }


@contextmanager
def besieged() -> Iterator[Siege]:
    """A pool that trains."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        token_file = directory / "token"
        token_file.touch(0o600)
        token_file.write_text("a token of this benchmark alone\n")
        command = ["serve", "--listen", "127.0.0.1:0", "--workers", "1", "--token-file", str(token_file)]
        address = r"(127\.0\.0\.1:\d+)"
        with (
            processes.serving(processes.fdt(*command), address, directory / "pool.log") as said,
            processes.serving(processes.fdt(*command), address, directory / "bystander.log") as elsewhere,
        ):
            (pool,) = [p for p in psutil.Process().children() if "serve" in p.cmdline() and _listens(p, said[1])]
            siege = Siege(said[1], elsewhere[1], token_file, pool)
            client = ["run", "--server", said[1], "--workers", "1", "--token-file", str(token_file)]
            fit = [str(FIT), "mlp", "--epochs", "100000"]
            with open(directory / "client.log", "w") as log:
                job = subprocess.Popen(
                    processes.fdt(*client, *fit), env=processes.environment(), stdout=log, stderr=log
                )
            try:
                siege.wait_for_steps(500)
                yield siege
                if job.poll() is not None:
                    raise processes.RunFailedError(f"The job ended:\n{(directory / 'client.log').read_text()[-2000:]}")
            finally:
                job.terminate()
                job.wait(30)


def _listens(process: psutil.Process, address: str) -> bool:
    port = int(address.rpartition(":")[2])
    return any(c.status == psutil.CONN_LISTEN and c.laddr.port == port for c in process.net_connections())


def beset(siege: Siege, address: str, kind: str, seconds: float) -> tuple[float, dict[str, int]]:
    """Attacks a pool; returns the rate of the job meanwhile, and what the attacker was answered."""
    command = [sys.executable, besiegers.__file__, kind, address, str(siege.token_file), str(seconds)]
    besieger = subprocess.Popen(
        ["nice", "-n", "19", *command], env=processes.environment(), stdout=subprocess.PIPE, text=True
    )
    during = siege.rate(seconds)
    answers, _ = besieger.communicate(timeout=60)
    # What the attack holds open is dropped, late answers come.
    time.sleep(SETTLE_S)
    return during, json.loads(answers)


def attack(siege: Siege, kind: str, seconds: float, quiet_s: float) -> dict[str, Any]:
    """Reads the rate before, during and after an attack, and what it left behind."""
    held_before, before = siege.held(), siege.rate(quiet_s)
    during, answers = beset(siege, siege.address, kind, seconds)
    after = siege.rate(quiet_s)
    elsewhere, _ = beset(siege, siege.bystander, kind, seconds)
    return {
        "before_per_s": before,
        "during_per_s": during,
        "after_per_s": after,
        "elsewhere_per_s": elsewhere,
        "ratio": 2 * during / (before + after),
        "ratio_elsewhere": 2 * elsewhere / (before + after),
        "held_before": held_before,
        "held_after": siege.held(),
        "answers": answers,
    }


def markdown(content: dict[str, Any]) -> str:
    """Returns the page."""
    rows = []
    for kind in besiegers.ATTACKS:
        found = [
            e for e in content["measurements"] if e["kind"] == "attack" and e["attack"] == kind and "failed" not in e
        ]
        if found:
            rows.append([kind, *_rates(found), *_held(found[-1])])
    seen = [
        f"- {entry['attack']}, round {entry['round']}: "
        + ", ".join(f"{number:,} × {answer}" for answer, number in entry["answers"].items())
        for entry in content["measurements"]
        if "answers" in entry
    ]
    head = ["attack", "before", "during", "after", "during / quiet", "another pool attacked / quiet"]
    head += ["descriptors", "threads", "RSS, MB"]
    lines = [
        "# A pool under siege",
        "",
        f"`{content['command']}`, {content['date']}, {content['machine']['processor']}, {content['machine']['cores']} cores. "
        f"{', '.join(f'{name} {version}' for name, version in content['versions'].items())}.",
        "",
        "Steps a second of a job (small MLP, one worker): median (least to most) of the rounds. What the control process "
        "holds before and after, in the last round. Attackers share the two cores, at the lowest priority: what an attack on "
        "another pool of the same machine costs this job is no fault of its own pool.",
        "",
        table(head, rows),
        "",
        "What the attackers were answered:",
        "",
        *seen,
    ]
    return "\n".join(lines) + "\n"


def _rates(found: list[dict[str, Any]]) -> list[str]:
    rates = [spread([e[f"{when}_per_s"] for e in found]) for when in ("before", "during", "after")]
    return [*rates, *(spread([e[ratio] for e in found], 2) for ratio in ("ratio", "ratio_elsewhere"))]


def _held(entry: dict[str, Any]) -> list[str]:
    before, after = entry["held_before"], entry["held_after"]
    return [f"{before[what]} → {after[what]}" for what in ("descriptors", "threads", "rss_mb")]


def main() -> int:
    options = parse_arguments()
    record = Record("siege", vars(options), ("fdt", "tensorflow", "grpcio"), markdown, keep=not options.quick)
    with besieged() as siege:
        for number in range(options.rounds):
            for kind in options.attacks:
                measure = partial(attack, siege, kind, options.seconds, options.quiet)
                record.add("attack", measure, attack=kind, round=number)
    print("\n" + record.markdown())
    ratios = [entry["ratio"] for entry in record.content["measurements"] if "ratio" in entry]
    return 1 if record.failed() or statistics.median(ratios) < 1 - WITHIN else 0


if __name__ == "__main__":
    sys.exit(main())
