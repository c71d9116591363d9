"""Cases: losses, their reductions and weights, regularisers, metrics."""

from collections.abc import Callable

import numpy as np
import tensorflow as tf
from recording import Results, case, compiled, digits, fit, mlp, momentum
from tensorflow import keras

# 4 x 64 and one more: the last batch has fewer samples than there are workers.
UNEVEN = 4 * 64 + 1


def weights_for(num: int) -> np.ndarray:
    """Returns sample weights that differ within every worker's share, some of them zero."""
    return np.random.RandomState(3).choice([0.0, 0.25, 1.0, 3.0], num).astype("float32")


def cross_entropy(reduction: str) -> keras.losses.Loss:
    return keras.losses.SparseCategoricalCrossentropy(reduction=reduction)


@case
def sample_weight() -> Results:
    model = compiled(weighted_metrics=["accuracy"])
    return fit(model, *digits(UNEVEN), sample_weight=weights_for(UNEVEN))


@case
def class_weight() -> Results:
    return fit(compiled(), *digits(UNEVEN), class_weight={k: 0.5 + 0.3 * k for k in range(10)})


@case
def reduction_sum() -> Results:
    optimizer = keras.optimizers.SGD(0.001, momentum=0.9)
    return fit(compiled(optimizer=optimizer, loss=cross_entropy("sum")), *digits(UNEVEN))


@case
def reduction_sum_sample_weight() -> Results:
    optimizer = keras.optimizers.SGD(0.001, momentum=0.9)
    model = compiled(optimizer=optimizer, loss=cross_entropy("sum"))
    return fit(model, *digits(UNEVEN), sample_weight=weights_for(UNEVEN))


@case
def mean_with_sample_weight() -> Results:
    model = compiled(loss=cross_entropy("mean_with_sample_weight"))
    return fit(model, *digits(256 + 7), sample_weight=weights_for(256 + 7) + 0.1)


@case
def l2() -> Results:
    return fit(compiled(mlp(kernel_regularizer=keras.regularizers.L2(0.01))), *digits(UNEVEN))


@case
def l2_reduction_sum() -> Results:
    model = mlp(kernel_regularizer=keras.regularizers.L2(0.5))
    optimizer = keras.optimizers.SGD(0.001, momentum=0.9)
    return fit(compiled(model, optimizer, loss=cross_entropy("sum")), *digits(UNEVEN))


@case
def activity_regularizer() -> Results:
    return fit(compiled(mlp(activity_regularizer=keras.regularizers.L2(0.001))), *digits(UNEVEN))


class MeanPenalty(keras.layers.Layer):
    """Adds a loss: a mean over the batch."""

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        self.add_loss(0.1 * tf.reduce_mean(tf.square(inputs)))
        return inputs


@case
def add_loss() -> Results:
    layers = [keras.Input((64,)), keras.layers.Dense(24, activation="relu"), MeanPenalty(), keras.layers.Dense(10)]
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    return fit(compiled(keras.Sequential(layers), loss=loss), *digits(UNEVEN))


def one_hot(num: int = UNEVEN) -> tuple[np.ndarray, np.ndarray]:
    x, y = digits(num)
    return x, np.eye(10, dtype="float32")[y]


@case
def lambda_loss() -> Results:
    model = compiled(loss=lambda y, p: 10.0 * tf.reduce_mean(tf.square(y - p), axis=-1))
    return fit(model, *one_hot())


class UnregisteredLoss(keras.losses.Loss):
    """A loss that no archive can load again."""

    def __init__(self, strength: float) -> None:
        super().__init__(name="unregistered")
        self.strength = strength

    def call(self, y_true: tf.Tensor, y_pred: tf.Tensor) -> tf.Tensor:
        return self.strength * tf.reduce_sum(tf.math.log(tf.cosh(y_pred - y_true)), axis=-1)


@case
def custom_loss_class() -> Results:
    return fit(compiled(loss=UnregisteredLoss(3.0)), *one_hot())


class Confidence(keras.metrics.Metric):
    """Mean probability of the class chosen; its state adds up."""

    def __init__(self) -> None:
        super().__init__(name="confidence")
        self.total = self.add_weight(name="total", initializer="zeros")
        self.count = self.add_weight(name="count", initializer="zeros")

    def update_state(self, y_true: tf.Tensor, y_pred: tf.Tensor, sample_weight: object = None) -> None:
        self.total.assign_add(tf.reduce_sum(tf.reduce_max(y_pred, axis=-1)))
        self.count.assign_add(tf.cast(tf.shape(y_pred)[0], "float32"))

    def result(self) -> tf.Tensor:
        return self.total / self.count


@case
def custom_metric() -> Results:
    return fit(compiled(metrics=[Confidence(), "accuracy"]), *digits(UNEVEN))


@case
def auc_precision_recall() -> Results:
    x, y = digits(UNEVEN)
    net = keras.Sequential([keras.Input((64,)), keras.layers.Dense(1, activation="sigmoid")])
    metrics = [keras.metrics.AUC(), keras.metrics.Precision(), keras.metrics.Recall()]
    model = compiled(net, loss="binary_crossentropy", metrics=metrics)
    return fit(model, x, (y >= 5).astype("float32")[:, None])


@case
def two_inputs_two_outputs() -> Results:
    x, y = digits(UNEVEN)
    upper, lower = keras.Input((32,), name="upper"), keras.Input((32,), name="lower")
    hidden = keras.layers.Dense(24, activation="relu")(keras.layers.Concatenate()([upper, lower]))
    outputs = {
        "kind": keras.layers.Dense(10, activation="softmax", name="kind")(hidden),
        "ink": keras.layers.Dense(1, name="ink")(hidden),
    }
    model = keras.Model({"upper": upper, "lower": lower}, outputs)
    model.compile(
        optimizer=momentum(),
        loss={"kind": "sparse_categorical_crossentropy", "ink": "mse"},
        loss_weights={"kind": 1.0, "ink": 0.3},
        metrics={"kind": ["accuracy"], "ink": ["mae"]},
    )
    inputs = {"upper": x[:, :32], "lower": x[:, 32:]}
    return fit(model, inputs, {"kind": y, "ink": x.mean(axis=1, keepdims=True)})


class SumOfActivity(keras.layers.Layer):
    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        self.add_loss(1e-3 * tf.reduce_sum(inputs))
        return inputs


@case
def add_loss_sum() -> Results:
    """A layer adds a sum over the batch, beside the mean that is compiled."""
    layers = [
        keras.Input((64,)),
        keras.layers.Dense(16, activation="relu"),
        SumOfActivity(),
        keras.layers.Dense(10, activation="softmax"),
    ]
    return fit(compiled(keras.Sequential(layers)), *digits(UNEVEN))


class ActivityOfRows(keras.layers.Layer):
    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        self.add_loss(1e-3 * tf.reduce_sum(inputs, axis=1))
        return inputs


@case
def add_loss_rows() -> Results:
    """A layer adds one number for each row, of which Keras takes the sum."""
    layers = [keras.Input((64,)), keras.layers.Dense(16, "relu"), ActivityOfRows(), keras.layers.Dense(10, "softmax")]
    return fit(compiled(keras.Sequential(layers)), *digits(UNEVEN))


def summed_by_hand(y_true: tf.Tensor, y_pred: tf.Tensor) -> tf.Tensor:
    return tf.reduce_sum(keras.losses.sparse_categorical_crossentropy(y_true, y_pred)) / 64.0


@case
def loss_summed_by_hand() -> Results:
    return fit(compiled(loss=summed_by_hand), *digits(UNEVEN))


class ByHand(keras.Model):
    """A step of its own around a loss that reduces by itself; its metric is told that number."""

    def train_step(self, data: tuple[tf.Tensor, tf.Tensor]) -> dict[str, tf.Tensor]:
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.loss_by_hand(y, self(x, training=True))
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        self.tracker.update_state(loss)
        return {"loss": self.tracker.result()}

    @property
    def metrics(self) -> list[keras.metrics.Metric]:
        return [self.tracker]


def fit_by_hand(loss: Callable[[tf.Tensor, tf.Tensor], tf.Tensor], kind: type[ByHand] = ByHand) -> Results:
    inner = mlp()
    model = kind(inner.inputs, inner.outputs)
    model.loss_by_hand, model.tracker = loss, keras.metrics.Mean(name="loss")
    model.compile(keras.optimizers.SGD(0.05, momentum=0.9))
    return fit(model, *digits(UNEVEN))


@case
def custom_train_step_sum() -> Results:
    return fit_by_hand(summed_by_hand)


@case
def custom_train_step_rows() -> Results:
    """One loss for each row, as Keras's guide has it: a tape adds them up."""
    return fit_by_hand(lambda y, p: 0.02 * keras.losses.sparse_categorical_crossentropy(tf.reshape(y, [-1]), p))


class Returning(ByHand):
    """Returns numbers instead of results of metrics: Keras shows those of the last batch."""

    def train_step(self, data: tuple[tf.Tensor, tf.Tensor]) -> dict[str, tf.Tensor]:
        x, y = data
        with tf.GradientTape() as tape:
            predictions = self(x, training=True)
            loss = self.loss_by_hand(y, predictions)
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        root = tf.sqrt(tf.reduce_mean(tf.square(predictions[:, 0])))
        return {"loss": loss, "mean": tf.reduce_mean(predictions), "root": root, "highest": tf.reduce_max(predictions)}


@case
def custom_train_step_returns() -> Results:
    return fit_by_hand(summed_by_hand, Returning)


def over_small_classes(y_true: tf.Tensor, y_pred: tf.Tensor) -> tf.Tensor:
    """Cross-entropy over the rows whose label is below 7, divided by their number, as one leaves out padding."""
    losses = keras.losses.sparse_categorical_crossentropy(y_true, y_pred)
    mask = tf.cast(tf.reshape(y_true, [-1]) < 7, losses.dtype)
    return tf.reduce_sum(losses * mask) / tf.reduce_sum(mask)


def accuracy_of_small_classes(y_true: tf.Tensor, y_pred: tf.Tensor) -> tf.Tensor:
    labels = tf.cast(tf.reshape(y_true, [-1]), tf.int64)
    match = tf.cast(tf.equal(labels, tf.argmax(y_pred, axis=-1)), tf.float32)
    mask = tf.cast(labels < 7, tf.float32)
    return tf.reduce_sum(match * mask) / tf.maximum(tf.reduce_sum(mask), 1.0)


@case
def loss_divided_by_a_mask() -> Results:
    return fit(compiled(loss=over_small_classes, metrics=[accuracy_of_small_classes]), *digits(UNEVEN))


@case
def custom_train_step_masked() -> Results:
    return fit_by_hand(over_small_classes)


def root_of_mean(y_true: tf.Tensor, y_pred: tf.Tensor) -> tf.Tensor:
    return tf.sqrt(tf.reduce_mean(tf.square(y_true - y_pred)))


def f_score(y_true: tf.Tensor, y_pred: tf.Tensor) -> tf.Tensor:
    """Of the batch as a whole, as many scripts compute it."""
    hits = tf.reduce_sum(y_true * tf.round(y_pred))
    precision = hits / (tf.reduce_sum(tf.round(y_pred)) + 1e-7)
    recall = hits / (tf.reduce_sum(y_true) + 1e-7)
    return 2.0 * precision * recall / (precision + recall + 1e-7)


def overlap(y_true: tf.Tensor, y_pred: tf.Tensor) -> tf.Tensor:
    """The loss of Dice, over the batch as a whole; labels are one-hot or numbers of classes."""
    if y_true.shape.rank == 1 or y_true.shape[-1] == 1:
        y_true = tf.one_hot(tf.reshape(tf.cast(y_true, tf.int32), [-1]), 10)
    both = tf.reduce_sum(y_true * y_pred)
    return 1.0 - (2.0 * both + 1.0) / (tf.reduce_sum(y_true) + tf.reduce_sum(tf.square(y_pred)) + 1.0)


@case
def loss_root_of_mean() -> Results:
    return fit(compiled(loss=root_of_mean, metrics=[root_of_mean, f_score]), *one_hot())


@case
def loss_overlap() -> Results:
    model = mlp(kernel_regularizer=keras.regularizers.L2(0.01))
    return fit(compiled(model, loss=overlap, metrics=["accuracy"]), *one_hot())


@case
def custom_train_step_overlap() -> Results:
    return fit_by_hand(overlap)


class RarelyActive(keras.regularizers.Regularizer):
    """Wants the mean activity of every unit, over the rows of a batch, to be small."""

    def __call__(self, activity: tf.Tensor) -> tf.Tensor:
        mean = tf.reduce_mean(tf.sigmoid(activity), axis=0)
        return tf.reduce_sum(0.1 * tf.math.log(0.1 / mean) + 0.9 * tf.math.log(0.9 / (1.0 - mean)))

    def get_config(self) -> dict[str, object]:
        return {}


@case
def activity_regularizer_of_means() -> Results:
    return fit(compiled(mlp(activity_regularizer=RarelyActive())), *digits(UNEVEN))


@case
def metric_of_two_models() -> Results:
    """One metric for two models: what it saw of the first is still in the first epoch of the second."""
    x, y = digits(UNEVEN)
    metric = keras.metrics.SparseCategoricalAccuracy(name="shared")
    compiled(metrics=[metric]).evaluate(x[:100], y[:100], verbose=0)
    return fit(compiled(metrics=[metric]), x, y)
