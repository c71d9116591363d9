"""Public scripts, byte for byte, under plain python and under fdt: which of them train on workers, and print the same?

    make sweep CHECKOUTS=DIR                      # DIR/OWNER+NAME: a checkout of each repository in repositories.json
    python -m tests.sweep DIR --mode sync --only mnist

The scripts are picked by `picking.py`; those that do not end well in plain python (with Keras 3, else with Keras 2), or not in
time, say nothing about fdt and are only counted. Writes sweep.json and sweep.md into the folder of the benchmarks' results.
"""

import argparse
import concurrent.futures
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.helpers.processes import PYTHON, Finished, run
from tests.sweep.comparing import largest_difference
from tests.sweep.picking import TRAINS, candidates

_HERE = Path(__file__).parent
_RESULTS = _HERE.parents[1] / "benchmarks" / "results"
_PLAIN_LIMIT_S, _FDT_LIMIT_S = 75.0, 240.0
# A script may ask for a folder that its author has.
_FOLDERS = ("images", "logs", "log", "save", "figures")
_COMMANDS = {
    "plain": (),
    "sync": ("-m", "fdt", "run", "--workers", "2"),
    "async": ("-m", "fdt", "run", "--mode", "async", "--workers", "2"),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkouts", type=Path)
    parser.add_argument("--mode", choices=("sync", "async"), nargs="*", default=["sync"])
    parser.add_argument("--only", default="", help="part of a path")
    parser.add_argument("--eager", action="store_true", help="only scripts with a GradientTape and no tf.function")
    parser.add_argument("--most", type=int, default=1000, help="of each repository, by path")
    options = parser.parse_args()
    repositories = json.loads((_HERE / "repositories.json").read_text())
    found = []
    for repository in repositories:
        checkout = options.checkouts / repository["name"].replace("/", "+")
        picked = candidates(checkout, (b"GradientTape",) if options.eager else TRAINS)
        paths = [p for p in picked if not options.eager or b"tf.function" not in p.read_bytes()]
        found += [(repository["name"], checkout, p) for p in paths[: options.most] if options.only in str(p)]
    with tempfile.TemporaryDirectory() as scratch, concurrent.futures.ThreadPoolExecutor(2) as pool:
        entries = list(pool.map(lambda each: _tried(*each, options.mode, Path(scratch)), found))
    _write(repositories, options.mode, entries)
    return 0


def _tried(name: str, checkout: Path, script: Path, modes: Sequence[str], scratch: Path) -> dict[str, Any]:
    """Runs a script in every way; returns what came of it."""
    entry: dict[str, Any] = {"repository": name, "path": str(script.relative_to(checkout))}
    for keras in (3, 2):
        plain = _run(script, "plain", keras, scratch, _PLAIN_LIMIT_S)
        if plain.status == 0:
            break
    entry |= {"plain": _why(plain), "keras": keras}
    for mode in modes if plain.status == 0 else ():
        finished = _run(script, mode, keras, scratch, _FDT_LIMIT_S)
        difference = largest_difference(plain.stdout, finished.stdout) if finished.status == 0 else None
        is_distributed = "training on 2 workers" in finished.stderr
        entry[mode] = {"ended": _why(finished), "distributed": is_distributed, "difference": difference}
    print(json.dumps(entry, ensure_ascii=False), flush=True)
    return entry


def _run(script: Path, way: str, keras: int, scratch: Path, limit_s: float) -> Finished:
    with tempfile.TemporaryDirectory(dir=scratch) as folder:
        work = Path(folder) / "work"
        shutil.copytree(script.parent, work, symlinks=True, ignore_dangling_symlinks=True)
        for name in _FOLDERS:
            (work / name).mkdir(exist_ok=True)
        root = str(_HERE.parents[1])
        environment = {
            "PYTHONPATH": os.pathsep.join([str(_HERE / "stand_ins"), root]),
            "PYTHONHASHSEED": "0",
            "MPLBACKEND": "Agg",
            "TF_USE_LEGACY_KERAS": "1" if keras == 2 else "0",
        }
        return run([PYTHON, *_COMMANDS[way], script.name], limit_s=limit_s, cwd=work, **environment)


def _why(finished: Finished) -> str:
    """Returns "ended", "too slow", or the last line that tells of an error."""
    if finished.status == 0:
        return "ended"
    if finished.status is None:
        return "too slow"
    lines = [line.strip() for line in finished.stderr.splitlines() if line.strip()]
    told = [line for line in lines if line.startswith("fdt: ") or "Error" in line]
    return f"status {finished.status}: {(told or lines or [''])[-1][:300]}"


def _write(repositories: Sequence[dict[str, str]], modes: Sequence[str], entries: Sequence[dict[str, Any]]) -> None:
    content = {"repositories": repositories, "command": " ".join(sys.argv[1:]), "scripts": entries}
    (_RESULTS / "sweep.json").write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n")
    runnable = [entry for entry in entries if entry["plain"] == "ended"]
    lines = [
        "# Public scripts",
        "",
        f"{len(entries)} scripts, {len(runnable)} of which end well in plain python here.",
        "",
    ]
    for mode in modes:
        ended = [e for e in runnable if e[mode]["ended"] == "ended"]
        same = [e for e in ended if e[mode]["difference"] is not None and e[mode]["difference"] < 1e-3]
        on_workers = sum(e[mode]["distributed"] for e in ended)
        lines.append(
            f"- {mode}, 2 workers: {len(ended)} of {len(runnable)} ended well, {on_workers} of these trained on workers, and "
            f"{len(same)} printed plain python's figures (within a thousandth)."
        )
    lines += ["", "| script | Keras | " + " | ".join(modes) + " |", "|---|---|" + "---|" * len(modes)]
    for entry in runnable:
        cells = [_cell(entry[mode]) for mode in modes]
        lines.append(f"| {entry['repository']}: {entry['path']} | {entry['keras']} | " + " | ".join(cells) + " |")
    (_RESULTS / "sweep.md").write_text("\n".join(lines) + "\n")


def _cell(result: dict[str, Any]) -> str:
    if result["ended"] != "ended":
        return result["ended"].replace("|", "/")
    where = "" if result["distributed"] else ", on this machine"
    return ("other lines" if result["difference"] is None else f"{result['difference']:.1e}") + where


if __name__ == "__main__":
    sys.exit(main())
