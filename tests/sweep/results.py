"""What came of a sweep, as a table."""

import json
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.sweep.comparing import NUMBER, difference_at_end, largest_difference, lines

_RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"
# A script that does not end is judged by what it prints, if it prints so many lines with numbers.
_ENOUGH_LINES = 3
_SAME = 1e-3
# fdt's own exit status for what it does not do.
_REFUSED = 125


def write(repositories: Sequence[dict[str, str]], modes: Sequence[str], entries: Sequence[dict[str, Any]]) -> None:
    """Writes sweep.json and sweep.md."""
    content = {"repositories": repositories, "command": " ".join(sys.argv[1:]), "scripts": [_short(e) for e in entries]}
    (_RESULTS / "sweep.json").write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n")
    running = [entry for entry in entries if runs(entry)]
    training = [entry for entry in running if trains(entry)]
    page = [
        "# Public scripts",
        "",
        f"{len(entries)} scripts, {len(running)} of which run in plain python here; {len(training)} of these train.",
        "",
    ]
    for mode in modes:
        counted = Counter(verdict(entry, mode) for entry in training if mode in entry)
        told = ", ".join(f"{count} {name}" for name, count in counted.most_common())
        page.append(f"- {mode}, 2 workers: {sum(counted.values())} tried: {told}.")
    page += ["", "| script | Keras | " + " | ".join(modes) + " |", "|---|---|" + "---|" * len(modes)]
    for entry in training:
        cells = [_cell(entry, mode) if mode in entry else "" for mode in modes]
        page.append(f"| {entry['repository']}: {entry['path']} | {entry['keras']} | " + " | ".join(cells) + " |")
    (_RESULTS / "sweep.md").write_text("\n".join(page) + "\n")


def runs(entry: dict[str, Any]) -> bool:
    """Whether a script says something about fdt: plain python ends it, or has it print figures for as long as it is let."""
    plain = entry["plain"]
    return plain["status"] == 0 or (plain["status"] is None and _lines_with_numbers(plain) >= _ENOUGH_LINES)


def trains(entry: dict[str, Any]) -> bool:
    """Whether a script has come to a training step in the modes that were tried."""
    return not any("no training step was found" in entry.get(mode, {}).get("stderr", "") for mode in ("sync", "async"))


def verdict(entry: dict[str, Any], mode: str) -> str:
    """Returns what came of a script in a mode, in a word or two."""
    tried = entry[mode]
    if tried["status"] == _REFUSED:
        return "refused"
    if tried["status"] not in (0, None):
        return "failed"
    if tried["status"] is None and _lines_with_numbers(tried) < _ENOUGH_LINES:
        return "too slow"
    if not tried["distributed"]:
        return "on this machine"
    difference = _difference(entry, mode)
    if difference is None:
        return "other lines"
    if not _lines_with_numbers(entry["plain"]):
        return "prints no figures"
    return "same figures" if difference < _SAME else "other figures"


def _difference(entry: dict[str, Any], mode: str) -> float | None:
    plain, tried = entry["plain"], entry[mode]
    # If one of them was stopped, what it printed until then is compared.
    return largest_difference(plain["stdout"], tried["stdout"], plain["status"] == tried["status"] == 0)


def _lines_with_numbers(tried: dict[str, Any]) -> int:
    return sum(bool(NUMBER.search(line)) for line in lines(tried["stdout"]))


def _short(entry: dict[str, Any]) -> dict[str, Any]:
    short = {name: entry.get(name) for name in ("repository", "path", "keras")} | {"plain": entry["plain"]["why"]}
    if not runs(entry):
        return short
    modes = (mode for mode in ("sync", "async") if mode in entry)
    return short | {
        mode: {
            "verdict": verdict(entry, mode),
            "why": entry[mode]["why"],
            "difference": _difference(entry, mode),
            "commit": entry[mode].get("commit"),
        }
        for mode in modes
    }


def _cell(entry: dict[str, Any], mode: str) -> str:
    found = verdict(entry, mode)
    if found in ("refused", "failed"):
        return f"{found}: {entry[mode]['why']}".replace("|", "/")
    if found == "same figures":
        return f"{_difference(entry, mode):.0e}"
    is_whole = entry["plain"]["status"] == entry[mode]["status"] == 0
    end = difference_at_end(entry["plain"]["stdout"], entry[mode]["stdout"]) if is_whole else None
    return found if end is None else f"{found}, last line {end:.0e}"
