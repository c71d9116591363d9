"""How do ring and parameter servers stand faults? Schedules of faults by seed, and trainings whose workers are killed.

    python benchmarks/faults.py --seeds 10 --of schedules           # some 25 minutes
    python benchmarks/faults.py --seeds 3 --of kills --resume       # about a quarter of an hour a seed
    python benchmarks/faults.py --seeds 3 --resume --runs 5         # the next five runs of what is still missing
    python benchmarks/faults.py --quick                             # one seed, few runs, prints only: does everything run?

Writes benchmarks/results/faults.{json,md,png} after every run; --resume goes on with what is there.

*Schedules*: a toy runtime whose state is a chain of the steps that made it (tests/helpers/chain_engine.py), real pools and
processes; a step that is lost, doubled or out of order shows in the last value, and so the run fails.

*Networks*: the real runtimes on three hosts, network namespaces (root's), one of which vanishes or whose cable is cut.

*Kills*: the real runtimes. A worker is ended by SIGKILL at random moments (exponential, by a seed), from the end of the first
epoch on. Counted are the seconds until the job has come as far as before, the steps that are made again, and what is left of
the rate: steps over the seconds of all epochs but the first. The final loss is compared with that of the undisturbed run.
"""

import argparse
import itertools
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import fault_networks
import fault_schedules
from fault_runs import UNDISTURBED, Kills, trained
from fault_tables import MODES, markdown, plot
from record import RESULTS, Record

# In one run, this far apart on average.
TWENTY = Kills(5.0, 20)
KINDS = ("schedules", "networks", "kills")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--of", choices=KINDS, nargs="*", default=list(KINDS), help="what to measure")
    parser.add_argument("--seeds", type=int, default=3, help="how many")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument(
        "--between", type=float, nargs="*", default=[10.0, 30.0, 100.0], help="mean seconds between kills"
    )
    parser.add_argument("--epochs", type=int, default=8, help="of a training; the first is warm-up")
    parser.add_argument("--steps", type=int, default=500, help="of an epoch")
    parser.add_argument("--variables", default="auto", help="how synchronous workers hold them: auto, whole, parts")
    parser.add_argument("--model", default="mlp")
    parser.add_argument("--rows", nargs="*", choices=tuple(fault_schedules.ROWS), default=list(fault_schedules.ROWS))
    parser.add_argument("--resume", action="store_true", help="measure only what the results do not have yet")
    parser.add_argument("--runs", type=int, default=0, help="so many runs now, at most; 0 for all")
    parser.add_argument("--at-once", type=int, default=1, help="runs beside each other; trainings are better alone")
    parser.add_argument("--quick", action="store_true", help="one seed, few epochs, nothing written")
    options = parser.parse_args()
    if options.quick:
        options.seeds, options.between, options.epochs, options.steps = 1, [10.0], 4, 400
    return options


def runs(options: argparse.Namespace) -> Iterator[tuple[str, Callable[[], dict[str, Any]], dict[str, Any]]]:
    """Yields all runs: kind, what measures it, and what names it."""
    for seed in range(options.first_seed, options.first_seed + options.seeds):
        for row in options.rows if "schedules" in options.of else ():
            yield "schedules", partial(fault_schedules.ROWS[row], seed), {"row": row, "seed": seed}
        for row, mode in itertools.product(fault_networks.ROWS if "networks" in options.of else (), MODES):
            yield "networks", partial(fault_networks.trained, row, mode, seed), {"row": row, "mode": mode, "seed": seed}
        every = [UNDISTURBED, *map(Kills, options.between), TWENTY]
        ways = [(mode, kills) for kills in every for mode in MODES] if "kills" in options.of else []
        for mode, kills in ways if seed % 2 == 0 else reversed(ways):
            labels = {"mode": mode, "between_s": kills.between_s, "number": kills.number, "seed": seed}
            yield "kills", partial(trained, mode, kills, seed, options), labels


def main() -> int:
    options = parse_arguments()
    settings = {name: getattr(options, name) for name in ("model", "epochs", "steps", "variables")}
    packages = ("fdt", "tensorflow", "keras", "horovod")
    record = Record("faults", settings, packages, markdown, keep=not options.quick, resume=options.resume)
    wanted = [run for run in runs(options) if not record.has(run[0], **run[2])]
    wanted = wanted[: options.runs or len(wanted)]
    failed = 0
    threads = ThreadPoolExecutor(options.at_once)
    try:
        for (kind, _, labels), future in [(run, threads.submit(run[1])) for run in wanted]:
            failed += "failed" in record.add(kind, future.result, **labels)
    finally:
        threads.shutdown(cancel_futures=True)
    if not options.quick:
        plot(record.content, RESULTS / "faults.png")
    print("\n" + record.markdown())
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
