"""Small models with the layers of Keras, each with its data: their own `train_step` is what is divided."""

import functools
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

CLASSES = 4
# So many normalisations magnify what is rounded until nothing can be compared.
IN_DOUBLE_PRECISION = frozenset({"resnet_34"})
Build = Callable[[], keras.Model]
MODELS: dict[str, tuple[tuple[int, ...], Build]] = {}


def model(*shape: int) -> Callable[[Build], Build]:
    """Registers a model whose samples have this shape."""

    def register(build: Build) -> Build:
        MODELS[build.__name__] = shape, build
        return build

    return register


def batches(shape: tuple[int, ...], rows: int, count: int) -> list[tuple[Any, Any]]:
    random = np.random.default_rng(5)
    return [
        (
            random.normal(size=(rows, *shape)).astype(keras.config.floatx()),
            random.integers(0, CLASSES, rows).astype("int64"),
        )
        for _ in range(count)
    ]


def choose_precision(name: str, request: pytest.FixtureRequest) -> None:
    """Sets the precision that a model needs, until a test's end."""
    if name in IN_DOUBLE_PRECISION:
        # Layers go by the policy, which keeps the precision that was set when the first layer was made; losses by the other.
        request.addfinalizer(functools.partial(keras.config.set_floatx, keras.config.floatx()))
        request.addfinalizer(functools.partial(keras.config.set_dtype_policy, keras.config.dtype_policy()))
        keras.config.set_floatx("float64")
        keras.config.set_dtype_policy("float64")


def build_for(net: keras.Model, batch: Any) -> None:
    """Makes all variables of a model and of its optimizers."""
    if isinstance(net, OwnStep):
        for optimizer, variables in net.updated:
            optimizer.build(variables)
    else:
        net._symbolic_build(data_batch=batch)
        net.optimizer.build(net.trainable_variables)


def _compiled(net: keras.Model, optimizer: Any = None) -> keras.Model:
    net.compile(
        optimizer or keras.optimizers.SGD(0.05),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
        weighted_metrics=[keras.metrics.SparseTopKCategoricalAccuracy(2)],
    )
    return net


@model(8)
def dense_with_dropout() -> keras.Model:
    body = [layers.Dense(16, "relu", kernel_regularizer="l2"), layers.Dropout(0.3), layers.Dense(CLASSES)]
    return _compiled(keras.Sequential([layers.Input((8,)), *body]), keras.optimizers.Adam(1e-3, clipnorm=1.0))


@model(8)
def batch_normalization() -> keras.Model:
    body = [layers.Dense(16, use_bias=False), layers.BatchNormalization(), layers.ReLU(), layers.Dense(CLASSES)]
    return _compiled(keras.Sequential([layers.Input((8,)), *body]))


@model(12, 12, 3)
def convolutional() -> keras.Model:
    given = layers.Input((12, 12, 3))
    x = layers.Conv2D(8, 3, padding="same", use_bias=False)(given)
    x = layers.ReLU()(layers.BatchNormalization()(x))
    x = layers.MaxPooling2D()(x)
    x = layers.add([x, layers.DepthwiseConv2D(3, padding="same")(x)])
    x = layers.GroupNormalization(2)(layers.SeparableConv2D(8, 3, strides=2)(x))
    x = layers.SpatialDropout2D(0.2)(x)
    return _compiled(keras.Model(given, layers.Dense(CLASSES)(layers.GlobalAveragePooling2D()(x))))


@model(16, 16, 2)
def u_net() -> keras.Model:
    given = layers.Input((16, 16, 2))
    a = layers.Conv2D(4, 3, padding="same", activation="relu")(given)
    b = layers.Conv2D(8, 3, padding="same", activation="relu")(layers.MaxPooling2D()(a))
    up = layers.Concatenate()([a, layers.Conv2DTranspose(4, 2, strides=2)(b)])
    up = layers.AveragePooling2D(2)(layers.UpSampling2D(interpolation="bilinear")(up))
    return _compiled(keras.Model(given, layers.Dense(CLASSES)(layers.Flatten()(up))))


@model(6, 6, 6, 2)
def volumes() -> keras.Model:
    body = [layers.Conv3D(4, 3, activation="relu"), layers.MaxPooling3D(), layers.Flatten(), layers.Dense(CLASSES)]
    return _compiled(keras.Sequential([layers.Input((6, 6, 6, 2)), *body]))


@model(10, 3)
def sequence_convolutions() -> keras.Model:
    body = [
        layers.Conv1D(6, 3, padding="causal", activation="relu"),
        layers.MaxPooling1D(),
        layers.GlobalMaxPooling1D(),
    ]
    return _compiled(keras.Sequential([layers.Input((10, 3)), *body, layers.Dense(CLASSES)]))


@model(6, 8)
def transformer() -> keras.Model:
    given = layers.Input((6, 8))
    x = layers.LayerNormalization()(given + layers.MultiHeadAttention(2, 4, dropout=0.1, use_bias=False)(given, given))
    x = layers.LayerNormalization()(x + layers.Dense(8)(layers.Dense(16, "gelu")(x)))
    x = x + layers.MultiHeadAttention(2, 4, use_bias=False)(x, x, use_causal_mask=True)
    return _compiled(
        keras.Model(given, layers.Dense(CLASSES)(layers.GlobalAveragePooling1D()(x))), keras.optimizers.AdamW()
    )


@model(5, 8)
def recurrent() -> keras.Model:
    body = [
        layers.LSTM(6, return_sequences=True, dropout=0.2),
        layers.Bidirectional(layers.GRU(5)),
        layers.Dense(CLASSES),
    ]
    return _compiled(keras.Sequential([layers.Input((5, 8)), *body]))


@model(5, 8)
def masked_backwards() -> keras.Model:
    body = [layers.Masking(), layers.SimpleRNN(6, go_backwards=True), layers.Dense(CLASSES)]
    return _compiled(keras.Sequential([layers.Input((5, 8)), *body]))


@model(7)
def words() -> keras.Model:
    given = layers.Input((7,))
    numbers = layers.Lambda(lambda x: keras.ops.cast(keras.ops.abs(x) * 4, "int32") % 11)(given)
    x = layers.GlobalAveragePooling1D()(layers.Embedding(11, 6)(numbers))
    return _compiled(keras.Model(given, layers.Dense(CLASSES)(x)), keras.optimizers.Adam(1e-3))


@model(8)
def spectral() -> keras.Model:
    body = [layers.SpectralNormalization(layers.Dense(16, "relu")), layers.UnitNormalization(), layers.Dense(CLASSES)]
    return _compiled(keras.Sequential([layers.Input((8,)), *body]))


@model(16, 16, 3)
def resnet_34() -> keras.Model:
    def convolved(x: Any, filters: int, strides: int = 1) -> Any:
        return layers.BatchNormalization()(layers.Conv2D(filters, 3, strides, padding="same", use_bias=False)(x))

    given = layers.Input((16, 16, 3))
    x = layers.ReLU()(convolved(given, 4))
    for stage, (filters, blocks) in enumerate([(4, 3), (6, 4), (8, 6), (10, 3)]):
        for block in range(blocks):
            strides = 2 if stage and not block else 1
            short = convolved(x, filters, strides) if strides == 2 or x.shape[-1] != filters else x
            x = layers.ReLU()(short + convolved(layers.ReLU()(convolved(x, filters, strides)), filters))
    net = keras.Model(given, layers.Dense(CLASSES)(layers.GlobalAveragePooling2D()(x)))
    # TensorFlow looks for the largest of 32-bit numbers only.
    net.compile(keras.optimizers.SGD(0.05), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return net


@model(8, 8, 3)
def vision_transformer() -> keras.Model:
    given = layers.Input((8, 8, 3))
    x = layers.Reshape((16, 8))(layers.Conv2D(8, 2, strides=2)(given))
    x = x + layers.Embedding(16, 8)(keras.ops.arange(16))
    for _ in range(2):
        normal = layers.LayerNormalization()(x)
        x = x + layers.MultiHeadAttention(2, 4, dropout=0.1, use_bias=False)(normal, normal)
        x = x + layers.Dense(8)(layers.Dropout(0.1)(layers.Dense(16, "gelu")(layers.LayerNormalization()(x))))
    pooled = layers.LayerNormalization()(x)[:, 0]
    return _compiled(keras.Model(given, layers.Dense(CLASSES)(pooled)), keras.optimizers.AdamW())


@model(6, 8)
def transformer_decoder() -> keras.Model:
    given = layers.Input((6, 8))
    memory, x = given[:, :3], given[:, 3:]
    x = layers.LayerNormalization()(x + layers.MultiHeadAttention(2, 4, use_bias=False)(x, x, use_causal_mask=True))
    x = layers.LayerNormalization()(x + layers.MultiHeadAttention(2, 4, use_bias=False)(x, memory))
    x = layers.LayerNormalization()(x + layers.Dense(8)(layers.Dense(16, "relu")(x)))
    return _compiled(keras.Model(given, layers.Dense(CLASSES)(layers.Flatten()(x))), keras.optimizers.Adam(1e-3))


@model(7)
def text() -> keras.Model:
    given = layers.Input((7,))
    numbers = layers.Lambda(lambda x: keras.ops.cast(keras.ops.abs(x) * 4, "int32") % 11)(given)
    x = layers.Embedding(11, 6, mask_zero=True)(numbers)
    x = layers.Bidirectional(layers.LSTM(5, return_sequences=True))(x)
    x = layers.Dropout(0.2)(layers.GRU(4)(x))
    return _compiled(keras.Model(given, layers.Dense(CLASSES)(x)), keras.optimizers.Adam(1e-3))


@model(7)
def recommender() -> keras.Model:
    """As DLRM is built: tables of many entries, dense features, and products of all pairs."""
    given = layers.Input((7,))
    numbers = layers.Lambda(lambda x: keras.ops.cast(keras.ops.abs(x[:, :4]) * 9, "int32") % 23)(given)
    rows = [layers.Embedding(23, 6)(numbers[:, place]) for place in range(4)]
    features = layers.Dense(6, "relu")(layers.Dense(9, "relu")(given[:, 4:]))
    together = keras.ops.stack([features, *rows], 1)
    pairs = layers.Flatten()(keras.ops.matmul(together, keras.ops.transpose(together, (0, 2, 1))))
    return _compiled(
        keras.Model(given, layers.Dense(CLASSES)(layers.Concatenate()([features, pairs]))), keras.optimizers.Adam(1e-3)
    )


class OwnStep(keras.Model):
    """A model that is trained by hand.

    Attributes:
        updated: What each optimizer updates.
    """

    updated: list[tuple[Any, list[Any]]]

    def update(self, optimizer: Any, tape: tf.GradientTape, loss: tf.Tensor, variables: list[Any]) -> None:
        optimizer.apply(tape.gradient(loss, variables), variables)


class Autoencoder(OwnStep):
    def __init__(self) -> None:
        super().__init__()
        self.seed = keras.random.SeedGenerator(3)
        self.encoder = keras.Sequential([layers.Input((8,)), layers.Dense(12, "relu"), layers.Dense(6)])
        self.decoder = keras.Sequential([layers.Input((3,)), layers.Dense(12, "relu"), layers.Dense(8)])
        self.updated = [(keras.optimizers.Adam(1e-3), self.trainable_variables)]
        self.mean = keras.metrics.Mean()

    def train_step(self, data: Any) -> dict[str, Any]:
        x, _ = data
        with tf.GradientTape() as tape:
            mean, log_variance = tf.split(self.encoder(x), 2, 1)
            drawn = keras.random.normal(tf.shape(mean), seed=self.seed)
            again = self.decoder(mean + tf.exp(0.5 * log_variance) * drawn)
            apart = tf.reduce_mean(tf.reduce_sum((x - again) ** 2, 1))
            divergence = -0.5 * tf.reduce_mean(1 + log_variance - mean**2 - tf.exp(log_variance))
            loss = apart + divergence
        self.update(self.updated[0][0], tape, loss, self.trainable_variables)
        self.mean.update_state(apart)
        return {"loss": loss, "apart": self.mean.result()}


@model(8)
def variational_autoencoder() -> keras.Model:
    return Autoencoder()


class Adversarial(OwnStep):
    """WGAN-GP: noise and mixtures are drawn for each row, and the critic's gradient is itself differentiated."""

    def __init__(self) -> None:
        super().__init__()
        self.seed = keras.random.SeedGenerator(3)
        self.generator = keras.Sequential([layers.Input((3,)), layers.Dense(12, "relu"), layers.Dense(8)])
        self.critic = keras.Sequential([layers.Input((8,)), layers.Dense(12, "tanh"), layers.Dense(1)])
        self.updated = [
            (keras.optimizers.Adam(1e-3), self.critic.trainable_variables),
            (keras.optimizers.Adam(1e-3), self.generator.trainable_variables),
        ]

    def train_step(self, data: Any) -> dict[str, Any]:
        x, _ = data
        rows = tf.shape(x)[0]
        for_critic, for_generator = self.updated
        with tf.GradientTape() as tape:
            made = self.generator(keras.random.normal((rows, 3), seed=self.seed))
            part = keras.random.uniform((rows, 1), seed=self.seed)
            between = part * x + (1 - part) * made
            with tf.GradientTape() as inner:
                inner.watch(between)
                judged = self.critic(between)
            slope = tf.sqrt(tf.reduce_sum(inner.gradient(judged, between) ** 2, 1) + 1e-6)
            critic_loss = tf.reduce_mean(self.critic(made)) - tf.reduce_mean(self.critic(x))
            critic_loss += 10 * tf.reduce_mean((slope - 1) ** 2)
        self.update(for_critic[0], tape, critic_loss, for_critic[1])
        with tf.GradientTape() as tape:
            made = self.generator(keras.random.normal((rows, 3), seed=self.seed))
            generator_loss = -tf.reduce_mean(self.critic(made))
        self.update(for_generator[0], tape, generator_loss, for_generator[1])
        return {"critic": critic_loss, "generator": generator_loss}


@model(8)
def adversarial() -> keras.Model:
    return Adversarial()


class Contrastive(OwnStep):
    """As SimCLR: two views of each sample, and every pair of the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.seed = keras.random.SeedGenerator(3)
        self.encoder = keras.Sequential([layers.Input((8,)), layers.Dense(64, "relu"), layers.Dense(64, "relu")])
        self.head = keras.Sequential([layers.Input((64,)), layers.Dense(32, "relu"), layers.Dense(8)])
        self.updated = [(keras.optimizers.Adam(1e-3), self.trainable_variables)]

    def train_step(self, data: Any) -> dict[str, Any]:
        x, _ = data
        with tf.GradientTape() as tape:
            views = [x + 0.1 * keras.random.normal(tf.shape(x), seed=self.seed) for _ in range(2)]
            one, other = (tf.math.l2_normalize(self.head(self.encoder(view)), 1) for view in views)
            alike = tf.matmul(one, other, transpose_b=True) / 0.1
            places = tf.range(tf.shape(x)[0])
            losses = [
                tf.nn.sparse_softmax_cross_entropy_with_logits(labels=places, logits=logits)
                for logits in (alike, tf.transpose(alike))
            ]
            loss = tf.reduce_mean(losses[0] + losses[1])
        self.update(self.updated[0][0], tape, loss, self.trainable_variables)
        return {"loss": loss}


@model(8)
def contrastive() -> keras.Model:
    return Contrastive()


class Playing(OwnStep):
    """As Keras's DCGAN: a discriminator and a generator, each with an optimizer."""

    def __init__(self) -> None:
        super().__init__()
        self.seed = keras.random.SeedGenerator(3)
        self.discriminator = keras.Sequential(
            [layers.Input((8,)), layers.Dense(32), layers.LeakyReLU(0.2), layers.Dropout(0.2), layers.Dense(1)]
        )
        self.generator = keras.Sequential(
            [
                layers.Input((6,)),
                layers.Dense(32, use_bias=False),
                layers.BatchNormalization(),
                layers.ReLU(),
                layers.Dense(8, "tanh"),
            ]
        )
        self.updated = [
            (keras.optimizers.Adam(1e-3), self.discriminator.trainable_variables),
            (keras.optimizers.Adam(1e-3), self.generator.trainable_variables),
        ]

    def train_step(self, data: Any) -> dict[str, Any]:
        x, _ = data
        rows = tf.shape(x)[0]
        across = keras.losses.BinaryCrossentropy(from_logits=True)
        made = self.generator(keras.random.normal((rows, 6), seed=self.seed), training=True)
        labels = tf.concat([tf.ones((rows, 1)), tf.zeros((rows, 1))], 0)
        labels += 0.05 * keras.random.uniform((2 * rows, 1), seed=self.seed)
        with tf.GradientTape() as tape:
            told = self.discriminator(tf.concat([made, x], 0), training=True)
            first = across(labels, told)
        self.update(self.updated[0][0], tape, first, self.discriminator.trainable_variables)
        with tf.GradientTape() as tape:
            made = self.generator(keras.random.normal((rows, 6), seed=self.seed), training=True)
            second = across(tf.zeros((rows, 1)), self.discriminator(made, training=True))
        self.update(self.updated[1][0], tape, second, self.generator.trainable_variables)
        return {"discriminator": first, "generator": second}


@model(8)
def generative_adversarial() -> keras.Model:
    return Playing()
