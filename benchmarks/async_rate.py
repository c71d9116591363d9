"""How fast is an asynchronous step? FDT on one host and over two, beside TensorFlow's own parameter server training.

    python benchmarks/async_rate.py            # writes benchmarks/results/async_rate.{json,md}; a round takes 15 minutes
    python benchmarks/async_rate.py --quick    # one round, tiny sizes, prints only: does everything run?

Every row of TensorFlow's own is first tried with each of its settings, model by model, and keeps the best. Then rounds:
each runs every row on every model once, in turn, every second round backwards, so that what else the machine does falls
on all alike. Ratios are taken within a round. `compute_bound` answers another question: what is a second worker worth
where a step is arithmetic?
"""

import argparse
import sys
from functools import partial
from typing import Any

import async_summary
import rows
from async_rows import ALL_MODELS, ROWS, best_variant, bound
from record import Record

PACKAGES = ("fdt", "tensorflow", "keras", "tf_keras", "numpy")
# Enough to tell the settings apart; what is quoted comes from the rounds.
VARIANT_EPOCHS = 3


def try_variants(record: Record, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Measures every row that has settings with each of them; returns what was measured."""
    tried = []
    sizes = rows.sizes(VARIANT_EPOCHS, options.steps)
    for model in options.models:
        for name in options.rows:
            row = ROWS[name]
            for variant in row.variants if model in row.models else ():
                measure = partial(rows.step_rate, row, model, [*sizes, *variant])
                tried.append(record.add("variant", measure, model=model, row=name, variant=" ".join(variant)))
    return tried


def measure_round(record: Record, options: argparse.Namespace, number: int, tried: list[dict[str, Any]]) -> None:
    """One round: every row on each of its models."""
    sizes = rows.sizes(options.epochs, options.steps)
    order = options.rows if number % 2 == 0 else options.rows[::-1]
    for model in options.models:
        record.add("bound", partial(bound, model), round=number, model=model)
        for name in order:
            if model in ROWS[name].models:
                measure = partial(rows.step_rate, ROWS[name], model, [*sizes, *best_variant(tried, name, model)])
                record.add("step_rate", measure, round=number, model=model, row=name)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=4, help="of a run; the first is warm-up")
    parser.add_argument("--steps", type=int, help="of an epoch; default: the model's own")
    parser.add_argument("--models", nargs="*", choices=ALL_MODELS, default=list(ALL_MODELS))
    parser.add_argument("--rows", nargs="*", choices=tuple(ROWS), default=list(ROWS))
    parser.add_argument("--no-variants", action="store_true", help="do not try the settings: take the first of each")
    parser.add_argument("--quick", action="store_true", help="one round, tiny sizes, nothing written")
    options = parser.parse_args()
    if options.quick:
        options.rounds, options.epochs, options.steps, options.no_variants = 1, 2, 20, True
    return options


def main() -> int:
    options = parse_arguments()
    record = Record("async_rate", vars(options), PACKAGES, async_summary.markdown, keep=not options.quick)
    tried = [] if options.no_variants else try_variants(record, options)
    for number in range(options.rounds):
        measure_round(record, options, number, tried)
    print("\n" + record.markdown())
    return 1 if record.failed() else 0


if __name__ == "__main__":
    sys.exit(main())
