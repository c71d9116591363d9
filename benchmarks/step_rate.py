"""How fast is a step? Plain Keras, FDT on one worker and on two, and Horovod by hand, alternated.

    python benchmarks/step_rate.py            # about 40 minutes; writes benchmarks/results/step_rate.{json,md}
    python benchmarks/step_rate.py --quick    # one round, tiny sizes, prints only: does everything run?

Each round runs every row on every model once, in turn, every second round backwards, so that what else the machine does
falls on all alike. Ratios are taken within a round. Then, on a warm `fdt serve`: seconds to the first step, upload of
an array of 200 MB and not again for a second fit, and the pool's memory beside that of plain Python.
"""

import argparse
import sys
from functools import partial
from pathlib import Path

import rows
import summary
from pool import ServedPool
from processes import RunFailedError, checked_out
from record import Record

NUM_WORKERS = 2
PACKAGES = ("fdt", "tensorflow", "keras", "horovod", "numpy", "grpcio")


def measure_step_rates(record: Record, options: argparse.Namespace, number: int, before: Path | None) -> None:
    """One round: every row on every model."""
    sizes = rows.sizes(options.epochs, options.steps)
    order = options.rows if number % 2 == 0 else options.rows[::-1]
    for model in options.models:
        for name in order:
            measure = partial(rows.step_rate, rows.ROWS[name], model, sizes, before)
            record.add("step_rate", measure, round=number, model=model, row=name)


def measure_pool(record: Record, options: argparse.Namespace) -> None:
    """First step, upload and memory, on a pool that serves all rounds."""
    with ServedPool(NUM_WORKERS) as pool:
        rows.first_step(pool, "mlp")  # the pool's very first job, not counted
        for number in range(options.rounds):
            for model in options.models:
                record.add("first_step", partial(rows.first_step, pool, model), round=number, model=model)
    # Arrays stay in a pool's store: a new pool for each upload.
    for number in range(options.rounds):
        record.add("big_array_plain", partial(rows.big_array_plain, options.megabytes), round=number)
        with ServedPool(NUM_WORKERS) as pool:
            record.add("big_array_fdt", partial(rows.big_array_fdt, pool, options.megabytes), round=number)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=4, help="of a run; the first is warm-up")
    parser.add_argument("--steps", type=int, help="of an epoch; default: the model's own")
    parser.add_argument("--megabytes", type=int, default=200, help="size of the large array")
    parser.add_argument("--models", nargs="*", choices=rows.SYNC_MODELS, default=rows.SYNC_MODELS)
    parser.add_argument("--rows", nargs="*", choices=tuple(rows.ROWS))
    parser.add_argument("--before", metavar="COMMIT", help="an earlier commit, measured beside this one")
    parser.add_argument("--no-pool", action="store_true", help="leave out first step, upload and memory")
    parser.add_argument("--quick", action="store_true", help="one round, tiny sizes, nothing written")
    options = parser.parse_args()
    options.rows = [n for n in options.rows or rows.ROWS if options.before or not rows.ROWS[n].is_before]
    if options.quick:
        options.rounds, options.epochs, options.steps, options.megabytes = 1, 2, 10, 20
    return options


def main() -> int:
    options = parse_arguments()
    record = Record("step_rate", vars(options), PACKAGES, summary.markdown, keep=not options.quick)
    with checked_out(options.before) as before:
        for number in range(options.rounds):
            measure_step_rates(record, options, number, before)
    if not options.no_pool:
        try:
            measure_pool(record, options)
        except RunFailedError as error:
            print(error, file=sys.stderr)
            record.content["measurements"].append({"kind": "pool", "failed": str(error).splitlines()[0]})
    record.write()
    print("\n" + record.markdown())
    return 1 if record.failed() else 0


if __name__ == "__main__":
    sys.exit(main())
