"""What do snapshots cost a training that nothing befalls? The same training with and without, in turn.

    python benchmarks/snapshot_cost.py                      # some ten minutes; writes results/snapshot_cost.{json,md}
    python benchmarks/snapshot_cost.py --resume --runs 8    # the next eight runs of what is still missing
    python benchmarks/snapshot_cost.py --quick              # one round, prints only

Without: `fdt run` in a process that never finds a snapshot due. Two figures a run: steps a second from the second epoch on, and
the core-milliseconds of all its processes, start and end included, which are the same for both.
"""

import argparse
import resource
import statistics
import sys
from collections.abc import Iterator
from functools import partial
from typing import Any

import processes
from record import Record
from tables import spread, table

FIT = str(processes.ROOT / "benchmarks" / "models" / "fit.py")
MODES = ("sync", "async")
_WITHOUT = (
    "import sys; from fdt import cli, recovery; recovery.Recovery.is_due = property(lambda self: False); "
    "sys.exit(cli.main(sys.argv[1:]))"
)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=4, help="of a run; the first is warm-up")
    parser.add_argument("--steps", type=int, default=300, help="of an epoch")
    parser.add_argument("--model", default="mlp")
    parser.add_argument("--modes", nargs="*", choices=MODES, default=list(MODES))
    parser.add_argument("--resume", action="store_true", help="measure only what the results do not have yet")
    parser.add_argument("--runs", type=int, default=0, help="so many runs now, at most; 0 for all")
    parser.add_argument("--quick", action="store_true", help="one round, nothing written")
    options = parser.parse_args()
    if options.quick:
        options.rounds = 1
    return options


def runs(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yields what names each run: with and without snapshots beside each other, in turn the one and the other first."""
    for number in range(options.rounds):
        for mode in options.modes:
            for snapshots in (True, False) if number % 2 == 0 else (False, True):
                yield {"mode": mode, "snapshots": snapshots, "round": number}


def trained(mode: str, snapshots: bool, options: argparse.Namespace) -> dict[str, Any]:
    """Trains on two workers; returns rate and processor time."""
    words = ["--epochs", str(options.epochs), "--steps", str(options.steps)]
    command = ["run", "--mode", mode, "--workers", "2", FIT, options.model, *words]
    before_s = _children_s()
    run = processes.fdt(*command) if snapshots else [sys.executable, "-c", _WITHOUT, *command]
    result = processes.run(run).result()
    steps = result["steps"] * (options.epochs - 1)
    return {
        "steps_per_s": steps / sum(result["epoch_seconds"][1:]),
        "core_ms_per_step": 1e3 * (_children_s() - before_s) / (result["steps"] * options.epochs),
    }


def _children_s() -> float:
    """Returns the processor seconds of all processes below this one that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def markdown(content: dict[str, Any]) -> str:
    """Returns the page."""
    good = [entry for entry in content["measurements"] if "failed" not in entry]
    rows = []
    for mode in dict.fromkeys(entry["mode"] for entry in good):
        pairs = {True: {}, False: {}}
        for entry in good:
            if entry["mode"] == mode:
                pairs[entry["snapshots"]][entry["round"]] = entry
        rounds = sorted(pairs[True].keys() & pairs[False].keys())
        for name, words in (("steps_per_s", "steps/s"), ("core_ms_per_step", "core-ms a step")):
            both = [[pairs[way][number][name] for number in rounds] for way in (True, False)]
            ratios = [a / b for a, b in zip(*both, strict=True)]
            if ratios:
                rows.append(
                    [f"{mode}, {words}", str(len(rounds)), *(spread(each, 1) for each in both), spread(ratios, 3)]
                )
    settings, machine = content["settings"], content["machine"]
    lines = [
        "# What snapshots cost when nothing fails",
        "",
        f"`{content['command'].strip()}`, {content['date']}, {machine['processor']}, {machine['cores']} cores. "
        f"{', '.join(f'{name} {version}' for name, version in content['versions'].items())}.",
        "",
        f"{settings['model']}, {settings['epochs']} epochs of {settings['steps']} steps, batch 64, two workers of one host; "
        f"median (least–most) of the rounds, in each the two runs one after the other. Load of the machine "
        f"at the end of a run: {statistics.median(entry['load_1min'] for entry in good) if good else 0:.1f} (median).",
        "",
        table(["", "rounds", "with", "without", "with / without"], rows),
    ]
    return "\n".join(lines) + "\n"


def main() -> int:
    options = parse_arguments()
    settings = {name: getattr(options, name) for name in ("epochs", "steps", "model")}
    packages = ("fdt", "tensorflow", "keras", "horovod")
    record = Record("snapshot_cost", settings, packages, markdown, keep=not options.quick, resume=options.resume)
    wanted = [labels for labels in runs(options) if not record.has("cost", **labels)]
    for labels in wanted[: options.runs or len(wanted)]:
        record.add("cost", partial(trained, labels["mode"], labels["snapshots"], options), **labels)
    print("\n" + record.markdown())
    return 1 if record.failed() else 0


if __name__ == "__main__":
    sys.exit(main())
