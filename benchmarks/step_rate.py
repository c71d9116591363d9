"""How fast is a step? Plain Keras, FDT on one worker and on two, and Horovod by hand, alternated.

    python benchmarks/step_rate.py            # about 40 minutes; writes benchmarks/results/step_rate.{json,md}
    python benchmarks/step_rate.py --quick    # one round, tiny sizes, prints only: does everything run?

Each round runs every row on every model once, in turn, every second round backwards, so that what else the machine does
falls on all alike. Ratios are taken within a round. Then, on a warm `fdt serve`: seconds to the first step, upload of
an array of 200 MB and not again for a second fit, and the pool's memory beside that of plain Python.
"""

import argparse
import datetime
import importlib.metadata
import json
import os
import platform
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import rows
import summary
from pool import ServedPool
from processes import ROOT, RunFailedError

RESULTS = ROOT / "benchmarks" / "results" / "step_rate"
NUM_WORKERS = 2
Measure = Callable[[], dict[str, Any]]


class Record:
    """All that was measured, written after every measurement so that nothing is lost."""

    def __init__(self, settings: dict[str, Any], output: Path | None) -> None:
        self._output = output
        self.content: dict[str, Any] = {
            "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            "command": "python benchmarks/step_rate.py " + " ".join(sys.argv[1:]),
            "settings": settings,
            "machine": _machine(),
            "versions": _versions(),
            "measurements": [],
        }

    def add(self, kind: str, measure: Measure, **labels: Any) -> None:
        """Takes one measurement; one that fails is kept as a failure and the others go on."""
        where = " ".join(str(label) for label in labels.values())
        try:
            values = measure()
            print(f"{kind} {where}: {_short(values)}", flush=True)
        except RunFailedError as error:
            # What a process printed holds this machine's paths: shown here, not kept.
            values = {"failed": str(error).splitlines()[0].replace(f"{ROOT}/", "")}
            print(f"{kind} {where}: failed: {error}", flush=True)
        entry = {"kind": kind, **labels, "load_1min": os.getloadavg()[0], **values}
        self.content["measurements"].append(entry)
        self.write()

    def write(self) -> None:
        if self._output:
            self._output.parent.mkdir(parents=True, exist_ok=True)
            self._output.with_suffix(".json").write_text(json.dumps(self.content, indent=1) + "\n")
            self._output.with_suffix(".md").write_text(summary.markdown(self.content))

    def failed(self) -> bool:
        return any("failed" in entry for entry in self.content["measurements"])


def measure_step_rates(record: Record, options: argparse.Namespace, number: int) -> None:
    """One round: every row on every model."""
    sizes = ["--epochs", str(options.epochs), *(["--steps", str(options.steps)] if options.steps else [])]
    order = options.rows if number % 2 == 0 else options.rows[::-1]
    for model in rows.MODELS:
        for name in order:
            record.add(
                "step_rate",
                partial(rows.step_rate, rows.ROWS[name], model, sizes),
                round=number,
                model=model,
                row=name,
            )


def measure_pool(record: Record, options: argparse.Namespace) -> None:
    """First step, upload and memory, on a pool that serves all rounds."""
    with ServedPool(NUM_WORKERS) as pool:
        rows.first_step(pool, "mlp")  # the pool's very first job, not counted
        for number in range(options.rounds):
            for model in rows.MODELS:
                record.add("first_step", partial(rows.first_step, pool, model), round=number, model=model)
    # Arrays stay in a pool's store: a new pool for each upload.
    for number in range(options.rounds):
        record.add("big_array_plain", partial(rows.big_array_plain, options.megabytes), round=number)
        with ServedPool(NUM_WORKERS) as pool:
            record.add("big_array_fdt", partial(rows.big_array_fdt, pool, options.megabytes), round=number)


def _short(values: dict[str, Any]) -> str:
    """Returns the numbers of a measurement in one line."""
    return ", ".join(f"{name} {value:.4g}" for name, value in values.items() if isinstance(value, int | float))


def _machine() -> dict[str, Any]:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    model = next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.machine())
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {"processor": model, "cores": os.cpu_count(), "memory_gb": round(memory / 1e9, 1)}


def _versions() -> dict[str, str]:
    names = ("fdt", "tensorflow", "keras", "horovod", "numpy", "grpcio")
    return {"python": platform.python_version()} | {name: importlib.metadata.version(name) for name in names}


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=4, help="of a run; the first is warm-up")
    parser.add_argument("--steps", type=int, help="of an epoch; default: the model's own")
    parser.add_argument("--megabytes", type=int, default=200, help="size of the large array")
    parser.add_argument("--rows", nargs="*", choices=tuple(rows.ROWS), default=list(rows.ROWS))
    parser.add_argument("--no-pool", action="store_true", help="leave out first step, upload and memory")
    parser.add_argument("--quick", action="store_true", help="one round, tiny sizes, nothing written")
    options = parser.parse_args()
    if options.quick:
        options.rounds, options.epochs, options.steps, options.megabytes = 1, 2, 10, 20
    return options


def main() -> int:
    options = parse_arguments()
    record = Record(vars(options), None if options.quick else RESULTS)
    for number in range(options.rounds):
        measure_step_rates(record, options, number)
    if not options.no_pool:
        try:
            measure_pool(record, options)
        except RunFailedError as error:
            print(error, file=sys.stderr)
            record.content["measurements"].append({"kind": "pool", "failed": str(error).splitlines()[0]})
    record.write()
    print("\n" + summary.markdown(record.content))
    return 1 if record.failed() else 0


if __name__ == "__main__":
    sys.exit(main())
