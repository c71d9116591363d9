"""Records of 20 GB, a million files, tables: how soon does training begin, and how much memory does it take?

    python benchmarks/large_data.py          # writes benchmarks/results/large_data.{json,md}; 15 minutes on two cores
    python benchmarks/large_data.py --quick  # little data, prints only: does everything run?

The script's steps are one epoch's; it runs once by plain Keras, with fewer steps, and once with two synchronous workers. The
memory of the largest worker is looked at early and late: does it grow with what is read?
"""

import argparse
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

from processes import ROOT, fdt, pss_bytes, python, readable, run, tree
from record import Content, Record, heading
from tables import table

SCRIPT = "benchmarks/models/large_data.py"
PACKAGES = ("fdt", "tensorflow", "keras", "numpy", "grpcio")
TITLES = {
    "files": "JPEGs in folders",
    "records": "records of TFRecord files",
    "compressed": "records of TFRecord files, GZIP",
    "table": "lines of CSV files",
}
EVERY_S = 2.0


class Memory:
    """Notes the memory of each process of a run, now and then."""

    def __init__(self) -> None:
        self._seen: list[dict[int, int]] = []
        self._next_s = 0.0

    def look(self, pid: int) -> None:
        if time.monotonic() >= self._next_s:
            self._next_s = time.monotonic() + EVERY_S
            self._seen.append({each: pss_bytes(each) for each in tree(pid) if each != pid})

    def largest_mb(self, part: float) -> float:
        """Returns the memory of the largest process beside the script's after a part of the run's time."""
        return max(self._seen[int(part * (len(self._seen) - 1))].values(), default=0) / 1e6


def measured(row: str, arguments: list[str], folder: str) -> dict[str, Any]:
    script, memory = str(ROOT / SCRIPT), Memory()
    is_plain = row == "keras"
    command = python(script, *arguments) if is_plain else fdt("run", "--workers", "2", script, *arguments)
    result = run(command, timeout_s=3000, watch=None if is_plain else memory.look).result()
    if not is_plain:
        result |= {"worker_early_mb": memory.largest_mb(0.3), "worker_late_mb": memory.largest_mb(0.9)}
    return {"command": readable(command).replace(folder, "FOLDER"), **result}


def markdown(content: Content) -> str:
    """Returns the table."""
    done = [entry for entry in content["measurements"] if "failed" not in entry]
    heads = [
        *("", "samples", "names, s", "first step, s", "samples/s", "core-ms a sample, script", "script's peak, MB"),
        "a worker after 0.3 of the time, after 0.9, MB",
    ]
    lines = [
        [
            f"{TITLES[e['data']]}, {e['row']}",
            f"{e['samples']:,}",
            f"{e['names_s']:.1f}",
            f"{e['first_step_s']:.1f}",
            f"{e['samples_per_s']:,.0f}",
            f"{e['script_core_ms']:.3f}",
            f"{e['script_peak_mb']:,.0f}",
            f"{e['worker_early_mb']:,.0f}, {e['worker_late_mb']:,.0f}" if "worker_early_mb" in e else "",
        ]
        for e in done
    ]
    settings = content["settings"]
    return (
        f"# More data than memory\n\n{heading(content)}\n\n"
        f"TFRecord files of {settings['gigabytes']:g} GB in all, interleaved, shuffled and decoded (224 x 224), "
        f"{settings['number']:,} JPEGs of 32 x 32, and as many bytes as of records in CSV files of 48 numbers a line; batches "
        f"of 500, one epoch, one run each. Most files are links to the same content, so the page cache holds them. Plain Keras "
        f"makes {settings['plain_steps']} steps only.\n\n"
        f"{table(heads, lines)}\n"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kinds", nargs="+", choices=TITLES, default=list(TITLES))
    parser.add_argument("--gigabytes", type=float, default=20)
    parser.add_argument("--number", type=int, default=1_000_000)
    parser.add_argument("--plain-steps", type=int, default=200)
    parser.add_argument("--quick", action="store_true", help="little data, nothing written")
    options = parser.parse_args()
    if options.quick:
        options.gigabytes, options.number, options.plain_steps = 0.05, 4000, 5
    settings = {name: vars(options)[name] for name in ("kinds", "gigabytes", "number", "plain_steps")}
    record = Record("large_data", settings, PACKAGES, markdown, keep=not options.quick)
    with tempfile.TemporaryDirectory() as made:
        for kind in options.kinds:
            size = ("--number", str(options.number)) if kind == "files" else ("--gigabytes", str(options.gigabytes))
            folder = str(Path(made, kind))
            run(python(SCRIPT, folder, "--make", kind, *size), timeout_s=900)
            for row, steps in (("keras", ("--steps", str(options.plain_steps))), ("two workers", ())):
                record.add("run", partial(measured, row, [folder, kind, *steps], folder), row=row, data=kind)
    print("\n" + record.markdown())
    return 1 if record.failed() else 0


if __name__ == "__main__":
    sys.exit(main())
