"""What do the walls around workers cost? The same training with them and without, in turn.

    python benchmarks/walls.py            # about half an hour; writes benchmarks/results/walls.{json,md}
    python benchmarks/walls.py --quick    # one round, one epoch that counts, prints only: does everything run?

Each round runs both modes on one worker and on two, with walls and without (FDT_NO_WALLS), every second round the other way
round. Ratios are taken within a round. What raising them takes at the start of a worker is measured by itself.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from functools import partial
from typing import Any

import processes
from record import Record
from tables import spread, table

FIT = str(processes.ROOT / "benchmarks" / "models" / "fit.py")
MODES, WORKERS = ("sync", "async"), (1, 2)
_RAISE = """\
import json, pathlib, sys, time
from fdt.worker import sandbox
import hfdt.runtime
sandbox.python_folders()
began_s = time.perf_counter()
raised = sandbox.raise_walls(sandbox.Reach(pathlib.Path(sys.argv[1])))
print(json.dumps({"raise_s": time.perf_counter() - began_s, "missing": len(raised.missing)}))
"""


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=8, help="of a run; the first is warm-up")
    parser.add_argument("--steps", type=int, help="of an epoch; default: the model's own")
    parser.add_argument("--quick", action="store_true", help="one round, one short epoch that counts, nothing written")
    options = parser.parse_args()
    if options.quick:
        options.rounds, options.epochs, options.steps = 1, 2, 20
    return options


def raising() -> dict[str, Any]:
    """Raises the walls in a process like a worker; returns the seconds it took, and how many do not stand."""
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            processes.python("-c", _RAISE, folder), cwd=processes.ROOT, env=processes.environment(), capture_output=True
        )
    if done.returncode:
        raise processes.RunFailedError(done.stderr.decode()[-2000:])
    return dict(json.loads(done.stdout.splitlines()[-1]))


def rate(mode: str, workers: int, walls: bool, options: argparse.Namespace) -> dict[str, Any]:
    """Runs the small MLP on a pool of its own; returns steps a second of the epochs after the first."""
    steps = ["--steps", str(options.steps)] if options.steps else []
    fit = [FIT, "mlp", "--epochs", str(options.epochs), *steps]
    run = processes.fdt("run", "--mode", mode, "--workers", str(workers), *fit)
    # An empty variable is one that is not set.
    result = processes.run(run, {"FDT_NO_WALLS": "" if walls else "1"}).result()
    return {"steps_per_s": result["steps"] * (options.epochs - 1) / sum(result["epoch_seconds"][1:])}


def markdown(content: dict[str, Any]) -> str:
    """Returns the page."""
    good = [entry for entry in content["measurements"] if "failed" not in entry]
    rates = {
        (entry["mode"], entry["workers"], entry["walls"], entry["round"]): entry["steps_per_s"]
        for entry in good
        if entry["kind"] == "rate"
    }
    rows = []
    for mode, workers in ((mode, workers) for mode in MODES for workers in WORKERS):
        rounds = [n for m, w, walls, n in rates if (m, w, walls) == (mode, workers, True)]
        rounds = [n for n in rounds if (mode, workers, False, n) in rates]
        on, off = ([rates[mode, workers, walls, n] for n in rounds] for walls in (True, False))
        ratios = [one / other for one, other in zip(on, off, strict=True)]
        rows.append([f"{mode}, {workers}", spread(on), spread(off), spread(ratios, 3), str(len(rounds))])
    raised = [1e3 * entry["raise_s"] for entry in good if entry["kind"] == "raising"]
    lines = [
        "# What the walls around workers cost",
        "",
        f"`{content['command']}`, {content['date']}, {content['machine']['processor']}, {content['machine']['cores']} cores. "
        f"{', '.join(f'{name} {version}' for name, version in content['versions'].items())}.",
        "",
        f"Raising them takes {spread(raised)} ms, once in a worker's life.",
        "",
        "Steps a second of the small MLP (1.9 million parameters): median (least to most) of the rounds; ratios within one.",
        "",
        table(["mode, workers", "with walls", "without", "with / without", "rounds"], rows),
    ]
    return "\n".join(lines) + "\n"


def main() -> int:
    options = parse_arguments()
    record = Record("walls", vars(options), ("fdt", "tensorflow", "horovod"), markdown, keep=not options.quick)
    for number in range(options.rounds):
        record.add("raising", raising, round=number)
        for mode, workers in ((mode, workers) for mode in MODES for workers in WORKERS):
            for walls in (True, False) if number % 2 == 0 else (False, True):
                measure = partial(rate, mode, workers, walls, options)
                record.add("rate", measure, mode=mode, workers=workers, walls=walls, round=number)
    print("\n" + record.markdown())
    return 1 if record.failed() else 0


if __name__ == "__main__":
    sys.exit(main())
