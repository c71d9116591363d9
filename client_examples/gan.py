"""A generative adversarial network (Goodfellow et al., 2014, arXiv:1406.2661) that learns to draw digits.

Two networks, two optimizers, one `train_step` of one's own.

    python gan.py
    fdt run --workers 2 gan.py
"""

import argparse

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops
from sklearn.datasets import load_digits


class GAN(keras.Model):
    """A generator that draws images and a discriminator that tells them from real ones."""

    def __init__(self, generator, discriminator, latent_size, seed):
        super().__init__()
        self.generator = generator
        self.discriminator = discriminator
        self.latent_size = latent_size
        self.seed_generator = keras.random.SeedGenerator(seed)
        self.discriminator_loss = keras.metrics.Mean(name="d_loss")
        self.generator_loss = keras.metrics.Mean(name="g_loss")

    def compile(self, d_optimizer, g_optimizer):
        super().compile()
        self.d_optimizer = d_optimizer
        self.g_optimizer = g_optimizer
        self.loss_function = keras.losses.BinaryCrossentropy(from_logits=True)

    @property
    def metrics(self):
        return [self.discriminator_loss, self.generator_loss]

    def call(self, noise):
        return self.generator(noise)

    def draw(self, num_images):
        noise = keras.random.normal((num_images, self.latent_size), seed=self.seed_generator)
        return self.generator(noise, training=True)

    def train_step(self, real):
        num_images = ops.shape(real)[0]
        ones, zeros = ops.ones((num_images, 1)), ops.zeros((num_images, 1))

        with tf.GradientTape() as tape:
            on_real = self.discriminator(real, training=True)
            on_drawn = self.discriminator(self.draw(num_images), training=True)
            d_loss = 0.5 * (self.loss_function(ones, on_real) + self.loss_function(zeros, on_drawn))
        variables = self.discriminator.trainable_variables
        self.d_optimizer.apply(tape.gradient(d_loss, variables), variables)

        with tf.GradientTape() as tape:
            g_loss = self.loss_function(ones, self.discriminator(self.draw(num_images), training=True))
        variables = self.generator.trainable_variables
        self.g_optimizer.apply(tape.gradient(g_loss, variables), variables)

        self.discriminator_loss.update_state(d_loss)
        self.generator_loss.update_state(g_loss)
        return {"d_loss": self.discriminator_loss.result(), "g_loss": self.generator_loss.result()}


def build_generator(latent_size):
    return keras.Sequential(
        [
            keras.Input((latent_size,)),
            layers.Dense(128),
            layers.LeakyReLU(0.2),
            layers.Dense(128),
            layers.LeakyReLU(0.2),
            layers.Dense(64, activation="sigmoid"),
        ],
        name="generator",
    )


def build_discriminator():
    return keras.Sequential(
        [
            keras.Input((64,)),
            layers.Dense(128),
            layers.LeakyReLU(0.2),
            layers.Dense(64),
            layers.LeakyReLU(0.2),
            layers.Dense(1),
        ],
        name="discriminator",
    )


def discriminator_accuracy(gan, images, seed):
    """The share of real and of drawn images that the discriminator recognises; 0.5 is the generator's aim."""
    noise = np.random.default_rng(seed).normal(size=(len(images), gan.latent_size)).astype("float32")
    on_real = gan.discriminator.predict(images, verbose=0)
    on_drawn = gan.discriminator.predict(gan.generator.predict(noise, verbose=0), verbose=0)
    return float(np.mean(np.concatenate([on_real > 0, on_drawn < 0])))


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=50)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--limit", type=int, help="use only so many of the images")
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args()


def main():
    arguments = parse_arguments()
    keras.utils.set_random_seed(arguments.seed)
    images = (load_digits().images / 16).astype("float32").reshape(-1, 64)[: arguments.limit]
    num_test = len(images) // 5
    x_train, x_test = images[num_test:], images[:num_test]

    gan = GAN(build_generator(16), build_discriminator(), latent_size=16, seed=arguments.seed)
    gan.compile(
        d_optimizer=keras.optimizers.Adam(2e-4, beta_1=0.5), g_optimizer=keras.optimizers.Adam(4e-4, beta_1=0.5)
    )
    history = gan.fit(x_train, batch_size=arguments.batch_size, epochs=arguments.epochs, verbose=2)

    accuracy = discriminator_accuracy(gan, x_test, arguments.seed)
    print(f"generator loss {history.history['g_loss'][-1]:.4f}")
    print(f"final loss {history.history['d_loss'][-1]:.4f}  test accuracy {accuracy:.4f}")


if __name__ == "__main__":
    main()
