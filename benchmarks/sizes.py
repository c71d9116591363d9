"""What do batches of different sizes cost, beside batches of one size?

    python benchmarks/sizes.py            # writes benchmarks/results/sizes.{json,md}
    python benchmarks/sizes.py --quick    # few batches, prints only: does everything run?

Each run trains on both in turn, epoch by epoch; the first epoch of each holds the start-up, the others are the rounds.
"""

import argparse
import json
import statistics
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

from processes import fdt, python, readable, run
from record import Content, Record, heading
from tables import spread, table

SCRIPT = "benchmarks/models/sizes.py"
PACKAGES = ("fdt", "tensorflow", "keras", "numpy", "horovod")
NETS = ("conv", "lstm", "gru", "attention", "images", "ragged", "padded", "bucketed", "one_row", "episodes")
# Of the rate with one size; seconds beside one and a half times as long; divisions.
WANTED, WANTED_S, WANTED_DIVISIONS = 0.9, 5.0, 3


def measured(net: str, row: str, workers: int, batches: int, epochs: int) -> dict[str, Any]:
    """Runs a net in plain python or on workers."""
    arguments = [net, "--batches", str(batches), "--epochs", str(epochs)]
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        options = ("run", "--mode", "sync", "--workers", str(workers), "--report", str(report))
        command = python(SCRIPT, *arguments) if row == "python" else fdt(*options, SCRIPT, *arguments)
        result = run(command, timeout_s=1800).result()
        told = json.loads(report.read_text()) if report.exists() else {"fits": []}
    # The first rank tells of each division once.
    divisions = [
        each["serves_other_sizes"] for fit in told["fits"] for rank in fit["ranks"] for each in rank.get("divided", ())
    ]
    return {"command": readable([word.replace(folder, "FOLDER") for word in command]), "divisions": divisions, **result}


def markdown(content: Content) -> str:
    """Returns the tables."""
    done = {(e["net"], e["row"]): e for e in content["measurements"] if "failed" not in e}
    heads = [
        "",
        "python, s an epoch",
        "one size, s an epoch",
        "differing, s an epoch",
        f"rate beside one size (wanted {WANTED})",
        "whole run, s: one size",
        f"differing (wanted 1.5 times, + {WANTED_S:.0f})",
        f"divisions (wanted {WANTED_DIVISIONS})",
        "largest difference of a loss",
    ]
    lines = []
    for net in NETS:
        plain, ours = done.get((net, "python")), done.get((net, "sync"))
        if plain is None or ours is None:
            continue
        pairs = zip(ours["fixed_s"][1:], ours["differing_s"][1:], strict=True)
        both = zip(plain["differing_losses"], ours["differing_losses"], strict=True)
        whole = {kind: sum(ours[f"{kind}_s"]) for kind in ("fixed", "differing")}
        lines.append(
            [
                net,
                spread(plain["differing_s"][1:], 2),
                spread(ours["fixed_s"][1:], 2),
                spread(ours["differing_s"][1:], 2),
                spread([one / other for one, other in pairs], 2),
                f"{whole['fixed']:.1f}",
                f"{whole['differing']:.1f} ({1.5 * whole['fixed'] + WANTED_S:.1f})",
                # One of them is that for one size.
                str(len(ours["divisions"]) - 1),
                f"{max(abs(a - b) / (abs(a) + 1e-12) for a, b in both):.0e}",
            ]
        )
    settings = content["settings"]
    ratios = [float(line[4].split()[0]) for line in lines]
    median = f"Median of the nets' ratios: {statistics.median(ratios):.2f}.\n" if ratios else ""
    return (
        f"# Batches of different sizes\n\n{heading(content)}\n\n"
        f"{settings['workers']} synchronous workers. Medians (least–most) of {settings['epochs'] - 1} epochs of "
        f"{settings['batches']} batches after the first, of one size (70) and of differing sizes (20 to 120, mean 70), in turn "
        "in one process; the whole run has the first epoch as well. `one_row`: one row a batch; `episodes`: a training loop "
        f"with an episode as batch.\n\n{table(heads, lines)}\n\n{median}"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", type=int, default=100)
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--nets", nargs="*", default=NETS, choices=NETS)
    parser.add_argument("--quick", action="store_true", help="few batches, nothing written")
    options = parser.parse_args()
    if options.quick:
        options.batches, options.epochs = 10, 2
    record = Record("sizes", vars(options), PACKAGES, markdown, keep=not options.quick)
    for net in options.nets:
        for row in ("python", "sync"):
            record.add(
                "run", partial(measured, net, row, options.workers, options.batches, options.epochs), net=net, row=row
            )
    print("\n" + record.markdown())
    return 1 if record.failed() else 0


if __name__ == "__main__":
    sys.exit(main())
