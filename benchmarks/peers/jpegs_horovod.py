"""The net of `benchmarks/models/jpegs.py`, trained as Horovod's documentation for TensorFlow 2 says, by hand.

Each rank lists the files, takes every n-th of them (`shard`), and reads and decodes these alone, in parallel and ahead of the
step, as TensorFlow's guide to input pipelines says.

    PYTHONPATH=benchmarks/models horovodrun -np 2 --gloo python benchmarks/peers/jpegs_horovod.py FOLDER
"""

import argparse
import json
import time
from pathlib import Path

import horovod.tensorflow as hvd
import jpegs
import keras
import tensorflow as tf


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--batch", type=int, default=64, help="of all ranks together")
    parser.add_argument("--epochs", type=int, default=3)
    arguments = parser.parse_args()
    hvd.init()
    keras.utils.set_random_seed(1 + hvd.rank())
    paths = sorted(arguments.folder.glob("*/*.jpg"))
    data = tf.data.Dataset.from_tensor_slices(([str(p) for p in paths], [int(p.parent.name) for p in paths]))
    data = data.shuffle(len(paths), seed=1).shard(hvd.size(), hvd.rank()).map(jpegs.read, tf.data.AUTOTUNE)
    data = data.batch(arguments.batch // hvd.size(), drop_remainder=True).prefetch(tf.data.AUTOTUNE)
    model, loss, optimizer = jpegs.build(), keras.losses.SparseCategoricalCrossentropy(True), keras.optimizers.SGD()
    optimizer.build(model.trainable_variables)
    variables = [variable.value for variable in model.trainable_variables]

    @tf.function
    def step(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            value = loss(y, model(x, training=True))
        gradients = hvd.DistributedGradientTape(tape).gradient(value, variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return value

    hvd.broadcast_variables(variables, root_rank=0)
    ends = []
    for _ in range(arguments.epochs):
        for x, y in data:
            value = step(x, y)
        float(value)
        ends.append(time.perf_counter())
    if hvd.rank() == 0:
        images = len(paths) // arguments.batch * arguments.batch * (arguments.epochs - 1)
        print("RESULT", json.dumps({"images_per_s": images / (ends[-1] - ends[0])}), flush=True)


if __name__ == "__main__":
    main()
