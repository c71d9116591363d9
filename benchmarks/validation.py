"""What do validation in `fit`, and `predict`, cost a script whose machine is slow?

    python benchmarks/validation.py                    # writes benchmarks/results/validation.{json,md}; needs root
    python benchmarks/validation.py --before COMMIT    # and that commit's pool and script, for the validation
    python benchmarks/validation.py --quick            # one round, prints only: does everything run?

The script (`models/validated.py`) gets a part of a core to itself (`--cores`), two workers of a served pool have what is left.
"""

import argparse
import json
import os
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

from lab import cores
from pool import ServedPool
from processes import ROOT, checked_out, fdt, python, run
from record import Content, Record, heading
from tables import spread, table

SCRIPT = "benchmarks/models/validated.py"
PACKAGES = ("fdt", "tensorflow", "keras", "numpy", "grpcio")
_WORKERS = 2
_FIGURES = {
    "validation_s": ("seconds that validation adds to an epoch", 2),
    "home_mb": ("MB that come home", 1),
    "predicted_per_s": ("rows predicted a second", 0),
    "grew_mb": ("MB that the script's peak grew by", 0),
}


def measured(row: str, folder: Path, tree: Path | None, share: float, rounds: int) -> dict[str, Any]:
    """Runs the script a few times in a part of a core."""
    results: dict[str, list[float]] = {}
    root, group = tree or ROOT, f"fdt-validation-{os.getpid()}"
    cores.make(group, share)
    try:
        for _ in range(rounds):
            with tempfile.TemporaryDirectory() as reports:
                report = Path(reports, "report.json")
                if row == "keras":
                    command = python(str(ROOT / SCRIPT), str(folder))
                    made = run(cores.within(group, command), timeout_s=900).result()
                else:
                    data = [] if tree else ["--data", str(folder)]
                    with ServedPool(_WORKERS, row, data, root) as pool:
                        options = ["--mode", row, *pool.run_options(), "--report", str(report)]
                        given = str(folder) if tree is None else "none"
                        command = fdt("run", *options, str(ROOT / SCRIPT), given)
                        made = run(cores.within(group, command), timeout_s=900, folder=root).result()
                    made["home_mb"] = _bytes_home(report) / 1e6
            for name, value in made.items():
                results.setdefault(name, []).append(value)
    finally:
        cores.remove(group)
    return results


def _bytes_home(report: Path) -> float:
    """Returns the bytes that came home in the `fit` that was validated, the second one."""
    return float(json.loads(report.read_text())["fits"][1]["bytes_from_pool"])


def markdown(content: Content) -> str:
    """Returns the table."""
    done = [entry for entry in content["measurements"] if "failed" not in entry]
    lines = [
        [
            f"{e['row']}{', before' if e['tree'] else ''}",
            *(spread(e[name], digits) if name in e else "" for name, (_, digits) in _FIGURES.items()),
        ]
        for e in done
    ]
    settings = content["settings"]
    return (
        f"# Validation and predictions of a script on a slow machine\n\n{heading(content)}\n\n"
        f"The script has {settings['cores']:g} of a core, {_WORKERS} workers of a served pool have the rest. A model of 1.2 "
        "million weights with Adam is validated on 10,000 images of 32 x 32 x 3 in batches of 250 (sent once); rows of 32 "
        f"numbers are predicted from TFRecord files. Medians (least–most) of {settings['rounds']} rounds.\n\n"
        f"{table(['', *(title for title, _ in _FIGURES.values())], lines)}\n"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--cores", type=float, default=0.5)
    parser.add_argument("--before", help="a commit, measured besides")
    parser.add_argument("--rows", default="keras,sync,async")
    parser.add_argument("--quick", action="store_true", help="one round, nothing written")
    options = parser.parse_args()
    if options.quick:
        options.rounds = 1
    settings = {name: vars(options)[name] for name in ("rounds", "cores")}
    record = Record("validation", settings, PACKAGES, markdown, keep=not options.quick)
    with tempfile.TemporaryDirectory() as made, checked_out(options.before) as before:
        folder = Path(made, "records")
        run(python(SCRIPT, str(folder), "--make"), timeout_s=900)
        for row in options.rows.split(","):
            for tree in (before, None) if before is not None and row == "sync" else (None,):
                measure = partial(measured, row, folder, tree, options.cores, options.rounds)
                record.add("rate", measure, row=row, tree=tree is not None)
    print("\n" + record.markdown())
    return 1 if record.failed() else 0


if __name__ == "__main__":
    sys.exit(main())
