"""Fits a small net on more data than fit into memory: records of 20 GB, a million files, or tables of text.

    python benchmarks/models/large_data.py FOLDER --make records --gigabytes 20
    python benchmarks/models/large_data.py FOLDER --make files --number 1000000
    python benchmarks/models/large_data.py FOLDER records

The disk has few of them: most are links to the same content.
"""

import argparse
import json
import os
import resource
import time
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

CLASSES, SIDE, COLUMNS = 20, 32, 48
RECORDS, RECORD_SIDE, ROWS = 1000, 224, 100_000
# A file system allows so many links to a file and more.
LINKS = 12_500
KINDS = ("records", "compressed", "table", "files")
FEATURES = {"image": tf.io.FixedLenFeature([], tf.string), "label": tf.io.FixedLenFeature([], tf.int64)}


def jpeg(generator: np.random.Generator, side: int) -> bytes:
    coarse = generator.integers(0, 256, [1, 8, 8, 3]).astype(np.float32)
    encoded: bytes = tf.io.encode_jpeg(tf.cast(tf.image.resize(coarse, [side, side])[0], tf.uint8)).numpy()
    return encoded


def make_records(folder: Path, gigabytes: float, compression: str = "") -> None:
    generator = np.random.default_rng(0)
    folder.mkdir(parents=True)
    first = folder / "00000.tfrecord"
    with tf.io.TFRecordWriter(str(first), compression) as writer:
        for i in range(RECORDS):
            image = tf.train.Feature(bytes_list=tf.train.BytesList(value=[jpeg(generator, RECORD_SIDE)]))
            label = tf.train.Feature(int64_list=tf.train.Int64List(value=[i % CLASSES]))
            features = tf.train.Features(feature={"image": image, "label": label})
            writer.write(tf.train.Example(features=features).SerializeToString())
    _link(first, gigabytes)


def make_table(folder: Path, gigabytes: float) -> None:
    generator = np.random.default_rng(0)
    folder.mkdir(parents=True)
    first = folder / "00000.csv"
    rows = np.hstack([generator.normal(size=[ROWS, COLUMNS]), generator.integers(0, CLASSES, [ROWS, 1])])
    names = ",".join([*(f"column{i}" for i in range(COLUMNS)), "label"])
    np.savetxt(first, rows, [*["%.4f"] * COLUMNS, "%d"], ",", header=names, comments="")
    _link(first, gigabytes)


def _link(first: Path, gigabytes: float) -> None:
    """Puts links to a file beside it, until all have so many bytes."""
    for i in range(1, round(gigabytes * 1e9 / first.stat().st_size)):
        os.link(first, first.with_name(f"{i:05}{first.suffix}"))


def make_files(folder: Path, number: int) -> None:
    generator = np.random.default_rng(0)
    for i in range(number):
        path = folder / f"{i % CLASSES:02}" / f"{i // CLASSES:06}.jpg"
        if i // CLASSES % LINKS:
            os.link(path.with_name(f"{i // CLASSES // LINKS * LINKS:06}.jpg"), path)
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(jpeg(generator, SIDE))


def parsed(record: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    example = tf.io.parse_single_example(record, FEATURES)
    image = tf.image.resize(tf.io.decode_jpeg(example["image"], channels=3), [SIDE, SIDE])
    return tf.ensure_shape(image, [SIDE, SIDE, 3]), example["label"]


def data(folder: Path, kind: str, batch: int) -> tf.data.Dataset:
    if kind == "files":
        return keras.utils.image_dataset_from_directory(
            folder, image_size=(SIDE, SIDE), batch_size=batch, seed=1, verbose=False
        )
    names = tf.data.Dataset.list_files(f"{folder}/*", seed=1)
    if kind == "table":
        columns = [*[tf.float32] * COLUMNS, tf.int64]
        rows = names.interleave(
            lambda name: tf.data.experimental.CsvDataset(name, columns, header=True),
            cycle_length=8, num_parallel_calls=4, deterministic=True,
        )  # fmt: skip
        return rows.shuffle(10_000, seed=2).map(lambda *row: (tf.stack(row[:-1]), row[-1])).batch(batch).prefetch(2)
    compression = "GZIP" if kind == "compressed" else ""
    records = names.interleave(
        lambda name: tf.data.TFRecordDataset(name, compression),
        cycle_length=8,
        num_parallel_calls=4,
        deterministic=True,
    )
    return records.shuffle(10_000, seed=2).map(parsed, num_parallel_calls=4).batch(batch).prefetch(2)


class Clock(keras.callbacks.Callback):  # type: ignore[misc]
    """Notes when the first step and the epoch end."""

    def __init__(self) -> None:
        super().__init__()
        self.steps, self.at = 0, list[float]()

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        self.steps += 1
        if batch == 0 and logs is not None:
            float(logs["loss"])
            self.at.append(time.perf_counter())

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self.at.append(time.perf_counter())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("kind", nargs="?", choices=KINDS)
    parser.add_argument("--make", choices=KINDS)
    parser.add_argument("--gigabytes", type=float, default=20)
    parser.add_argument("--number", type=int, default=1_000_000)
    parser.add_argument("--batch", type=int, default=500)
    parser.add_argument("--steps", type=int, help="of the epoch, all unless told")
    options = parser.parse_args()
    if options.make in ("records", "compressed"):
        make_records(options.folder, options.gigabytes, "GZIP" if options.make == "compressed" else "")
    if options.make == "table":
        make_table(options.folder, options.gigabytes)
    if options.make == "files":
        make_files(options.folder, options.number)
    if options.make:
        return
    keras.utils.set_random_seed(1)
    began_s = time.perf_counter()
    elements = data(options.folder, options.kind, options.batch)
    found_s = time.perf_counter()
    of_images = [
        keras.Input((SIDE, SIDE, 3)),
        keras.layers.Rescaling(1 / 255),
        keras.layers.AveragePooling2D(8),
        keras.layers.Flatten(),
    ]
    first = [keras.Input((COLUMNS,))] if options.kind == "table" else of_images
    model = keras.Sequential([*first, keras.layers.Dense(CLASSES)])
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    clock, cores_s = Clock(), time.process_time()
    loss = model.fit(elements.take(options.steps or -1), callbacks=[clock], verbose=0).history["loss"][0]
    seconds, samples = clock.at[-1] - clock.at[0], clock.steps * options.batch
    result = {
        "loss": loss,
        "names_s": found_s - began_s,
        "first_step_s": clock.at[0] - found_s,
        "samples": samples,
        "samples_per_s": (samples - options.batch) / seconds,
        "script_core_ms": 1e3 * (time.process_time() - cores_s) / samples,
        "script_peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3,
    }
    print("RESULT", json.dumps(result))


if __name__ == "__main__":
    main()
