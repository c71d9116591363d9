"""What do snapshots cost a training that nothing befalls? One training, in every second epoch of which none is taken.

    python benchmarks/snapshot_cost.py            # some ten minutes; writes results/snapshot_cost.{json,md}
    python benchmarks/snapshot_cost.py --quick    # one short training of each mode, prints only

`fdt run` in a process that finds no snapshot due while the epoch's number is even. Whole runs with and without, beside each
other, differ by a tenth for other reasons.
"""

import argparse
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import processes
from record import Record
from tables import spread, table

FIT = str(processes.ROOT / "benchmarks" / "models" / "fit.py")
# Steps of an epoch, which takes some 15 s: several snapshots.
STEPS = {"sync": 300, "async": 900}
_IN_TURN = """\
import os, sys
from fdt.cli.main import main
from fdt.client import recovery

is_due, ends, seen = recovery.Recovery.is_due.fget, sys.argv[1], []

def is_due_in_turn(self):
    ended = os.stat(ends).st_mtime_ns
    if ended not in seen:
        seen.append(ended)
    return len(seen) % 2 == 0 and is_due(self)

recovery.Recovery.is_due = property(is_due_in_turn)
sys.exit(main(sys.argv[2:]))
"""


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=1, help="trainings of each mode")
    parser.add_argument("--epochs", type=int, default=13, help="of a training; the first is warm-up")
    parser.add_argument("--model", default="mlp")
    parser.add_argument("--quick", action="store_true", help="three short epochs, nothing written")
    options = parser.parse_args()
    options.steps = STEPS
    if options.quick:
        options.rounds, options.epochs, options.steps = 1, 3, {mode: steps // 5 for mode, steps in STEPS.items()}
    return options


def trained(mode: str, options: argparse.Namespace) -> dict[str, Any]:
    """Trains on two workers; returns steps a second of the epochs with snapshots, and of those that follow each."""
    with tempfile.TemporaryDirectory() as name:
        ends = Path(name) / "ends"
        ends.touch()
        command = ["run", "--mode", mode, "--workers", "2", FIT, options.model, "--begun", str(ends)]
        command += ["--epochs", str(options.epochs), "--steps", str(options.steps[mode])]
        result = processes.run([sys.executable, "-c", _IN_TURN, str(ends), *command], timeout_s=1200).result()
    rates = [result["steps"] / seconds for seconds in result["epoch_seconds"]]
    return {"with": rates[1::2], "without": rates[2::2]}


def markdown(content: dict[str, Any]) -> str:
    """Returns the page."""
    good = [entry for entry in content["measurements"] if "failed" not in entry]
    rows = []
    for mode in dict.fromkeys(entry["mode"] for entry in good):
        runs = [entry for entry in good if entry["mode"] == mode]
        both = [[rate for run in runs for rate in run[way]] for way in ("with", "without")]
        ratios = [a / b for run in runs for a, b in zip(run["with"], run["without"], strict=False)]
        rows.append([mode, *(spread(each, 1) for each in both), spread(ratios, 3), str(len(ratios))])
    settings, machine = content["settings"], content["machine"]
    lines = [
        "# What snapshots cost when nothing fails",
        "",
        f"`{content['command'].strip()}`, {content['date']}, {machine['processor']}, {machine['cores']} cores. "
        f"{', '.join(f'{name} {version}' for name, version in content['versions'].items())}.",
        "",
        f"{settings['model']}, batch 64, two workers of one host; epochs of {settings['steps']['sync']} steps (sync) and "
        f"{settings['steps']['async']} (async). Steps a second, median (least–most); ratios of an epoch with snapshots and the "
        "next, which has none.",
        "",
        table(["mode", "with", "without", "with / without", "pairs"], rows),
    ]
    return "\n".join(lines) + "\n"


def main() -> int:
    options = parse_arguments()
    packages = ("fdt", "tensorflow", "keras", "horovod")
    record = Record("snapshot_cost", vars(options), packages, markdown, keep=not options.quick)
    for number in range(options.rounds):
        for mode in STEPS:
            record.add("cost", partial(trained, mode, options), mode=mode, round=number)
    print("\n" + record.markdown())
    return 1 if record.failed() else 0


if __name__ == "__main__":
    sys.exit(main())
