"""`make demo`: the digits script as plain Python, then on one worker and on two, synchronous and asynchronous.

    python benchmarks/demo.py

The script is the same file each time and knows nothing of FDT. Loss and accuracy are what it prints.
"""

import argparse
import json
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

from processes import RunFailedError, fdt, python, readable, run
from tables import table

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


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=30)
    arguments = ["--epochs", str(parser.parse_args().epochs)]
    try:
        rows = [run_plain(arguments)]
        rows += [run_distributed("hfdt", "sync", n, arguments) for n in (1, 2)]
        rows += [run_distributed("nfdt", "async", n, arguments) for n in (1, 2)]
    except RunFailedError as error:
        print(error, file=sys.stderr)
        return 1
    print()
    print(table(HEADER, rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
