"""Segmentation by a U-Net (Ronneberger et al., 2015, arXiv:1505.04597) in a training loop of its own, on made images.

Images hold ellipses and a background of noise; which pixels belong to an ellipse is to be found. The loss is cross-entropy
and Dice (over the whole batch), so it is no mean over rows.

    python unet.py
    fdt run --workers 4 unet.py
"""

import argparse

import keras
import numpy as np
import tensorflow as tf
from keras import layers


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--images", type=int, default=1024)
    parser.add_argument("--size", type=int, default=128, help="pixels of an image, each way")
    parser.add_argument("--width", type=int, default=32, help="filters of the first level")
    parser.add_argument("--levels", type=int, default=4)
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args()


def make_images(number, size, seed):
    """Returns images and masks, float32 [number, size, size, 1]."""
    random = np.random.default_rng(seed)
    rows, columns = np.mgrid[:size, :size] / size
    masks = np.zeros((number, size, size), bool)
    for mask in masks:
        for _ in range(random.integers(1, 5)):
            (row, column), (high, wide) = random.uniform(0.1, 0.9, 2), random.uniform(0.05, 0.25, 2)
            mask |= ((rows - row) / high) ** 2 + ((columns - column) / wide) ** 2 < 1
    images = masks * random.uniform(0.3, 1, (number, 1, 1)) + 0.5 * random.standard_normal(masks.shape)
    return images[..., None].astype("float32"), masks[..., None].astype("float32")


def convolutions(x, filters):
    for _ in range(2):
        x = layers.Conv2D(filters, 3, padding="same", use_bias=False)(x)
        x = layers.ReLU()(layers.BatchNormalization()(x))
    return x


def build_model(arguments):
    inputs = keras.Input((arguments.size, arguments.size, 1))
    x, skipped = inputs, []
    for level in range(arguments.levels):
        x = convolutions(x, arguments.width << level)
        skipped.append(x)
        x = layers.MaxPooling2D()(x)
    x = convolutions(x, arguments.width << arguments.levels)
    for level in reversed(range(arguments.levels)):
        x = layers.Conv2DTranspose(arguments.width << level, 2, strides=2)(x)
        x = convolutions(layers.Concatenate()([x, skipped[level]]), arguments.width << level)
    return keras.Model(inputs, layers.Conv2D(1, 1)(x))


def loss_of(masks, logits):
    """Cross-entropy, and one minus the Dice coefficient of the batch."""
    entropy = tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(masks, logits))
    found = tf.sigmoid(logits)
    dice = (2 * tf.reduce_sum(found * masks) + 1) / (tf.reduce_sum(found) + tf.reduce_sum(masks) + 1)
    return entropy + 1 - dice


def main():
    arguments = parse_arguments()
    keras.utils.set_random_seed(arguments.seed)
    images, masks = make_images(arguments.images, arguments.size, seed=0)
    test_images, test_masks = make_images(max(1, arguments.images // 8), arguments.size, seed=1)
    model = build_model(arguments)
    optimizer = keras.optimizers.Adam(arguments.learning_rate)
    mean_loss = keras.metrics.Mean()

    @tf.function
    def train_step(x, y):
        with tf.GradientTape() as tape:
            loss = loss_of(y, model(x, training=True))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        mean_loss.update_state(loss)
        return loss

    data = tf.data.Dataset.from_tensor_slices((images, masks)).shuffle(arguments.images, seed=0)
    for epoch in range(arguments.epochs):
        mean_loss.reset_state()
        for x, y in data.batch(arguments.batch_size):
            train_step(x, y)
        print(f"epoch {epoch + 1}: loss {float(mean_loss.result()):.4f}")

    found = model.predict(test_images, batch_size=arguments.batch_size, verbose=0) > 0
    print(f"final loss {float(mean_loss.result()):.4f}  test accuracy {np.mean(found == (test_masks > 0)):.4f}")


if __name__ == "__main__":
    main()
