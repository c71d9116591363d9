"""One script, unchanged, by `fdt run` alone, on a pool, under Slurm and under Ray: four commands, and what each prints.

    python benchmarks/schedulers.py        # writes benchmarks/results/schedulers.{json,md}

Slurm and Ray are clusters of two nodes on this machine, as the tests start them (`tests/helpers/slurm.py`, `ray.py`): times are
of processes that share its cores, and say what a scheduler adds, not what a cluster gains.
"""

import argparse
import contextlib
import os
import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import processes
from record import Content, Record
from tables import table

sys.path.insert(0, str(processes.ROOT))

from tests.helpers.ray import ray_cluster
from tests.helpers.slurm import slurm

SCRIPT = str(processes.ROOT / "client_examples" / "digits.py")
MODES = ("sync", "async")
_ON = ("--trusted-network", "lo")
_FINAL = re.compile(r"final loss (\S+)")
_ACCURACY = re.compile(r"test accuracy (\S+)")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--quick", action="store_true", help="nothing is written")
    return parser.parse_args()


def main() -> None:
    options = parse_arguments()
    record = Record("schedulers", vars(options), ("tensorflow", "horovod", "ray"), markdown, keep=not options.quick)
    record.add("plain", lambda: measured(processes.python(SCRIPT, "--epochs", str(options.epochs))), where="plain")
    for where in ("alone", "pool", "slurm", "ray"):
        with placed(where) as arguments:
            for mode in MODES:
                run = processes.fdt("run", "--mode", mode, "--workers", "2", *arguments, SCRIPT)
                run += ["--epochs", str(options.epochs)]
                record.add("run", lambda command=run: measured(command), where=where, mode=mode)
    print(markdown(record.content))


@contextlib.contextmanager
def placed(where: str) -> Iterator[tuple[str, ...]]:
    """Has what a run needs there for the length of a `with` block; yields its arguments."""
    with tempfile.TemporaryDirectory(prefix="fdt-") as folder:
        shared = ("--shared-folder", folder)
        if where == "pool":
            command = [*processes.fdt("serve"), "--mode", "both", "--listen", "127.0.0.1:0", "--workers", "2"]
            with processes_ready(command, "pool at") as line:
                found = re.search(r"127\.0\.0\.1:\d+", line)
                assert found
                yield ("--server", found[0])
        elif where == "slurm":
            with slurm():
                yield ("--on", "slurm", *_ON, *shared)
        elif where == "ray":
            with ray_cluster():
                yield ("--on", "ray", *_ON, *shared)
        else:
            yield ()


@contextlib.contextmanager
def processes_ready(command: list[str], word: str) -> Iterator[str]:
    """A process for the length of a `with` block; yields the line in which it says that it is ready."""
    from tests.helpers.processes import background

    with background(command, cwd=Path(tempfile.gettempdir())) as process:
        yield process.wait_for_line(word, processes.START_LIMIT_S)


def measured(command: list[str]) -> dict[str, Any]:
    load = os.getloadavg()[0]
    finished = processes.run(command)
    loss, accuracy = _FINAL.search(finished.output), _ACCURACY.search(finished.output)
    if not loss or not accuracy:
        raise processes.RunFailedError(f"It printed no figures:\n{finished.output[-2000:]}")
    shown = processes.readable(command).replace("python -m fdt", "fdt")
    return {"command": shown, "loss": loss[1], "accuracy": accuracy[1], "seconds": finished.seconds, "load": load}


def markdown(content: Content) -> str:
    rows = [
        [
            {"plain": "`python`", "alone": "`fdt run`", "pool": "a pool", "slurm": "Slurm", "ray": "Ray"}[
                each["where"]
            ],
            each.get("mode", ""),
            each.get("loss", "failed"),
            each.get("accuracy", ""),
            f"{each['seconds']:.0f}" if "seconds" in each else "",
            f"{each['load']:.1f}" if "load" in each else "",
        ]
        for each in content["measurements"]
    ]
    commands = [
        re.sub(
            r"--shared-folder \S+ |127\.0\.0\.1:\d+",
            lambda found: "" if " " in found[0] else "HOST:PORT",
            each["command"],
        )
        for each in content["measurements"]
        if each.get("mode") == "sync" and "command" in each
    ]
    return "\n".join(
        [
            "# One script, four places",
            "",
            f"`{content['command'].strip()}`, {content['date']}. Two workers; Slurm and Ray are two nodes on this machine, "
            "which others used meanwhile: the seconds are of the whole command, with hosts that are asked for, start and go. "
            "The load is the average of the minute before.",
            "",
            *(f"    {command}" for command in commands),
            "",
            table(["where", "mode", "final loss", "test accuracy", "seconds", "load before"], rows),
            "",
        ]
    )


if __name__ == "__main__":
    main()
