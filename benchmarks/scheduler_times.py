"""How soon a scheduler's hosts come and go: from a job's submission to its hosts, from its end until they are gone.

    python benchmarks/scheduler_times.py --rounds 4      # writes benchmarks/results/scheduler_times.{json,md}

Slurm and Ray are clusters of two nodes on this machine, as the tests start them. What the pool does is in its log, with times
(`fdt serve --log-level info --log-json`); hosts are gone once none of their processes is there.
"""

import argparse
import datetime
import functools
import json
import os
import re
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import processes
from record import Content, Record
from tables import table

sys.path.insert(0, str(processes.ROOT))

from tests.helpers.placed import DIGITS, Cluster, hosts_of
from tests.helpers.processes import Background, background, run
from tests.helpers.ray import ray_cluster
from tests.helpers.slurm import slurm

CLUSTERS: dict[str, Callable[[], AbstractContextManager[Cluster]]] = {"slurm": slurm, "ray": ray_cluster}
MORE = {"slurm": (), "ray": ("--", "placement=spread")}
IDLE_S, LIMIT_S = 5.0, 180.0
_KINDS = ("Submitted", "HostJoined", "EndJob", "HostGone")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--on", nargs="+", choices=sorted(CLUSTERS), default=sorted(CLUSTERS))
    parser.add_argument("--quick", action="store_true", help="nothing is written")
    return parser.parse_args()


def main() -> None:
    options = parse_arguments()
    record = Record("scheduler_times", vars(options), ("fdt", "ray"), markdown, keep=not options.quick)
    for name in options.on:
        with CLUSTERS[name]() as cluster, tempfile.TemporaryDirectory(prefix="fdt-") as folder:
            for number in range(options.rounds):
                one = functools.partial(one_round, cluster, name, Path(folder))
                record.add("round", one, on=name, number=number)
    print(markdown(record.content))


def one_round(cluster: Cluster, name: str, folder: Path) -> dict[str, Any]:
    """A pool without hosts, one job of two workers, and what is left when nobody needs it any more."""
    command = [*processes.fdt("serve", "--log-level", "info", "--log-json"), *cluster.on, "--hosts", "0..2"]
    command += ["--idle", f"{IDLE_S:g}", "--listen", "127.0.0.1:0", "--shared-folder", str(folder / "shared")]
    try:
        return measured([*command, *MORE[name]], folder)
    except AssertionError as error:
        raise processes.RunFailedError(str(error)) from error


def measured(command: list[str], folder: Path) -> dict[str, Any]:
    load = os.getloadavg()[0]
    with background(command, cwd=folder) as pool:
        found = re.search(r"127\.0\.0\.1:\d+", pool.wait_for_line("pool at", LIMIT_S))
        assert found
        training = processes.fdt("run", "--server", found[0], "--workers", "2", str(DIGITS), "--epochs", "2")
        run(training, limit_s=LIMIT_S, cwd=folder).expect(0)
        pool.wait_until(lambda _: len(times(pool)["HostGone"]) == 2, LIMIT_S, "hosts that are given back")
        while hosts_of(found[0]):
            time.sleep(0.05)
        gone_s = time.time()
        seen = times(pool)
    submitted_s, ended_s, joined = seen["Submitted"][0], seen["EndJob"][0], seen["HostJoined"]
    return {
        "load": load,
        "hosts_s": [each - submitted_s for each in joined],
        "given_back_s": [each - ended_s for each in seen["HostGone"]],
        "gone_s": gone_s - ended_s,
    }


def times(pool: Background) -> dict[str, list[float]]:
    """Returns when what happened, by its kind, in seconds since the epoch."""
    found: dict[str, list[float]] = {kind: [] for kind in _KINDS}
    for line in pool.so_far().stderr.splitlines():
        if line.startswith("{"):
            logged = json.loads(line)
            if logged.get("event") in found:
                found[logged["event"]].append(datetime.datetime.fromisoformat(logged["time"]).timestamp())
    return found


def markdown(content: Content) -> str:
    rows = []
    for each in content["measurements"]:
        if "failed" in each:
            rows.append([each["on"], str(each["failed"])[:60], *[""] * 5])
            continue
        hosts = [f"{seconds:.1f}" for seconds in each["hosts_s"]]
        back = " and ".join(f"{seconds:.1f}" for seconds in each["given_back_s"])
        rows.append([each["on"], f"{each['load']:.1f}", *hosts[:2], back, f"{each['gone_s']:.1f}"])
    header = ["scheduler", "load before", "first host, s", "second host, s", "given back, s", "gone, s"]
    return "\n".join(
        [
            "# How soon a scheduler's hosts come and go",
            "",
            f"`{content['command'].strip()}`, {content['date']}, {json.dumps(content['machine'])}.",
            "",
            "Slurm and Ray of two nodes on this machine, a pool that has no host, a job of two workers (digits, two epochs), "
            f"`--idle {IDLE_S:g}`. The first two are from the job's submission until a host has joined; the others from "
            "the job's end until the pool gave its hosts back, and until none of their processes was left. The load is the "
            "average of the minute before.",
            "",
            table(header, rows),
            "",
        ]
    )


if __name__ == "__main__":
    main()
