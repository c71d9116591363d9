"""A training loop by hand: gradient tape, clipped gradients, metrics that the loop resets and reads; on scikit-learn's digits.

python training_loop.py
fdt run --workers 2 training_loop.py
"""

import argparse
import time

import keras
import tensorflow as tf
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--clip", type=float, default=1.0, help="largest global norm of a gradient")
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args()


def load_data(batch_size):
    """Returns data sets of (image, label) batches for training and testing."""
    images, labels = load_digits(return_X_y=True)
    images = (images / 16).astype("float32")
    x_train, x_test, y_train, y_test = train_test_split(images, labels, test_size=0.2, random_state=0)
    training = tf.data.Dataset.from_tensor_slices((x_train, y_train)).shuffle(len(x_train), seed=2).batch(batch_size)
    return training, tf.data.Dataset.from_tensor_slices((x_test, y_test)).batch(256)


def build_model():
    return keras.Sequential(
        [
            keras.Input((64,)),
            keras.layers.Dense(256, activation="relu"),
            keras.layers.Dense(128, activation="relu"),
            keras.layers.Dense(10),
        ]
    )


def main():
    arguments = parse_arguments()
    keras.utils.set_random_seed(arguments.seed)
    training, testing = load_data(arguments.batch_size)

    model = build_model()
    optimizer = keras.optimizers.Adam(1e-3)
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    mean_loss = keras.metrics.Mean()
    accuracy = keras.metrics.SparseCategoricalAccuracy()

    @tf.function
    def train_step(images, labels):
        with tf.GradientTape() as tape:
            loss = loss_of(labels, model(images, training=True))
        gradients = tape.gradient(loss, model.trainable_variables)
        gradients, norm = tf.clip_by_global_norm(gradients, arguments.clip)
        optimizer.apply(gradients, model.trainable_variables)
        mean_loss.update_state(loss)
        return norm

    @tf.function
    def test_step(images, labels):
        accuracy.update_state(labels, model(images, training=False))

    start = time.perf_counter()
    for epoch in range(arguments.epochs):
        mean_loss.reset_state()
        norms = [train_step(images, labels) for images, labels in training]
        print(f"epoch {epoch + 1}: loss {mean_loss.result():.4f}, mean norm {tf.reduce_mean(norms):.4f}")
    seconds = time.perf_counter() - start

    for images, labels in testing:
        test_step(images, labels)
    print(f"trained in {seconds:.2f} s")
    print(f"final loss {mean_loss.result():.4f}  test accuracy {accuracy.result():.4f}")


if __name__ == "__main__":
    main()
