"""The models of `benchmarks/models` with Keras 2's `Model.fit` under ParameterServerStrategy.

Written as TensorFlow's guide "Parameter server training with ParameterServerStrategy" says: a DatasetCreator, a model
built and compiled in the strategy's scope, steps_per_epoch given, steps_per_execution above 1 where many steps are to be
dispatched at a time. Like the other rows: a batch of 64 a step, an update a batch, the script's optimizer, the same
arrays. Keras 3's `fit` does not work under this strategy. Two workers, one parameter server and the coordinator are
processes on this machine.

    TF_USE_LEGACY_KERAS=1 PYTHONPATH=benchmarks/models python benchmarks/peers/ps_fit.py mlp --steps-per-execution 10
"""

import importlib

import ps_cluster
import tensorflow as tf


def main() -> None:
    arguments = ps_cluster.parser(__doc__, "--steps-per-execution").parse_args()
    keras = ps_cluster.use_keras_2()
    # Its clock is a callback without batch hooks, which is all that this strategy allows.
    from fit import EpochClock

    keras.utils.set_random_seed(1)
    module = importlib.import_module(arguments.model)
    steps = arguments.steps or module.STEPS
    x, y = module.arrays(steps * arguments.batch_size)
    make_dataset = ps_cluster.dataset_function(x, y, arguments.batch_size)
    strategy = ps_cluster.start(arguments.workers, arguments.threads, arguments.servers)
    with strategy.scope():
        model = module.build()
        optimizer = ps_cluster.optimizer_of(model, arguments.optimizer)
        model.compile(optimizer, model.loss, steps_per_execution=arguments.steps_per_execution)
    clock = EpochClock()
    history = model.fit(
        tf.keras.utils.experimental.DatasetCreator(make_dataset),
        epochs=arguments.epochs,
        steps_per_epoch=steps,
        callbacks=[clock],
        verbose=0,
    )
    updates = int(optimizer.iterations.numpy())
    ps_cluster.report(steps, clock.seconds, loss=float(history.history["loss"][-1]), updates=updates)


if __name__ == "__main__":
    main()
