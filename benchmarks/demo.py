"""`make demo`: scripts as plain Python and on workers, what was predicted of them, and the page of `fdt compare`.

    python benchmarks/demo.py

First digits: a network so small that its workers mostly exchange gradients, so more of them are no faster. Then a network
that is bound by computation, on machines of one core each: plain Python is kept to one core of this machine, and each worker
has one. The scripts are the same files each time and know nothing of FDT.
"""

import argparse
import json
import os
import re
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from processes import RunFailedError, fdt, python, readable, run
from tables import table

from fdt.forecast.forecasts import read
from fdt.forecast.step_time import CENTRAL, RING

SCRIPT = "client_examples/digits.py"
HEADER = (
    "digits.py",
    "fit s",
    "process s",
    "final loss",
    "test accuracy",
    "steps",
    "samples per worker",
    "MB exchanged",
)
# Bound by computation; the first epoch is warm-up.
BOUND = ("benchmarks/models/fit.py", "compute_bound", "--steps", "20", "--epochs", "3", "--batch-size", "32")
BOUND_HEADER = ("compute_bound, a core each", "steps a second", "speed-up", "predicted", "final loss")
_FIT = re.compile(r"^trained in ([\d.]+) s$", re.MULTILINE)
_LAST = re.compile(r"^final loss (\S+)  test accuracy (\S+)$", re.MULTILINE)


def run_plain(arguments: list[str]) -> list[str]:
    """Runs the script as `python` and returns its row of the table."""
    command = python(SCRIPT, *arguments)
    print(f"$ {readable(command)}", flush=True)
    finished = run(command)
    return ["python", *_printed(finished.output, finished.seconds), "", "", ""]


def run_distributed(name: str, mode: str, num_workers: int, arguments: list[str]) -> list[str]:
    """Runs the script on a pool that lives for the length of the run and returns its row."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        options = ["--mode", mode, "--workers", str(num_workers)]
        print(f"$ {name} run --workers {num_workers} {' '.join([SCRIPT, *arguments])}", flush=True)
        finished = run(fdt("run", *options, "--report", str(report), SCRIPT, *arguments))
        fit: dict[str, Any] = json.loads(report.read_text())["fits"][0]
    samples = " + ".join(str(rank["samples"]) for rank in fit["ranks"])
    distributed = [str(fit["steps"]), samples, f"{fit['bytes_exchanged'] / 1e6:.1f}"]
    return [
        f"{name}, {num_workers} worker{'s' * (num_workers > 1)}",
        *_printed(finished.output, finished.seconds),
        *distributed,
    ]


def _printed(output: str, seconds: float) -> list[str]:
    """Returns seconds of fit and of the process, final loss and test accuracy."""
    fit, last = _FIT.search(output), _LAST.search(output)
    if not fit or not last:
        raise RunFailedError(f"{SCRIPT} did not print its result:\n{output[-2000:]}")
    return [fit[1], f"{seconds:.2f}", last[1], last[2]]


def run_bound(folder: Path) -> list[list[str]]:
    """Runs the network that is bound by computation; returns the rows of its table."""
    one_core = ["taskset", "--cpu-list", str(min(os.sched_getaffinity(0)))]
    plain = _bound_rate([*one_core, *python(*BOUND)])
    known = folder / "prediction.json"
    command = fdt("predict", "--bandwidth", "10Gbit", "--workers", "2", "--json", str(known), *BOUND)
    print(f"$ {readable([*one_core, *command])}", flush=True)
    run([*one_core, *command])
    rows = [["python", f"{plain[0]:.1f}", "1.00", "", f"{plain[1]:.6f}"]]
    for mode, form in (("sync", RING), ("async", CENTRAL)):
        rate, loss = _bound_rate(fdt("run", "--mode", mode, "--workers", "2", *BOUND))
        predicted = read(known).of(form, mode, 2).speedup
        rows.append([f"{mode}, 2 workers", f"{rate:.1f}", f"{rate / plain[0]:.2f}", f"{predicted:.2f}", f"{loss:.6f}"])
    return rows


def _bound_rate(command: list[str]) -> tuple[float, float]:
    """Returns steps a second after the first epoch, in the better of two runs, and the last loss."""
    print(f"$ {readable(command)}    # twice", flush=True)
    results = [run(command).result() for _ in range(2)]
    rates = [each["steps"] * len(each["epoch_seconds"][1:]) / sum(each["epoch_seconds"][1:]) for each in results]
    return max(rates), results[-1]["loss"]


def compare(folder: Path) -> Path:
    """Runs the script in every form; returns the page."""
    command = fdt("compare", "--workers", "2", "--seconds", "2", "--out", str(folder), *BOUND)
    print(f"$ {readable(command)}", flush=True)
    run(command, timeout_s=900)
    return folder / "comparison.html"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=30)
    arguments = ["--epochs", str(parser.parse_args().epochs)]
    try:
        rows = [run_plain(arguments)]
        rows += [run_distributed("hfdt", "sync", n, arguments) for n in (1, 2)]
        rows += [run_distributed("nfdt", "async", n, arguments) for n in (1, 2)]
        print(f"\n{table(HEADER, rows)}\n", flush=True)
        if len(os.sched_getaffinity(0)) < 2 or shutil.which("taskset") is None:
            print("The second part needs two cores, and `taskset`.")
            return 0
        with tempfile.TemporaryDirectory() as folder:
            print(f"\n{table(BOUND_HEADER, run_bound(Path(folder)))}\n", flush=True)
        print(f"Every form side by side: {compare(Path('fdt-comparison'))}")
    except RunFailedError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
