"""A layer, a metric and a loss of one's own, none of them registered with Keras, on scikit-learn's digits.

Alone, or on two workers:

    python custom_layer.py
    fdt run --workers 2 custom_layer.py
"""

import argparse

import keras
from keras import ops
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split


class GatedDense(keras.layers.Layer):
    """A dense layer that decides, input by input, how much of each unit to let through.

    Gated linear unit: Dauphin et al., 2017, arXiv:1612.08083.
    """

    def __init__(self, units, penalty=1e-4, **kwargs):
        super().__init__(**kwargs)
        self.units = units
        self.penalty = penalty

    def build(self, input_shape):
        self.kernel = self.add_weight(shape=(input_shape[-1], 2 * self.units), initializer="glorot_uniform")
        self.bias = self.add_weight(shape=(2 * self.units,), initializer="zeros")

    def call(self, inputs):
        values, gates = ops.split(ops.matmul(inputs, self.kernel) + self.bias, 2, axis=-1)
        self.add_loss(self.penalty * ops.sum(ops.square(self.kernel)))
        return values * ops.sigmoid(gates)


class MeanRecall(keras.metrics.Metric):
    """The share of each class that was recognised, averaged over the classes."""

    def __init__(self, num_classes, name="mean_recall", **kwargs):
        super().__init__(name=name, **kwargs)
        self.num_classes = num_classes
        self.found = self.add_variable(shape=(num_classes,), initializer="zeros", name="found")
        self.total = self.add_variable(shape=(num_classes,), initializer="zeros", name="total")

    def update_state(self, y_true, y_pred, sample_weight=None):
        truth = ops.one_hot(ops.cast(ops.reshape(y_true, (-1,)), "int32"), self.num_classes)
        guess = ops.one_hot(ops.argmax(y_pred, axis=-1), self.num_classes)
        self.found.assign_add(ops.sum(truth * guess, axis=0))
        self.total.assign_add(ops.sum(truth, axis=0))

    def result(self):
        return ops.mean(self.found / ops.maximum(self.total, 1.0))


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--limit", type=int, help="use only so many of the images")
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args()


def main():
    arguments = parse_arguments()
    keras.utils.set_random_seed(arguments.seed)
    images, labels = load_digits(return_X_y=True)
    images = (images / 16).astype("float32")[: arguments.limit]
    x_train, x_test, y_train, y_test = train_test_split(
        images, labels[: arguments.limit], test_size=0.2, random_state=0
    )

    inputs = keras.Input((64,))
    outputs = keras.layers.Dense(10)(GatedDense(64)(GatedDense(128)(inputs)))
    model = keras.Model(inputs, outputs)
    # Cross-entropy with smoothed labels, so that the network is never quite sure.
    model.compile(
        optimizer=keras.optimizers.SGD(0.1, momentum=0.9),
        loss=lambda y_true, y_pred: keras.losses.categorical_crossentropy(
            ops.one_hot(ops.cast(ops.reshape(y_true, (-1,)), "int32"), 10),
            y_pred,
            from_logits=True,
            label_smoothing=0.05,
        ),
        metrics=["accuracy", MeanRecall(10)],
    )
    history = model.fit(
        x_train,
        y_train,
        batch_size=arguments.batch_size,
        epochs=arguments.epochs,
        validation_split=0.1,
        verbose=2,
    )

    result = model.evaluate(x_test, y_test, verbose=0, return_dict=True)
    print(f"mean recall {result['mean_recall']:.4f}")
    print(f"final loss {history.history['loss'][-1]:.4f}  test accuracy {result['accuracy']:.4f}")


if __name__ == "__main__":
    main()
