"""How accurate is a model after asynchronous training? Every update rule against the number of workers.

    python benchmarks/convergence.py                 # about 35 minutes; writes benchmarks/results/convergence.{json,md,png}
    python benchmarks/convergence.py --quick         # one seed, few delays, prints only

Simulated: see `delays.py`. Real: `fdt run --mode async` on this machine. There are two learning rates: the best for one
machine, found first, and a tenth of it. Neither is tuned again for any rule, because that is what happens to a script nobody
changes. Each number is the mean over seeds, with the standard deviation.
"""

import argparse
import datetime
import itertools
import json
import platform
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "benchmarks"), str(ROOT)]

import convergence_data  # noqa: E402
import convergence_plot  # noqa: E402
import delays  # noqa: E402

from nfdt.rules import Rule, make_rule  # noqa: E402

RESULTS = ROOT / "benchmarks" / "results" / "convergence"
RULES = {
    "asgd": make_rule("asgd"),
    "dc-asgd-c": make_rule("dc-asgd-c"),
    "dc-asgd-a": make_rule("dc-asgd-a"),
    "dc-asgdk": make_rule("dc-asgdk"),
    "dynsgd": make_rule("dynsgd"),
    "ddc-asgd thesis": make_rule("ddc-asgd", "thesis"),
    "ddc-asgd robust": make_rule("ddc-asgd", "robust"),
}
REAL_OPTIONS = {
    "asgd": ["--update", "asgd"],
    "dc-asgd-a": ["--update", "dc-asgd-a"],
    "ddc-asgd robust": ["--update", "ddc-asgd"],
    "averaging": ["--update", "averaging", "--average-every", "4"],
}
RATES = (0.01, 0.02, 0.05, 0.1, 0.2)
# Everything is measured at the best of these rates, which is near the limit of stability, and at a tenth of it.
PARTS = (1, 10)
BATCH_SIZE, MOMENTUM = 32, 0.9


def build(data: convergence_data.Data, seed: int, rate: float) -> keras.Model:
    keras.utils.set_random_seed(seed)
    model = data.build()
    model.compile(
        keras.optimizers.SGD(rate, momentum=MOMENTUM), keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    )
    return model


def simulate(
    data: convergence_data.Data, rule: Rule, num_workers: int, rate: float, seed: int, epochs: int
) -> dict[str, float]:
    """Trains with delays; returns test accuracy and mean delay."""
    model = build(data, seed, rate)
    rows = delays.batches(len(data.x_train), BATCH_SIZE, epochs, seed)
    delay = delays.train(model, (data.x_train, data.y_train), rows, rule, num_workers, seed)
    return {"accuracy": accuracy(model, data), "delay": delay}


def accuracy(model: keras.Model, data: convergence_data.Data) -> float:
    logits = model.predict(data.x_test, verbose=0)
    # A model that diverged answers nan, of which no class is the largest.
    right = np.isfinite(logits).all(axis=1) & (logits.argmax(axis=1) == data.y_test)
    return float(right.mean())


def best_rate(data: convergence_data.Data, seeds: Sequence[int], epochs: int) -> float:
    """Returns the learning rate at which one machine is most accurate."""
    means = {
        rate: statistics.mean(simulate(data, RULES["asgd"], 1, rate, seed, epochs)["accuracy"] for seed in seeds)
        for rate in RATES
    }
    print(f"{data.name}: one machine by learning rate: {means}", flush=True)
    return max(means, key=lambda rate: means[rate])


def real(
    data: convergence_data.Data, rule: str, num_workers: int, rate: float, seed: int, epochs: int
) -> dict[str, float]:
    """Trains with `fdt run`; returns test accuracy and mean delay."""
    script = ROOT / "benchmarks" / "convergence_fit.py"
    with tempfile.TemporaryDirectory() as directory:
        report = Path(directory) / "report.json"
        options = ["--mode", "async", "--workers", str(num_workers), *REAL_OPTIONS[rule], "--report", str(report)]
        arguments = [data.name, "--rate", str(rate), "--seed", str(seed), "--epochs", str(epochs)]
        command = [sys.executable, "-m", "fdt", "run", *options, str(script), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=900)
        if done.returncode:
            raise SystemExit(f"{' '.join(command[1:])} ended with {done.returncode}:\n{done.stderr[-2000:]}")
        (fit,) = json.loads(report.read_text())["fits"]
    found = json.loads(done.stdout.rsplit("RESULT", 1)[1])
    return {"accuracy": found["accuracy"], "delay": (fit["delay"] or {"mean": 0.0})["mean"]}


def train(
    data: convergence_data.Data, cell: tuple[str, str, int], rate: float, seeds: Sequence[int], epochs: int
) -> list[dict[str, Any]]:
    """Trains once for each seed.

    Args:
        data: What on.
        cell: Kind of delays, rule and number of workers: a cell of the tables.
        rate: Learning rate.
        seeds: One for each run.
        epochs: How long.
    """
    kind, rule, workers = cell
    runs = []
    for seed in seeds:
        if kind == "real":
            found = real(data, rule, workers, rate, seed, epochs)
        else:
            found = simulate(data, RULES.get(rule, RULES["asgd"]), workers, rate, seed, epochs)
        runs.append(
            {"data": data.name, "kind": kind, "rule": rule, "workers": workers, "rate": rate, "seed": seed, **found}
        )
    mean = statistics.mean(run["accuracy"] for run in runs)
    print(f"{data.name} {kind} {rule} {workers}, learning rate {rate:g}: {mean:.4f}", flush=True)
    return runs


def measure(options: argparse.Namespace) -> dict[str, Any]:
    runs: list[dict[str, Any]] = []
    best = {}
    cells = [("simulated", "one machine", 1)]
    cells += [("simulated", rule, workers) for workers in options.workers for rule in RULES]
    cells += [("real", rule, workers) for workers in options.real_workers for rule in REAL_OPTIONS]
    for data in convergence_data.available():
        seeds, epochs = range(1, options.seeds + 1), options.epochs or data.epochs
        best[data.name] = best_rate(data, list(seeds)[:2], epochs)
        for part, cell in itertools.product(PARTS, cells):
            runs += train(data, cell, best[data.name] / part, seeds, epochs)
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "command": "python benchmarks/convergence.py " + " ".join(sys.argv[1:]),
        "versions": {"python": platform.python_version(), "tensorflow": tf.__version__, "keras": keras.__version__},
        "learning_rates": best,
        "batch_size": BATCH_SIZE,
        "momentum": MOMENTUM,
        "runs": runs,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, help="default: the data set's own")
    parser.add_argument("--workers", type=int, nargs="*", default=[4, 8, 16, 32], help="simulated")
    parser.add_argument("--real-workers", type=int, nargs="*", default=[2, 4])
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    if options.quick:
        options.seeds, options.epochs, options.workers, options.real_workers = 1, 3, [4], [2]
    tf.config.threading.set_intra_op_parallelism_threads(1)
    content = measure(options)
    text = convergence_plot.markdown(content)
    print(text)
    if not options.quick:
        RESULTS.parent.mkdir(parents=True, exist_ok=True)
        RESULTS.with_suffix(".json").write_text(json.dumps(content, indent=1) + "\n")
        RESULTS.with_suffix(".md").write_text(text)
        convergence_plot.plot(content, RESULTS.with_suffix(".png"))


if __name__ == "__main__":
    main()
