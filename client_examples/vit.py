"""A vision transformer (Dosovitskiy et al., 2021, arXiv:2010.11929) on made images: which of eight gratings is it?

By default ViT-Ti/8 on 64x64 pixels, 5.4 million parameters. The images are made as they are needed (a `PyDataset`):

    python vit.py
    fdt run --workers 4 vit.py
"""

import argparse

import keras
import numpy as np
from keras import layers, ops

NUM_CLASSES = 8


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--steps", type=int, default=100, help="of an epoch")
    parser.add_argument("--size", type=int, default=64, help="pixels of an image, each way")
    parser.add_argument("--patch", type=int, default=8)
    parser.add_argument("--width", type=int, default=192)
    parser.add_argument("--depth", type=int, default=12)
    parser.add_argument("--heads", type=int, default=3)
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args()


class Gratings(keras.utils.PyDataset):
    """Stripes of eight directions, with any phase and much noise; batch i is the same in every epoch."""

    def __init__(self, num_batches, batch_size, size, seed):
        super().__init__()
        self.length, self.batch_size, self.size, self.seed = num_batches, batch_size, size, seed

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        random = np.random.default_rng((self.seed, index))
        labels = random.integers(0, NUM_CLASSES, self.batch_size)
        angles = (labels * np.pi / NUM_CLASSES)[:, None, None]
        rows, columns = np.mgrid[: self.size, : self.size] / self.size
        phases = random.uniform(0, 2 * np.pi, (self.batch_size, 1, 1))
        waves = np.sin(2 * np.pi * 5 * (columns * np.cos(angles) + rows * np.sin(angles)) + phases)
        noise = random.standard_normal(waves.shape)
        return (waves + noise)[..., None].astype("float32"), labels


class Patches(layers.Layer):
    """Cuts images into patches, projects them, and adds a class token and positions."""

    def __init__(self, size, patch, width):
        super().__init__()
        self.project = layers.Conv2D(width, patch, strides=patch)
        self.num_patches, self.width = (size // patch) ** 2, width

    def build(self, shape):
        self.token = self.add_weight(shape=(1, 1, self.width), initializer="zeros", name="token")
        positions = (1, self.num_patches + 1, self.width)
        self.positions = self.add_weight(
            shape=positions, initializer=keras.initializers.RandomNormal(stddev=0.02), name="positions"
        )

    def call(self, images):
        patches = ops.reshape(self.project(images), (-1, self.num_patches, self.width))
        token = ops.broadcast_to(self.token, (ops.shape(patches)[0], 1, self.width))
        return ops.concatenate([token, patches], axis=1) + self.positions


def block(x, width, heads):
    """Attention, then two dense layers; each on what is normalised, and added to what came in."""
    normal = layers.LayerNormalization(epsilon=1e-6)(x)
    x = x + layers.MultiHeadAttention(heads, width // heads)(normal, normal)
    normal = layers.LayerNormalization(epsilon=1e-6)(x)
    hidden = layers.Dropout(0.1)(layers.Dense(4 * width, activation="gelu")(normal))
    return x + layers.Dense(width)(hidden)


def build_model(arguments):
    inputs = keras.Input((arguments.size, arguments.size, 1))
    x = Patches(arguments.size, arguments.patch, arguments.width)(inputs)
    for _ in range(arguments.depth):
        x = block(x, arguments.width, arguments.heads)
    token = layers.LayerNormalization(epsilon=1e-6)(x)[:, 0]
    return keras.Model(inputs, layers.Dense(NUM_CLASSES)(token))


def main():
    arguments = parse_arguments()
    keras.utils.set_random_seed(arguments.seed)
    num_steps = arguments.epochs * arguments.steps
    rate = keras.optimizers.schedules.CosineDecay(
        1e-6, num_steps - num_steps // 10, warmup_target=arguments.learning_rate, warmup_steps=num_steps // 10
    )
    model = build_model(arguments)
    model.compile(
        optimizer=keras.optimizers.AdamW(rate, weight_decay=0.05, global_clipnorm=1.0),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    train = Gratings(arguments.steps, arguments.batch_size, arguments.size, seed=0)
    test = Gratings(max(1, arguments.steps // 10), arguments.batch_size, arguments.size, seed=1)
    history = model.fit(train, epochs=arguments.epochs, shuffle=False, verbose=2)
    _, accuracy = model.evaluate(test, verbose=0)
    print(f"final loss {history.history['loss'][-1]:.4f}  test accuracy {accuracy:.4f}")


if __name__ == "__main__":
    main()
