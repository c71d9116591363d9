"""The models of `benchmarks/models`, trained as Horovod's documentation for TensorFlow 2 says, by hand.

Fair to Horovod: the same work as the other rows (each rank takes its part of the batch, so that the whole batch stays
the same; the learning rate therefore stays too), no metrics, no progress bar, data prefetched by tf.data, one
intra-operation thread a rank where ranks have one core each.

    PYTHONPATH=benchmarks/models horovodrun -np 2 --gloo python benchmarks/peers/horovod_fit.py mlp

`horovod.tensorflow.keras` does not work with Keras 3; this is the `tf.function` form of the documentation. The one
change that Keras 3 asks for: Horovod gets `v.value`, the tf.Variable inside a Keras variable.
"""

import argparse
import importlib
import json
import time
from collections.abc import Callable, Iterator

import horovod.tensorflow as hvd
import keras
import numpy as np
import tensorflow as tf

Step = Callable[[tf.Tensor, tf.Tensor, bool], tf.Tensor]


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", choices=("mlp", "cnn", "embedding", "lstm", "lookups", "emulated"))
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--steps", type=int, help="of an epoch; default: the model's STEPS")
    parser.add_argument("--batch-size", type=int, default=64, help="of all ranks together")
    parser.add_argument("--threads", type=int, default=1, help="intra-operation threads of a rank; 0: TensorFlow's")
    parser.add_argument("--sparse-as-dense", action="store_true", help="all-reduce IndexedSlices as whole tables")
    parser.add_argument("--jit", action="store_true", help="compile forward and backward pass with XLA")
    return parser.parse_args()


def make_dataset(x: np.ndarray, y: np.ndarray, rank_batch_size: int) -> tf.data.Dataset:
    """Returns this rank's part of the data, shuffled, without end."""
    dataset = tf.data.Dataset.from_tensor_slices((x, y)).shard(hvd.size(), hvd.rank())
    return dataset.repeat().shuffle(10_000).batch(rank_batch_size).prefetch(tf.data.AUTOTUNE)


def make_step(model: keras.Model, sparse_as_dense: bool, jit: bool) -> Step:
    """Returns the training step of Horovod's documentation."""
    loss, optimizer = model.loss, model.optimizer
    optimizer.build(model.trainable_variables)
    variables = [variable.value for variable in model.trainable_variables]

    @tf.function(jit_compile=jit or None)
    def forward(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        return loss(y, model(x, training=True))

    @tf.function
    def step(x: tf.Tensor, y: tf.Tensor, first_batch: bool) -> tf.Tensor:
        with tf.GradientTape() as tape:
            value = forward(x, y) if jit else loss(y, model(x, training=True))
        tape = hvd.DistributedGradientTape(tape, sparse_as_dense=sparse_as_dense)
        gradients = tape.gradient(value, variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        if first_batch:
            hvd.broadcast_variables([variable.value for variable in model.variables], root_rank=0)
            hvd.broadcast_variables([variable.value for variable in optimizer.variables], root_rank=0)
        return value

    return step


def time_epochs(step: Step, batches: Iterator[tuple[tf.Tensor, tf.Tensor]], steps: int, epochs: int) -> list[float]:
    """Runs all epochs and returns the seconds of each; the first holds tracing and broadcasting."""
    seconds = []
    for epoch in range(epochs):
        start = time.perf_counter()
        for number in range(steps):
            value = step(*next(batches), epoch == 0 and number == 0)
        float(value)
        seconds.append(time.perf_counter() - start)
    return seconds


def main() -> None:
    arguments = parse_arguments()
    hvd.init()
    tf.config.threading.set_intra_op_parallelism_threads(arguments.threads)
    # Each rank draws its own initial weights, as in Horovod's examples: the broadcast makes them one.
    keras.utils.set_random_seed(1 + hvd.rank())
    module = importlib.import_module(arguments.model)
    steps = arguments.steps or module.STEPS
    x, y = module.arrays(steps * arguments.batch_size)
    batches = iter(make_dataset(x, y, arguments.batch_size // hvd.size()))
    step = make_step(module.build(), arguments.sparse_as_dense, arguments.jit)
    seconds = time_epochs(step, batches, steps, arguments.epochs)
    if hvd.rank() == 0:
        print("RESULT", json.dumps({"steps": steps, "epoch_seconds": seconds, "ranks": hvd.size()}), flush=True)


if __name__ == "__main__":
    main()
