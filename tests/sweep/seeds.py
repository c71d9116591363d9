"""Public scripts with LSTM or Embedding: do asynchronous workers end worse than another seed would?

    python -m tests.sweep.seeds DIR               # DIR/OWNER+NAME: checkouts
    python -m tests.sweep.seeds DIR --only imdb --rules ddc-asgd --resume

Each script, byte for byte, with several seeds under plain python and with each update rule on two workers; of each run the last
loss that it printed is compared. Writes benchmarks/results/seeds.json and .md after every script.
"""

import argparse
import datetime
import json
import math
import os
import re
import statistics
import sys
from pathlib import Path
from typing import Any

from tests.sweep.comparing import lines
from tests.sweep.picking import Candidate, candidates
from tests.sweep.running import DISTRIBUTED, run

_RESULTS = Path(__file__).parents[2] / "benchmarks" / "results" / "seeds"
_WORDS = (b"LSTM(", b"LSTMCell(", b"GRU(", b"GRUCell(", b"SimpleRNN(", b"Embedding(")
_RULES = ("asgd", "dynsgd", "dc-asgd-a", "ddc-asgd")
_LOSS = re.compile(r"(?<![\w])loss\W*?([-+]?\d+\.?\d*(?:e[-+]?\d+)?|nan)", re.IGNORECASE)
_OPTIMIZER = re.compile(r"\b(sgd|adam|rmsprop|adagrad|adadelta|nadam)\b", re.IGNORECASE)
_PLAIN = "plain"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkouts", type=Path)
    parser.add_argument("--seeds", type=int, default=5, help="of plain python; a rule has as many as --rule-seeds")
    parser.add_argument("--rule-seeds", type=int, default=3)
    parser.add_argument("--rules", nargs="*", choices=_RULES, default=list(_RULES))
    parser.add_argument("--only", default="", help="part of a path")
    parser.add_argument(
        "--limit", type=float, default=60.0, help="seconds of a plain run; one on workers has five times these"
    )
    parser.add_argument("--resume", action="store_true", help="run only what the results do not have yet")
    options = parser.parse_args()
    kept = _RESULTS.with_suffix(".json")
    entries: dict[str, dict[str, Any]] = json.loads(kept.read_text()) if options.resume and kept.exists() else {}
    for checkout in sorted(options.checkouts.iterdir()):
        for script in candidates(checkout):
            name = f"{checkout.name.replace('+', '/')}: {script.path.relative_to(checkout)}"
            if options.only in name and any(word in script.path.read_bytes() for word in _WORDS):
                _tried(script, entries.setdefault(name, {"losses": {}}), options)
                print(name, entries[name]["losses"], entries[name].get("why", ""), flush=True)
                kept.write_text(json.dumps(entries, indent=1) + "\n")
                _RESULTS.with_suffix(".md").write_text(_markdown(entries))
    print(_markdown(entries))
    return 0


def _tried(script: Candidate, entry: dict[str, Any], options: argparse.Namespace) -> None:
    """Runs a script in all ways that its entry does not have yet; "why" in it tells what kept it from that."""
    if "why" in entry:
        return
    source = script.path.read_text(errors="replace")
    entry["optimizers"] = sorted({match.lower() for match in _OPTIMIZER.findall(source)})
    for keras in (3, 2) if "keras" not in entry else (entry["keras"],):
        entry.pop("why", None)
        entry["keras"] = keras
        if _losses(script, _PLAIN, options.seeds, entry, options.limit):
            break
    for rule in options.rules if "why" not in entry else ():
        _losses(script, rule, options.rule_seeds, entry, 5 * options.limit)


def _losses(script: Candidate, way: str, seeds: int, entry: dict[str, Any], limit_s: float) -> bool:
    """Adds the losses of all seeds that are missing; returns False, with the reason in the entry, if there are none."""
    workers = ("-m", "fdt", "run", "--mode", "async", "--workers", "2", "--update", way)
    losses = entry["losses"].setdefault(way, [])
    for seed in range(len(losses), seeds):
        finished = run(script, () if way == _PLAIN else workers, entry["keras"], limit_s, seed=seed)
        found = [match for line in lines(finished.stdout) for match in _LOSS.findall(line)]
        if finished.status != 0 or not found:
            told = [
                line.strip() for line in finished.stderr.splitlines() if "Error" in line or line.startswith("fdt: ")
            ]
            status = "too slow" if finished.status is None else f"status {finished.status}"
            entry["why"] = f"{way}: {status}, {len(found)} losses. {(told or [''])[-1][:200]}"
            del entry["losses"][way]
            return False
        if way != _PLAIN and DISTRIBUTED not in finished.stderr:
            entry["why"] = f"{way}: trains on no workers"
            del entry["losses"][way]
            return False
        losses.append(float(found[-1]))
    entry.pop("why", None)
    return True


def _markdown(entries: dict[str, dict[str, Any]]) -> str:
    compared = {name: e for name, e in entries.items() if len(e["losses"].get(_PLAIN, ())) > 1 and len(e["losses"]) > 1}
    rows = []
    for name, entry in compared.items():
        plain = entry["losses"][_PLAIN]
        cells = [_cell(entry["losses"].get(rule, ()), plain) for rule in _RULES]
        optimizers = ", ".join(entry["optimizers"]) or "–"
        rows.append(f"| {name} | {optimizers} | {entry['keras']} | {_spread(plain)} | " + " | ".join(cells) + " |")
    others = [f"| {name} | {entry.get('why', '')} |" for name, entry in entries.items() if name not in compared]
    heads = f"| script | optimizers it names | Keras | {_PLAIN} | " + " | ".join(_RULES) + " |"
    return "\n".join(
        [
            "# Seeds of public scripts with recurrent layers or tables",
            "",
            f"`python -m tests.sweep.seeds`, {datetime.date.today()}, load {os.getloadavg()[0]:.0f}. The last loss that "
            "is printed: of plain python's seeds the median (least to most); of two asynchronous workers the same, and how "
            "many of plain python's deviations their mean is above its mean.",
            "",
            heads,
            "|---" * (4 + len(_RULES)) + "|",
            *rows,
            "",
            f"Compared: {len(compared)}. Of the others:",
            "",
            "| script | why it was not |",
            "|---|---|",
            *others,
            "",
        ]
    )


def _spread(losses: list[float]) -> str:
    return f"{statistics.median(losses):.3g} ({min(losses):.3g} to {max(losses):.3g})"


def _cell(losses: list[float], plain: list[float]) -> str:
    if not losses:
        return "–"
    deviation = statistics.stdev(plain) or math.nan
    return f"{_spread(losses)}, {(statistics.mean(losses) - statistics.mean(plain)) / deviation:+.1f}"


if __name__ == "__main__":
    sys.exit(main())
