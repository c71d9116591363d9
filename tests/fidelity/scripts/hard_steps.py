"""Trains a small net by each of the hard steps in turn, and writes losses and variables of each to OUT/<step>.npz."""

import argparse
import pathlib
import sys
from collections.abc import Callable

import numpy as np
import tensorflow as tf

sys.path.insert(0, str(pathlib.Path(__file__).parents[3]))

from tests.helpers.hard_steps import CLASSES, FEATURES, STEPS, Net

# Of 15 rows and of 3: with four workers one has none of the last.
_SIZES = (15, 15, 15, 3)


def trained(step: Callable[..., tf.Tensor]) -> tuple[list[float], list[np.ndarray]]:
    net, random = Net(), np.random.default_rng(3)

    @tf.function
    def train(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        return step(net, x, y)

    losses = []
    for rows in _SIZES:
        x = random.normal(size=(rows, FEATURES)).astype("float32")
        losses.append(train(tf.constant(x), tf.constant(random.integers(0, CLASSES, rows))))
    return [float(loss) for loss in losses], [variable.numpy() for variable in net.variables]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--steps", nargs="*", default=list(STEPS))
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    for name in options.steps:
        print(f"step {name}", flush=True)
        losses, variables = trained(STEPS[name].step)
        np.savez(options.out / f"{name}.npz", np.array(losses), *variables)


if __name__ == "__main__":
    main()
