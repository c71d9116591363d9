"""Trains by loops of the script's own over data sets whose rows are files; writes what came of it as JSON."""

import argparse
import json
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

sys.path.insert(0, str(Path(__file__).parents[3]))

from tests.fidelity.scripts.rows_of_files import DATA, NUM_IMAGES, digest, labels, mapped, paths, read, rows

Made = dict[str, Any]
Step = Callable[[Any, Any], tf.Tensor]


def model_and_step() -> tuple[Any, Step]:
    keras.utils.set_random_seed(1)
    layers = [keras.layers.Input((9, 12, 3)), keras.layers.Conv2D(4, 3), keras.layers.Flatten(), keras.layers.Dense(3)]
    model, optimizer = keras.Sequential(layers), keras.optimizers.SGD(0.05)

    def step(x: Any, y: Any) -> tf.Tensor:
        wanted = y if len(y.shape) == 2 else tf.one_hot(y, 3)
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.nn.softmax_cross_entropy_with_logits(wanted, model(x, training=True)))
        optimizer.apply_gradients(
            zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables, strict=True)
        )
        return loss

    return model, tf.function(step)


def made_of(model: Any, losses: Iterable[Any], *looked: str) -> Made:
    weights = [float(np.sum(np.abs(w))) for w in model.get_weights()]
    return {"losses": [float(loss) for loss in losses], "weights": weights, "looked": list(looked)}


def trained(data: tf.data.Dataset) -> Made:
    model, step = model_and_step()
    losses = [step(x, y) for _ in range(3) for x, y in data]
    return made_of(model, losses, *(digest(x) for x, _ in data))


def eagerly(folder: Path) -> Made:
    """The step is no function."""
    data = mapped(folder)
    keras.utils.set_random_seed(1)
    model, optimizer, losses = (
        keras.Sequential([keras.layers.Flatten(), keras.layers.Dense(3)]),
        keras.optimizers.SGD(0.01),
        [],
    )
    model.build((None, 9, 12, 3))
    for _ in range(2):
        for x, y in data:
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.keras.losses.sparse_categorical_crossentropy(y, model(x), from_logits=True))
            gradients = tape.gradient(loss, model.trainable_variables)
            optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
            losses.append(loss)
    return made_of(model, losses)


def step_by_step(folder: Path) -> Made:
    """One iterator, whose elements go to steps, are looked at, and are taken by a function."""
    data = mapped(folder)
    model, step = model_and_step()
    taken = iter(data)
    losses = [step(*next(taken))]
    x, y = next(taken)
    losses += [step(x, y), step(x[:4], y[:4])]
    looked = [digest(x), digest(next(taken)[1])]

    @tf.function
    def of_function(iterator: Any) -> tf.Tensor:
        images, classes = next(iterator)
        return step(images, classes)

    losses.append(of_function(taken))
    left = [digest(x) for x, _ in taken]
    return made_of(model, losses, *looked, *left, str(x.shape), type(x.numpy()).__name__, x.dtype.name)


def looked_at(folder: Path) -> Made:
    """The script counts what is right, by itself."""
    data = DATA["records_in_turn"](folder)
    model, step = model_and_step()
    losses, right = [], 0
    for _ in range(3):
        for x, y in data:
            losses.append(step(x, y))
            right += int(tf.reduce_sum(tf.cast(tf.argmax(model(x), 1) == y, tf.int32)))
    return made_of(model, losses, str(right))


def in_any_order(folder: Path) -> Made:
    """Each pass has each row once: the sum of what it has does not depend on the order."""
    data = rows(folder).shuffle(NUM_IMAGES).map(lambda path, label: (read(path), label)).batch(7)
    sums = tf.Variable(tf.zeros(3))
    weight = tf.Variable(1.0)

    @tf.function
    def step(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = weight * tf.reduce_sum(x)
        weight.assign_sub(0.0 * tape.gradient(loss, weight))
        sums.assign_add(tf.reduce_sum(tf.one_hot(y, 3), 0))
        return loss

    passes = [sum(float(step(x, y)) for x, y in data) for _ in range(3)]
    return {"losses": passes, "weights": [float(value) for value in sums.numpy()], "looked": []}


def broken(folder: Path) -> Made:
    """A file is no image in the second pass; the script goes on."""
    data = rows(folder).map(lambda path, label: (read(path), label)).batch(4)
    model, step = model_and_step()
    losses = [float(step(x, y)) for x, y in data]
    path = Path(paths(folder)[9])
    kept, raised = path.read_bytes(), ""
    path.write_bytes(b"\xff\xd8\xff no image")
    try:
        for x, y in data:
            losses.append(float(step(x, y)))
    except tf.errors.OpError as error:
        raised = type(error).__name__
    path.write_bytes(kept)
    losses += [float(step(x, y)) for x, y in data]
    return made_of(model, losses, raised, digest(labels(folder)))


CASES: dict[str, Callable[[Path], Made]] = {
    **{name: (lambda folder, make=make: trained(make(folder))) for name, make in DATA.items()},  # type: ignore[misc]
    "eagerly": eagerly,
    "step_by_step": step_by_step,
    "looked_at": looked_at,
    "in_any_order": in_any_order,
    "broken": broken,
}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--cases", default=",".join(CASES))
    arguments = parser.parse_args()
    made = {}
    for case in arguments.cases.split(","):
        print(f"case {case}", file=sys.stderr)
        # Data sets shuffle by it, too: a case is the same whichever came before.
        keras.utils.set_random_seed(1)
        made[case] = CASES[case](arguments.folder)
    arguments.out.write_text(json.dumps(made))


if __name__ == "__main__":
    main()
