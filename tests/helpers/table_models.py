"""Models with a table so large that workers get the rows that a batch uses, and what each does with it."""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

NUM_ROWS, WIDTH = 600, 64
# Words come several times in a batch, and in a row of it.
WORDS = np.random.default_rng(2).zipf(1.3, (8, 6)).clip(0, NUM_ROWS - 1).astype("int32")
LABELS = np.random.default_rng(1).integers(0, 3, 8).astype("int32")
_LOSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def embedding(optimizer: Any) -> keras.Model:
    """Keras's own layer: a gather behind a read of the variable."""
    keras.utils.set_random_seed(3)
    layers = [keras.Input((6,), dtype="int32"), keras.layers.Embedding(NUM_ROWS, WIDTH), keras.layers.Flatten()]
    model = keras.Sequential([*layers, keras.layers.Dense(3)])
    model.compile(optimizer, _LOSS)
    return model


def two_lookups(optimizer: Any) -> keras.Model:
    """One table, looked up twice with row numbers of different shapes, one of them computed."""
    keras.utils.set_random_seed(3)
    words, table = keras.Input((6,), dtype="int32"), keras.layers.Embedding(NUM_ROWS, WIDTH)
    first = keras.layers.Flatten()(table(words))
    second = keras.layers.GlobalAveragePooling1D()(table(keras.ops.mod(words[:, :2] * 7, NUM_ROWS)))
    model = keras.Model(words, keras.layers.Dense(3)(keras.layers.Concatenate()([first, second])))
    model.compile(optimizer, _LOSS)
    return model


class _Lookup(keras.layers.Layer):
    """Looks rows up by a function of TensorFlow's."""

    def __init__(self, function: Callable[[tf.Variable, tf.Tensor], tf.Tensor]):
        super().__init__()
        self._function = function

    def build(self, _: Any) -> None:
        self.table = self.add_weight(shape=(NUM_ROWS, WIDTH), initializer="uniform", name="table")

    def call(self, words: tf.Tensor) -> tf.Tensor:
        return self._function(self.table.value, words)


def _by(function: Callable[[tf.Variable, tf.Tensor], tf.Tensor], width: int) -> Callable[[Any], keras.Model]:
    def build(optimizer: Any) -> keras.Model:
        keras.utils.set_random_seed(3)
        words = keras.Input((6,), dtype="int32")
        found = keras.layers.Reshape((width,))(_Lookup(function)(words))
        model = keras.Model(words, keras.layers.Dense(3)(found))
        model.compile(optimizer, _LOSS)
        return model

    return build


def _combined(table: tf.Variable, words: tf.Tensor) -> tf.Tensor:
    # Rows with different numbers of words, some without.
    chosen = tf.sparse.from_dense(words - words[:1])
    found = tf.nn.safe_embedding_lookup_sparse([table], chosen, combiner="mean", max_norm=0.5)
    return tf.ensure_shape(found, [None, WIDTH])


def _sampled(table: tf.Variable, words: tf.Tensor) -> tf.Tensor:
    drawn = tf.random.stateless_uniform([4], [1, 2], 0, NUM_ROWS, tf.int64)
    near = tf.nn.embedding_lookup(table, words)
    return tf.matmul(near, tf.nn.embedding_lookup(table, drawn), transpose_b=True)


def tied(optimizer: Any) -> keras.Model:
    """The table is also the matrix of a product."""
    keras.utils.set_random_seed(3)
    words = keras.Input((6,), dtype="int32")
    table = keras.layers.Embedding(NUM_ROWS, WIDTH)
    found = keras.layers.GlobalAveragePooling1D()(table(words))
    scores = keras.layers.Lambda(lambda x: tf.matmul(x, table.embeddings.value, transpose_b=True))(found)
    model = keras.Model(words, scores)
    model.compile(optimizer, _LOSS)
    return model


BY_ROWS: dict[str, Callable[[Any], keras.Model]] = {
    "embedding": embedding,
    "two lookups": two_lookups,
    "clipped": _by(lambda table, words: tf.nn.embedding_lookup(table, words, max_norm=0.5), 6 * WIDTH),
    "combined": _by(_combined, WIDTH),
    "sampled": _by(_sampled, 24),
}


class RowsOfAdagrad(keras.optimizers.Optimizer):
    """Adagrad by TensorFlow's operation for rows, as Keras 2 and TensorFlow 1 use it."""

    def build(self, variables: list[Any]) -> None:
        super().build(variables)
        self._sums = [self.add_variable_from_reference(v, name="sum", initializer="ones") for v in variables]

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        kept = self._sums[self._get_variable_index(variable)]
        given = {"var": variable.handle, "accum": kept.value.handle, "lr": learning_rate, "epsilon": 1e-7}
        if isinstance(gradient, tf.IndexedSlices):
            rows, places = tf.unique(gradient.indices)
            sums = tf.math.unsorted_segment_sum(gradient.values, places, tf.size(rows))
            tf.raw_ops.ResourceSparseApplyAdagradV2(**given, grad=sums, indices=rows)
        else:
            tf.raw_ops.ResourceApplyAdagradV2(**given, grad=gradient)


OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "sgd": lambda: keras.optimizers.SGD(0.1),
    "momentum": lambda: keras.optimizers.SGD(0.1, momentum=0.9),
    "adam": lambda: keras.optimizers.Adam(0.01),
    "adagrad": lambda: keras.optimizers.Adagrad(0.1),
    "rows of adagrad": lambda: RowsOfAdagrad(0.1),
}
