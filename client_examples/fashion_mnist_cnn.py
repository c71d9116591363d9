"""Fashion-MNIST: a convolutional network on 60,000 images of clothes, 28x28 pixels.

Keras downloads the images (30 MB) on the first run and keeps them in ~/.keras.

    python fashion_mnist_cnn.py --epochs 5
    fdt run --workers 2 fashion_mnist_cnn.py --epochs 5
"""

import argparse

import keras
from keras import layers


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--limit", type=int, help="use only so many of the training images")
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args()


def load_data(limit):
    """Returns (images, labels) for training and for test; images are float32 [n, 28, 28, 1] in [0, 1]."""
    (x_train, y_train), (x_test, y_test) = keras.datasets.fashion_mnist.load_data()
    x_train = x_train[:limit, ..., None].astype("float32") / 255
    x_test = x_test[:limit, ..., None].astype("float32") / 255
    return (x_train, y_train[:limit]), (x_test, y_test[:limit])


def build_model():
    return keras.Sequential(
        [
            keras.Input((28, 28, 1)),
            layers.Conv2D(32, 3, padding="same", activation="relu"),
            layers.MaxPooling2D(),
            layers.Conv2D(64, 3, padding="same", activation="relu"),
            layers.MaxPooling2D(),
            layers.Flatten(),
            layers.Dense(128, activation="relu"),
            layers.Dropout(0.3),
            layers.Dense(10),
        ]
    )


def main():
    arguments = parse_arguments()
    keras.utils.set_random_seed(arguments.seed)
    (x_train, y_train), (x_test, y_test) = load_data(arguments.limit)

    model = build_model()
    model.compile(
        optimizer="adam",
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    history = model.fit(
        x_train,
        y_train,
        batch_size=arguments.batch_size,
        epochs=arguments.epochs,
        validation_split=0.1,
        callbacks=[keras.callbacks.ReduceLROnPlateau(patience=2)],
        verbose=2,
    )

    _, accuracy = model.evaluate(x_test, y_test, verbose=0)
    print(f"final loss {history.history['loss'][-1]:.4f}  test accuracy {accuracy:.4f}")


if __name__ == "__main__":
    main()
