"""The models of `benchmarks/models` under ParameterServerStrategy and ClusterCoordinator, in a loop of one's own.

Written as TensorFlow's guide "Parameter server training with ParameterServerStrategy" says, with what it recommends for
speed: several steps packed into one function (`--steps-per-closure`), functions scheduled without a return value, a
constant learning rate, a data set for each worker, made there. Like the other rows: a batch of 64 a step, an update a
batch, the script's optimizer, the same arrays; no metrics. Two workers, one parameter server and the coordinator are
processes on this machine.

    TF_USE_LEGACY_KERAS=1 PYTHONPATH=benchmarks/models python benchmarks/peers/ps_loop.py mlp --steps-per-closure 10

The guide's optimizers (`tf.keras.optimizers.legacy`) exist in Keras 2 only, so this is Keras 2. Tried too, and no faster:
Keras 2's newer optimizers (`--optimizer new`), and a model and optimizer of Keras 3 in the same loop, whose `iterations`
moreover count only some of the updates.
"""

import importlib
import time
from collections.abc import Callable
from typing import Any

import ps_cluster
import tensorflow as tf

Closure = Callable[[Any], Any]


def make_closure(
    strategy: tf.distribute.ParameterServerStrategy, model: Any, optimizer: Any, num_steps: int
) -> Closure:
    """Returns what is scheduled: so many training steps on whichever worker is free."""
    per_example_loss = loss_function()

    def train(x: tf.Tensor, y: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            loss = tf.nn.compute_average_loss(per_example_loss(y, model(x, training=True)))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))

    @tf.function
    def closure(iterator: Any) -> None:
        for _ in range(num_steps):
            x, y = next(iterator)
            strategy.run(train, args=(x, y))

    return closure


def make_evaluation(strategy: tf.distribute.ParameterServerStrategy, model: Any) -> Closure:
    """Returns what computes the loss of one batch, to see that the training trained."""
    per_example_loss = loss_function()

    @tf.function
    def closure(iterator: Any) -> tf.Tensor:
        def evaluate(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
            return tf.nn.compute_average_loss(per_example_loss(y, model(x, training=False)))

        losses = strategy.run(evaluate, args=next(iterator))
        return strategy.reduce(tf.distribute.ReduceOp.SUM, losses, axis=None)

    return closure


def loss_function() -> Any:
    """Returns the models' loss without its mean, which the guide takes by hand."""
    return tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")


def time_epochs(
    coordinator: tf.distribute.coordinator.ClusterCoordinator,
    closure: Closure,
    iterator: Any,
    num_closures: int,
    epochs: int,
) -> list[float]:
    """Runs all epochs and returns the seconds of each; the first holds tracing and the workers' set-up."""
    seconds = []
    for _ in range(epochs):
        start = time.perf_counter()
        for _ in range(num_closures):
            coordinator.schedule(closure, args=(iterator,))
        coordinator.join()
        seconds.append(time.perf_counter() - start)
    return seconds


def main() -> None:
    arguments = ps_cluster.parser(__doc__, "--steps-per-closure").parse_args()
    keras = ps_cluster.use_keras_2()
    keras.utils.set_random_seed(1)
    module = importlib.import_module(arguments.model)
    packed = arguments.steps_per_closure
    num_closures = max(1, (arguments.steps or module.STEPS) // packed)
    x, y = module.arrays(num_closures * packed * arguments.batch_size)
    make_dataset = ps_cluster.dataset_function(x, y, arguments.batch_size)
    strategy = ps_cluster.start(arguments.workers, arguments.threads)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        model = module.build()
        optimizer = ps_cluster.optimizer_of(model, arguments.optimizer)

    @tf.function
    def per_worker_dataset() -> Any:
        return strategy.distribute_datasets_from_function(make_dataset)

    iterator = iter(coordinator.create_per_worker_dataset(per_worker_dataset))
    closure = make_closure(strategy, model, optimizer, packed)
    seconds = time_epochs(coordinator, closure, iterator, num_closures, arguments.epochs)
    loss = coordinator.schedule(make_evaluation(strategy, model), args=(iterator,)).fetch()
    updates = int(optimizer.iterations.numpy())
    ps_cluster.report(num_closures * packed, seconds, loss=float(loss), updates=updates)


if __name__ == "__main__":
    main()
