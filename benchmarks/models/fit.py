"""Fits one of the models of this folder with plain Keras and prints how long each epoch took.

Imports nothing of ours: it runs under `python` and, as it is, under `fdt run`.

    python benchmarks/models/fit.py mlp --epochs 4
"""

import argparse
import importlib
import json
import os
import pathlib
import sys
import time
from typing import Any

if os.environ.get("TF_USE_LEGACY_KERAS"):
    # The models import Keras 2 by its successor's name, too.
    import tf_keras as keras

    sys.modules["keras"] = keras
else:
    import keras

MODELS = (
    *("mlp", "cnn", "embedding", "lstm", "compute_bound", "squeezenet", "googlenet", "resnet34", "vit", "lookups"),
    "emulated",
)


class EpochClock(keras.callbacks.Callback):
    """Seconds of each epoch. Overrides no batch hook, so that nothing in the loop has to wait for it."""

    def __init__(self, begun: pathlib.Path | None = None) -> None:
        super().__init__()
        self._begun = begun
        self.seconds: list[float] = []

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self.start = time.perf_counter()

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self.seconds.append(time.perf_counter() - self.start)
        if self._begun is not None:
            self._begun.touch()


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", choices=MODELS)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--steps", type=int, help="of an epoch; default: the model's STEPS")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--begun", type=pathlib.Path, help="a file to make when the first epoch has ended")
    return parser.parse_args()


def main() -> None:
    arguments = parse_arguments()
    keras.utils.set_random_seed(1)
    module = importlib.import_module(arguments.model)
    steps = arguments.steps or module.STEPS
    x, y = module.arrays(steps * arguments.batch_size)
    clock = EpochClock(arguments.begun)
    model = module.build()
    history = model.fit(x, y, batch_size=arguments.batch_size, epochs=arguments.epochs, callbacks=[clock], verbose=0)
    result = {
        "steps": steps,
        "epoch_seconds": clock.seconds,
        "loss": history.history["loss"][-1],
        "iterations": int(model.optimizer.iterations),
    }
    print("RESULT", json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
