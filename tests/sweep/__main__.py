"""Public scripts, byte for byte, under plain python and under fdt: which of them train on workers, and print the same?

    make sweep CHECKOUTS=DIR                      # DIR/OWNER+NAME: a checkout of each repository in repositories.json
    python -m tests.sweep DIR --mode sync --only mnist

The scripts are picked by `picking.py`. Those that fail in plain python (with Keras 3, and with Keras 2) say nothing about fdt
and are only counted. One that does not end in time is judged by the lines that it has printed until then, if there are
enough; one whose plain run was stopped is stopped when it trains and has printed as many lines. Scripts are tried one after
the other; what is known of them is kept in a folder, with the commit that it is known of, so that a sweep can be done in
pieces. Writes sweep.json and sweep.md into the folder of the benchmarks' results.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.helpers.processes import Finished
from tests.sweep.picking import TRAINS, Candidate, candidates
from tests.sweep.results import runs, trains, write
from tests.sweep.running import DISTRIBUTED, run

_HERE = Path(__file__).parent
_ROOT = _HERE.parents[1]
_PLAIN_LIMIT_S, _FDT_LIMIT_S = 45.0, 120.0
# Of what a script has printed, so much is kept.
_KEPT_CHARACTERS = 200_000
# Errors that another Keras does not help against.
_NOT_OF_KERAS = ("ModuleNotFoundError", "FileNotFoundError", "URL", "ConnectionError")
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
    parser.add_argument("--count", type=int, default=1000, help="of those that are not known yet")
    parser.add_argument("--keep", type=Path, help="a folder with what is known of each script")
    parser.add_argument("--again", action="store_true", help="what is known of the modes is tried anew")
    options = parser.parse_args()
    repositories = json.loads((_HERE / "repositories.json").read_text())
    found = []
    for repository in repositories:
        checkout = options.checkouts / repository["name"].replace("/", "+")
        picked = candidates(checkout, (b"GradientTape",) if options.eager else TRAINS)
        tried = [each for each in picked if not options.eager or b"tf.function" not in each.path.read_bytes()]
        tried = [each for each in tried[: options.most] if options.only in str(each.path)]
        found += [(place, repository["name"], checkout, each) for place, each in enumerate(tried)]
    # The first of each repository, then the second, and so on: a sweep that is broken off has seen something of all.
    found.sort(key=lambda each: each[0])
    with tempfile.TemporaryDirectory() as scratch:
        keep = options.keep or Path(scratch)
        keep.mkdir(exist_ok=True)
        tries = _Tries(keep, options.mode, options.again)
        known = [each for each in found if tries.is_known(*each[1:])]
        new = [each for each in found if each not in known][: options.count]
        entries = [tries.script(*each[1:]) for each in (*known, *new)]
    write(repositories, options.mode, entries)
    return 0


class _Tries:
    """Runs scripts in all ways that are not known yet."""

    def __init__(self, keep: Path, modes: Sequence[str], is_again: bool) -> None:
        self._keep, self._modes, self._is_again = keep, modes, is_again
        command = ("git", "-C", str(_ROOT), "rev-parse", "--short", "HEAD")
        self._commit = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    def is_known(self, name: str, checkout: Path, script: Candidate) -> bool:
        """Whether nothing is left to be run of a script."""
        entry = self._known(name, checkout, script)
        if "plain" not in entry or not runs(entry) or not trains(entry):
            return "plain" in entry
        return not self._is_again and all(mode in entry for mode in self._modes)

    def script(self, name: str, checkout: Path, script: Candidate) -> dict[str, Any]:
        """Returns what is known of a script when all that was not known has been run."""
        entry = self._known(name, checkout, script)
        if self.is_known(name, checkout, script):
            return entry
        for keras in (3, 2) if "plain" not in entry else ():
            entry |= {"plain": self._tried(script, "plain", keras, None), "keras": keras}
            if entry["plain"]["status"] in (0, None) or any(name in entry["plain"]["why"] for name in _NOT_OF_KERAS):
                break
        for mode in self._modes if runs(entry) else ():
            if not trains(entry):
                break
            if mode not in entry or self._is_again:
                plain = entry["plain"]
                lines = len(plain["stdout"].splitlines()) if plain["status"] is None else None
                entry[mode] = self._tried(script, mode, entry["keras"], lines)
        self._kept(name, checkout, script).write_text(json.dumps(entry))
        shown = {way: entry[way]["why"] for way in ("plain", *self._modes) if way in entry}
        print(f"{name}/{entry['path']}", json.dumps(shown, ensure_ascii=False), flush=True)
        return entry

    def _kept(self, name: str, checkout: Path, script: Candidate) -> Path:
        return self._keep / f"{name}/{script.path.relative_to(checkout)}.json".replace("/", "+")

    def _known(self, name: str, checkout: Path, script: Candidate) -> dict[str, Any]:
        kept = self._kept(name, checkout, script)
        known: dict[str, Any] = {"repository": name, "path": str(script.path.relative_to(checkout))}
        return json.loads(kept.read_text()) if kept.exists() else known

    def _tried(self, script: Candidate, way: str, keras: int, lines: int | None) -> dict[str, Any]:
        begun = time.monotonic()
        limit_s = _PLAIN_LIMIT_S if way == "plain" else _FDT_LIMIT_S
        finished = run(script, _COMMANDS[way], keras, limit_s, lines)
        return {
            "commit": self._commit,
            "status": finished.status,
            "why": _why(finished),
            "took_s": round(time.monotonic() - begun, 1),
            "distributed": DISTRIBUTED in finished.stderr,
            "stdout": finished.stdout[:_KEPT_CHARACTERS],
            "stderr": finished.stderr[-6000:],
        }


def _why(finished: Finished) -> str:
    """Returns "ended", "too slow", or the last line that tells of an error."""
    if finished.status == 0:
        return "ended"
    if finished.status is None:
        return "too slow"
    lines = [line.strip() for line in finished.stderr.splitlines() if line.strip()]
    told = [line for line in lines if line.startswith("fdt: ") or "Error" in line]
    return f"status {finished.status}: {(told or lines or [''])[-1][:300]}"


if __name__ == "__main__":
    sys.exit(main())
