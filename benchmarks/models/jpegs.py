"""Fits a small convolutional net on a folder of JPEGs, and tells what its own process spent on it.

    python benchmarks/models/jpegs.py FOLDER --make 5000    # makes the folder, and ends
    python benchmarks/models/jpegs.py FOLDER

Images a second and this process's core-seconds an image are those of all epochs but the first.
"""

import argparse
import json
import time
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

CLASSES, SIDE = 10, 224


def make(folder: Path, number: int) -> None:
    """Makes smooth images, which compress as photographs do."""
    generator = np.random.default_rng(0)
    for i in range(number):
        coarse = generator.integers(0, 256, [1, 12, 12, 3]).astype(np.float32)
        fine = tf.image.resize(coarse, [SIDE, SIDE], "bicubic")[0] + generator.normal(0, 6, [SIDE, SIDE, 3])
        path = folder / str(i % CLASSES) / f"{i:06}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(tf.io.encode_jpeg(tf.cast(tf.clip_by_value(fine, 0, 255), tf.uint8)).numpy())


def read(path: tf.Tensor, label: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Reads an image, for scripts that read them by hand."""
    image = tf.io.decode_image(tf.io.read_file(path), 3, expand_animations=False)
    return tf.image.resize(image, [SIDE, SIDE]), label


def build() -> keras.Model:
    """Returns a net that costs little beside reading an image."""
    return keras.Sequential(
        [
            keras.Input((SIDE, SIDE, 3)),
            keras.layers.Rescaling(1 / 255),
            keras.layers.AveragePooling2D(8),
            keras.layers.Flatten(),
            keras.layers.Dense(CLASSES),
        ]
    )


class Clock(keras.callbacks.Callback):  # type: ignore[misc]
    """Notes time and this process's core-seconds at the end of each epoch."""

    def __init__(self) -> None:
        super().__init__()
        self.ends: list[tuple[float, float]] = []

    def on_epoch_end(self, epoch: int, logs: object = None) -> None:
        self.ends.append((time.perf_counter(), time.process_time()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--make", type=int, help="how many images to make")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--epochs", type=int, default=3)
    arguments = parser.parse_args()
    if arguments.make:
        make(arguments.folder, arguments.make)
        return
    keras.utils.set_random_seed(1)
    images = keras.utils.image_dataset_from_directory(
        arguments.folder, image_size=(SIDE, SIDE), batch_size=arguments.batch, seed=1, verbose=False
    )
    number = len(list(arguments.folder.glob("*/*.jpg")))
    model = build()
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    clock = Clock()
    losses = model.fit(images, epochs=arguments.epochs, callbacks=[clock], verbose=0).history["loss"]
    (began_s, began_cores_s), (ended_s, ended_cores_s) = clock.ends[0], clock.ends[-1]
    read = number * (arguments.epochs - 1)
    result = {
        "images_per_s": read / (ended_s - began_s),
        "script_core_ms": 1e3 * (ended_cores_s - began_cores_s) / read,
        "images": number * arguments.epochs,
        "losses": losses,
    }
    print("RESULT", json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
