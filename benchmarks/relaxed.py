"""What does an exact BatchNormalization cost? The same training exact and relaxed, beside plain Keras, in turn.

    python benchmarks/relaxed.py            # about ten minutes; writes benchmarks/results/relaxed.{json,md}
    python benchmarks/relaxed.py --quick    # one round, few steps, prints only: does everything run?

Networks of many BatchNormalization layers on two ranks, every second round the other way round. Ratios are within a round.
"""

import argparse
import json
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import processes
from record import Record
from tables import spread, table

FIT = str(processes.ROOT / "benchmarks" / "models" / "fit.py")
WAYS = {
    "plain Keras": processes.python(FIT),
    "exact": processes.fdt("run", "--workers", "2"),
    "--relax batch-norm": processes.fdt("run", "--workers", "2", "--relax", "batch-norm"),
}
PLAIN, EXACT, RELAXED = WAYS


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=3, help="of a run; the first is warm-up")
    parser.add_argument("--steps", type=int, default=30, help="of an epoch")
    parser.add_argument("--models", nargs="*", default=["cnn"], help="of benchmarks/models")
    parser.add_argument("--quick", action="store_true", help="one round, few steps, nothing written")
    options = parser.parse_args()
    if options.quick:
        options.rounds, options.epochs, options.steps = 1, 2, 5
    return options


def rate(way: str, model: str, options: argparse.Namespace) -> dict[str, Any]:
    """Trains a model in one way; returns steps a second of the epochs after the first, and what a step exchanges."""
    fit = [model, "--epochs", str(options.epochs), "--steps", str(options.steps)]
    if way == PLAIN:
        result, exchanges = processes.run([*WAYS[way], *fit]).result(), 0
    else:
        with tempfile.TemporaryDirectory() as folder:
            report = Path(folder) / "report.json"
            result = processes.run([*WAYS[way], "--report", str(report), FIT, *fit]).result()
            (divided,) = json.loads(report.read_text())["fits"][0]["ranks"][0]["divided"]
            exchanges = divided["exchanges"]
    steps = result["steps"] * (options.epochs - 1)
    return {"steps_per_s": steps / sum(result["epoch_seconds"][1:]), "exchanges": exchanges}


def markdown(content: dict[str, Any]) -> str:
    """Returns the page."""
    good = [entry for entry in content["measurements"] if "failed" not in entry]
    rows = []
    for model in dict.fromkeys(entry["model"] for entry in good):
        found = {(entry["way"], entry["round"]): entry for entry in good if entry["model"] == model}
        rounds = [n for n in range(content["settings"]["rounds"]) if all((way, n) in found for way in WAYS)]
        rates = {way: [found[way, n]["steps_per_s"] for n in rounds] for way in WAYS}
        ratios = [one / other for one, other in zip(rates[RELAXED], rates[EXACT], strict=True)]
        exchanges = [str(found[way, n]["exchanges"]) for way in (EXACT, RELAXED) for n in rounds[:1]]
        rows.append([model, *(spread(rates[way]) for way in WAYS), spread(ratios, 2), " / ".join(exchanges)])
    lines = [
        "# What an exact BatchNormalization costs",
        "",
        f"`{content['command']}`, {content['date']}, {content['machine']['processor']}, {content['machine']['cores']} cores. "
        f"{', '.join(f'{name} {version}' for name, version in content['versions'].items())}.",
        "",
        f"Steps a second, batch 64, two ranks: median (least to most) of {content['settings']['rounds']} rounds; ratios within "
        "one. Plain Keras has both cores. Values that a step exchanges: exact / relaxed.",
        "",
        table(["model", *WAYS, "relaxed / exact", "values"], rows),
    ]
    return "\n".join(lines) + "\n"


def main() -> int:
    options = parse_arguments()
    record = Record(
        "relaxed", vars(options), ("fdt", "tensorflow", "keras", "horovod"), markdown, keep=not options.quick
    )
    for number in range(options.rounds):
        for model in options.models:
            for way in WAYS if number % 2 == 0 else reversed(WAYS):
                measure = partial(rate, way, model, options)
                record.add("rate", measure, way=way, model=model, round=number)
    print("\n" + record.markdown())
    return 1 if record.failed() else 0


if __name__ == "__main__":
    sys.exit(main())
