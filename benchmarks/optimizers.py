"""With which optimizers does a delay harm a recurrent network, or one with a table, and does a rule help?

    python benchmarks/optimizers.py                  # about half an hour; benchmarks/results/optimizers.{json,md}
    python benchmarks/optimizers.py --quick          # one seed, one optimizer, prints only

Every optimizer at learning rates as scripts have them, under each rule, with the delays of so many workers (`delays.py`), on
the same batches from the same weights as on one machine. A difference is told in deviations of plain training's own seeds:
of the cross-entropy of the training data after training, its logarithm, since that is what spreads evenly.
"""

import argparse
import itertools
import math
import os
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")

import keras
import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits

sys.path.insert(0, str(Path(__file__).parent))

import delays
from record import Content, Record
from tables import table

from nfdt.rules import make_rule

RULES = {
    "asgd": make_rule("asgd"),
    "dynsgd": make_rule("dynsgd"),
    "dc-asgd-a": make_rule("dc-asgd-a"),
    # The default of SGD, with this momentum and without; and of other optimizers, which does not weigh.
    "ddc-asgd, q 10": make_rule("ddc-asgd", q=10.0),
    "ddc-asgd, q inf": make_rule("ddc-asgd", q=math.inf),
    # Weighs without compensating.
    "q 10, λ0 0": make_rule("ddc-asgd", q=10.0, lambda0=0.0),
}
PLAIN = "plain"
_NUM_WORDS, _NUM_CLASSES, _LENGTH = 2_000, 4, 24
Arrays = tuple[np.ndarray, np.ndarray]

OPTIMIZERS: dict[str, Callable[[], keras.optimizers.Optimizer]] = {
    "SGD(0.1)": lambda: keras.optimizers.SGD(0.1),
    "SGD(0.05, momentum=0.9)": lambda: keras.optimizers.SGD(0.05, momentum=0.9),
    "Adam(0.001)": lambda: keras.optimizers.Adam(1e-3),
    "Adam(0.01)": lambda: keras.optimizers.Adam(1e-2),
    "Nadam(0.001)": lambda: keras.optimizers.Nadam(1e-3),
    "RMSprop(0.001)": lambda: keras.optimizers.RMSprop(1e-3),
    "RMSprop(0.01)": lambda: keras.optimizers.RMSprop(1e-2),
    "Adagrad(0.1)": lambda: keras.optimizers.Adagrad(0.1),
}


def _digits() -> Arrays:
    """Each image's rows are a sequence of eight vectors."""
    x, y = load_digits(return_X_y=True)
    return (x.reshape(-1, 8, 8) / 16).astype("float32"), y.astype("int64")


def _texts() -> Arrays:
    """Made: of each class some words are more frequent, and a tenth of all labels are wrong."""
    random = np.random.default_rng(0)
    labels = random.integers(0, _NUM_CLASSES, 1_800)
    words = random.zipf(1.3, (1_800, _LENGTH)) % (_NUM_WORDS - 1) + 1
    own = random.integers(0, 200, (1_800, _LENGTH)) * _NUM_CLASSES + labels[:, None] + 1_000
    texts = np.where(random.random((1_800, _LENGTH)) < 0.15, own, words)
    wrong = random.random(1_800) < 0.1
    return texts.astype("int32"), np.where(wrong, random.integers(0, _NUM_CLASSES, 1_800), labels)


def _lstm() -> keras.Model:
    return keras.Sequential([keras.Input((8, 8)), keras.layers.LSTM(32), keras.layers.Dense(10)])


def _table() -> keras.Model:
    layers = keras.layers
    words = keras.Input((_LENGTH,), dtype="int32")
    return keras.Model(
        words, layers.Dense(_NUM_CLASSES)(layers.GlobalAveragePooling1D()(layers.Embedding(_NUM_WORDS, 16)(words)))
    )


def _table_and_lstm() -> keras.Model:
    words = keras.Input((_LENGTH,), dtype="int32")
    hidden = keras.layers.LSTM(16)(keras.layers.Embedding(_NUM_WORDS, 16)(words))
    return keras.Model(words, keras.layers.Dense(_NUM_CLASSES)(hidden))


MODELS: dict[str, tuple[Callable[[], Arrays], Callable[[], keras.Model]]] = {
    "LSTM": (_digits, _lstm),
    "Embedding": (_texts, _table),
    "Embedding, LSTM": (_texts, _table_and_lstm),
}


def trained(
    model_name: str, optimizer: str, rule: str, num_workers: int, seed: int, epochs: int, batch_size: int
) -> dict[str, Any]:
    """Trains once; returns the cross-entropy after it, over all the data, and the mean delay."""
    make_arrays, build = MODELS[model_name]
    arrays = make_arrays()
    keras.utils.set_random_seed(seed)
    model = build()
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(OPTIMIZERS[optimizer](), loss)
    rows = delays.batches(len(arrays[0]), batch_size, epochs, seed)
    delay = delays.train(model, arrays, rows, RULES["asgd" if rule == PLAIN else rule], num_workers, seed)
    value = float(loss(arrays[1], model.predict(arrays[0], batch_size=2_000, verbose=0)))
    return {"loss": value if math.isfinite(value) else 1e9, "delay": delay}


def markdown(content: Content) -> str:
    """Returns the page."""
    settings, runs = content["settings"], [run for run in content["measurements"] if "failed" not in run]
    lines = [
        "# Optimizers and delays",
        "",
        f"`{content['command']}`, begun {content['date']}. "
        + ", ".join(f"{name} {version}" for name, version in content["versions"].items())
        + ".",
        "",
        f"{settings['epochs']} epochs, batch {settings['batch_size']}. Cells: how many deviations of plain training's seeds "
        "the final loss is above plain's (below, where negative), the median of the same seeds, and in brackets the final "
        "loss itself. A deviation is that of the loss's logarithm over the seeds of plain training, and at least 0.1. Above "
        "2: worse than another seed would be. The default, `ddc-asgd`, is q 10 for SGD and q inf for the others.",
    ]
    numbers = sorted({run["workers"] for run in runs if run["rule"] != PLAIN})
    for model, workers in itertools.product(MODELS, numbers):
        rows = []
        for optimizer in OPTIMIZERS:
            of = [run for run in runs if (run["model"], run["optimizer"]) == (model, optimizer)]
            plain = {run["seed"]: math.log(run["loss"]) for run in of if run["rule"] == PLAIN}
            if len(plain) > 1:
                rows.append([optimizer, _text(plain), *(_cell(of, rule, workers, plain) for rule in RULES)])
        if rows:
            lines += ["", f"## {model}, {workers} workers", "", table(["optimizer", PLAIN, *RULES], rows)]
    return "\n".join(lines) + "\n"


def deviation(logarithms: dict[int, float]) -> float:
    """Returns what counts as one."""
    return max(statistics.stdev(logarithms.values()), 0.1)


def _text(logarithms: dict[int, float]) -> str:
    return f"{math.exp(statistics.median(logarithms.values())):.3g} × {math.exp(deviation(logarithms)):.2f}"


def _cell(runs: list[dict[str, Any]], rule: str, workers: int, plain: dict[int, float]) -> str:
    found = [run for run in runs if (run["rule"], run["workers"]) == (rule, workers) and run["seed"] in plain]
    if not found:
        return "–"
    off = statistics.median((math.log(run["loss"]) - plain[run["seed"]]) / deviation(plain) for run in found)
    return f"{off:+.1f} ({statistics.median(run['loss'] for run in found):.3g})"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5, help="of plain training; a rule has three of them")
    parser.add_argument("--workers", type=int, nargs="*", default=[2, 4, 8, 16])
    parser.add_argument("--models", nargs="*", choices=tuple(MODELS), default=list(MODELS))
    parser.add_argument("--optimizers", nargs="*", choices=tuple(OPTIMIZERS), default=list(OPTIMIZERS))
    parser.add_argument("--rules", nargs="*", choices=tuple(RULES), default=list(RULES))
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--resume", action="store_true", help="measure only what the results do not have yet")
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    if options.quick:
        options.seeds, options.workers, options.epochs, options.optimizers = 2, [2], 3, ["Adam(0.001)"]
    tf.config.threading.set_intra_op_parallelism_threads(1)
    settings = {name: getattr(options, name) for name in ("epochs", "batch_size")}
    record = Record("optimizers", settings, ("tensorflow", "keras"), markdown, not options.quick, options.resume)
    for model, optimizer, seed in itertools.product(options.models, options.optimizers, range(options.seeds)):
        ways = [(PLAIN, 1), *(itertools.product(options.rules, options.workers) if seed < 3 else ())]
        for rule, workers in ways:
            labels = {"model": model, "optimizer": optimizer, "rule": rule, "workers": workers, "seed": seed}
            if not record.has("run", **labels):
                record.add(
                    "run",
                    lambda: trained(model, optimizer, rule, workers, seed, options.epochs, options.batch_size),  # noqa: B023
                    **labels,
                )
    print("\n" + record.markdown())
    return 1 if record.failed() else 0


if __name__ == "__main__":
    sys.exit(main())
