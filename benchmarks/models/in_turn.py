"""Fits models in turn with other processes that do the same: one epoch of one process at a time, so that none slows another.

Imports nothing of ours: it runs under `python` and, as it is, under `fdt run`.

    python benchmarks/models/in_turn.py FOLDER SIDE --sides 3 --models mlp cnn --rounds 5
"""

import argparse
import fcntl
import importlib
import json
import pathlib
import time
from typing import Any

import keras

# How long a side waits for others, which compile, or have failed.
_WAIT_S = 60.0


class Turns(keras.callbacks.Callback):
    """Has each epoch but the first wait for its turn; measures it."""

    def __init__(self, folder: pathlib.Path, name: str, num_sides: int) -> None:
        super().__init__()
        self._folder, self._name, self._num_sides = folder, name, num_sides
        # Waiting processes get the lock in the order in which they asked.
        self._turn = open(folder / "turn", "w")  # noqa: SIM115 (held for the life of the process)
        self.seconds: list[float] = []

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        if epoch == 1:
            self._wait_for_all()
        if epoch:
            fcntl.flock(self._turn, fcntl.LOCK_EX)
        self._began = time.perf_counter()

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        seconds = time.perf_counter() - self._began
        if epoch:
            fcntl.flock(self._turn, fcntl.LOCK_UN)
            self.seconds.append(seconds)

    def _wait_for_all(self) -> None:
        (self._folder / f"{self._name}.ready").touch()
        model, end_s = self._name.partition(".")[0], time.monotonic() + _WAIT_S
        while len([*self._folder.glob(f"{model}.*.ready")]) < self._num_sides and time.monotonic() < end_s:
            time.sleep(0.05)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("side")
    parser.add_argument("--sides", type=int, required=True)
    parser.add_argument("--models", nargs="+", required=True)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, help="of an epoch; default: the model's STEPS")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--compile", action="store_true", help="by XLA")
    options = parser.parse_args()
    for name in options.models:
        keras.utils.set_random_seed(1)
        module = importlib.import_module(name)
        steps = options.steps or module.STEPS
        x, y = module.arrays(steps * options.batch_size)
        model = module.build()
        model.jit_compile = options.compile
        turns = Turns(options.folder, f"{name}.{options.side}", options.sides)
        fitted = {"batch_size": options.batch_size, "epochs": options.rounds + 1, "verbose": 0}
        history = model.fit(x, y, callbacks=[turns], **fitted).history
        rates = [steps / seconds for seconds in turns.seconds]
        result = {"side": options.side, "model": name, "rates": rates, "losses": history["loss"]}
        with open(options.folder / "results.jsonl", "a") as results:
            results.write(json.dumps(result) + "\n")
        print("RESULT", json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
