"""What does a step cost that the script looks at before the next one?

python benchmarks/round_trips.py --before COMMIT   # writes benchmarks/results/round_trips.{json,md}
python benchmarks/round_trips.py --quick           # few steps, prints only: does everything run?
"""

import argparse
import sys
from functools import partial
from pathlib import Path
from typing import Any

from processes import ROOT, checked_out, fdt, python, run
from record import Content, Record, heading
from tables import spread, table

SCRIPT = "benchmarks/models/round_trips.py"
PACKAGES = ("fdt", "tensorflow", "keras", "numpy", "horovod")
FORMS = ("looked", "unlooked", "target", "train_on_batch", "hooks", "hooks_large", "epochs")
SIDES = {"python": (), "sync": ("--mode", "sync", "--workers", "2"), "async": ("--mode", "async", "--workers", "2")}


def measured(form: str, side: str, folder: Path, steps: int) -> dict[str, Any]:
    """Runs a form once, in plain python or on workers."""
    words = (str(ROOT / SCRIPT), form, "--steps", str(steps))
    command = fdt("run", *SIDES[side], *words) if SIDES[side] else python(*words)
    return run(command, timeout_s=1800, folder=folder).result()


def markdown(content: Content) -> str:
    """Returns the table."""
    done: dict[tuple[str, str], list[float]] = {}
    for each in content["measurements"]:
        if "failed" not in each:
            done.setdefault((each["form"], each["row"]), []).append(each["milliseconds"])
    rows = list(dict.fromkeys(row for _, row in done))
    forms = [form for form in FORMS if any(form == known for known, _ in done)]
    lines = [[form, *(spread(done.get((form, row), []), 2) for row in rows)] for form in forms]
    return (
        f"# Steps that are looked at\n\n{heading(content)}\n\n"
        f"Milliseconds a step (`epochs`: for 50 of them), medians (least–most) of {content['settings']['rounds']} rounds of "
        f"{content['settings']['steps']} steps; two workers in a pool of the run's own. The forms are described in "
        f"`{SCRIPT}`.\n\n{table(['', *rows], lines)}\n"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--forms", nargs="*", default=FORMS, choices=FORMS)
    parser.add_argument("--before", metavar="COMMIT", help="an earlier commit, measured beside this one")
    parser.add_argument("--quick", action="store_true", help="few steps, nothing written")
    options = parser.parse_args()
    if options.quick:
        options.rounds, options.steps = 1, 100
    record = Record("round_trips", vars(options), PACKAGES, markdown, keep=not options.quick)
    with checked_out(options.before) as before:
        for _ in range(options.rounds):
            for form in options.forms:
                for side in SIDES:
                    record.add("run", partial(measured, form, side, ROOT, options.steps), form=form, row=side)
                    if before is not None and SIDES[side]:
                        older = partial(measured, form, side, before, options.steps)
                        record.add("run", older, form=form, row=f"{side}, before")
    print("\n" + record.markdown())
    return 1 if record.failed() else 0


if __name__ == "__main__":
    sys.exit(main())
