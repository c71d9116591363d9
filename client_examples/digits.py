"""Handwritten digits: a small dense network on scikit-learn's 1,797 images of 8x8 pixels.

The data come with scikit-learn, so this runs anywhere:

    python digits.py
    fdt run --workers 2 digits.py
"""

import argparse
import time

import keras
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--limit", type=int, help="use only so many of the images")
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args()


def load_data(limit):
    """Returns train and test images, float32 in [0, 1], and their labels."""
    images, labels = load_digits(return_X_y=True)
    images = (images / 16).astype("float32")[:limit]
    return train_test_split(images, labels[:limit], test_size=0.2, random_state=0)


def build_model():
    return keras.Sequential(
        [
            keras.Input((64,)),
            keras.layers.Dense(256, activation="relu"),
            keras.layers.Dense(128, activation="relu"),
            keras.layers.Dense(10, activation="softmax"),
        ]
    )


def main():
    arguments = parse_arguments()
    keras.utils.set_random_seed(arguments.seed)
    x_train, x_test, y_train, y_test = load_data(arguments.limit)

    model = build_model()
    model.compile(optimizer=keras.optimizers.Adam(1e-3), loss="sparse_categorical_crossentropy", metrics=["accuracy"])
    start = time.perf_counter()
    history = model.fit(
        x_train,
        y_train,
        batch_size=arguments.batch_size,
        epochs=arguments.epochs,
        validation_split=0.1,
        verbose=2,
    )
    seconds = time.perf_counter() - start

    _, accuracy = model.evaluate(x_test, y_test, verbose=0)
    print(f"trained in {seconds:.2f} s")
    print(f"final loss {history.history['loss'][-1]:.4f}  test accuracy {accuracy:.4f}")


if __name__ == "__main__":
    main()
