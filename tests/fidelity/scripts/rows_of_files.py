"""Trains on data sets whose rows are files, as scripts do; writes what came of it as JSON."""

import argparse
import gzip
import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

SIZE, NUM_IMAGES, CLASSES = (9, 12), 30, ("cats", "dogs", "owls")
Made = dict[str, Any]


def make_images(folder: Path) -> None:
    """Makes a folder for each class, with images of several sizes and names that are not ASCII."""
    generator = np.random.default_rng(3)
    for number in range(NUM_IMAGES):
        pixels = generator.integers(0, 256, [20 + number % 3, 25, 3], np.uint8)
        path = folder / CLASSES[number % 3] / f"bild {number:02} ä.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(tf.io.encode_jpeg(pixels).numpy())


def paths(folder: Path) -> list[str]:
    return sorted(str(path) for path in folder.glob("*/*.jpg"))


def labels(folder: Path) -> np.ndarray:
    return np.array([CLASSES.index(Path(path).parent.name) for path in paths(folder)])


def read(path: tf.Tensor) -> tf.Tensor:
    image = tf.io.decode_jpeg(tf.io.read_file(path), channels=3)
    return tf.image.resize(image, SIZE) / 255.0


def rows(folder: Path) -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices((paths(folder), labels(folder)))


def mapped(folder: Path) -> tf.data.Dataset:
    images = rows(folder).shuffle(NUM_IMAGES, seed=4).map(lambda path, label: (read(path), label))
    return images.batch(8).prefetch(2)


def of_keras(folder: Path) -> tf.data.Dataset:
    images = keras.utils.image_dataset_from_directory(folder, image_size=SIZE, batch_size=8, seed=5, verbose=False)
    return images.map(lambda x, y: (x / 255.0, y), num_parallel_calls=tf.data.AUTOTUNE)


def labelled_by_path(folder: Path) -> tf.data.Dataset:
    """The tutorial's: the class is a part of the path, and the map is parallel."""
    names = tf.constant(CLASSES)

    def made(path: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        parts = tf.strings.split(path, os.sep)
        return read(path), tf.argmax(tf.cast(parts[-2] == names, tf.int32))

    found = tf.data.Dataset.from_tensor_slices(paths(folder)).shuffle(NUM_IMAGES, seed=1)
    return found.map(made, num_parallel_calls=tf.data.AUTOTUNE).batch(7, drop_remainder=True)


def joined(folder: Path) -> tf.data.Dataset:
    """Relative names; two files a row; taken, skipped and repeated; checked."""
    os.chdir(folder.parent)
    short = [str(Path(path).relative_to(folder)) for path in paths(folder)]

    @tf.function
    def inner(name: tf.Tensor) -> tf.Tensor:
        return read(tf.strings.join([folder.name, "/", name]))

    def made(name: tf.Tensor, other: tf.Tensor, label: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        with tf.control_dependencies([tf.debugging.assert_non_negative(label)]):
            return inner(name) - inner(other) / 2, label

    data = tf.data.Dataset.from_tensor_slices((short, short[::-1], labels(folder)))
    return data.skip(2).take(25).repeat(2).shuffle(9, seed=2).map(made).batch(8)


def of_both_parts(folder: Path) -> tf.data.Dataset:
    """A zip of files and classes, the files read before they are shuffled, in an order drawn from the script's seed."""
    tf.random.set_seed(7)
    images = tf.data.Dataset.from_tensor_slices(paths(folder)).map(read)
    classes = tf.data.Dataset.from_tensor_slices(labels(folder)).map(lambda label: tf.one_hot(label, len(CLASSES)))
    return tf.data.Dataset.zip((images, classes)).shuffle(11).batch(6)


def records(folder: Path) -> tf.data.Dataset:
    """Images and classes in two TFRecord files."""
    return tf.data.TFRecordDataset(record_files(folder)).shuffle(15, seed=3).map(parsed).batch(8).prefetch(1)


def records_in_turn(folder: Path) -> tf.data.Dataset:
    """As input pipelines for many files have it: files in an order of their own, read in turn, parsed where they are read."""

    def of_file(path: tf.Tensor) -> tf.data.Dataset:
        return tf.data.TFRecordDataset(path).map(parsed, num_parallel_calls=2)

    pattern = str(Path(record_files(folder)[0]).with_stem("*"))
    files = tf.data.Dataset.list_files(pattern, seed=6)
    images = files.interleave(of_file, cycle_length=2, block_length=3, num_parallel_calls=tf.data.AUTOTUNE)
    return images.shuffle(15, seed=3).batch(8).prefetch(1)


def parsed(record: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    features = {"image": tf.io.FixedLenFeature([], tf.string), "label": tf.io.FixedLenFeature([], tf.int64)}
    values = tf.io.parse_single_example(record, features)
    image = tf.image.resize(tf.io.decode_jpeg(values["image"], channels=3), SIZE)
    return image / 255.0, values["label"]


def record_files(folder: Path) -> list[str]:
    files = [str(folder.parent / f"{part}.tfrecord") for part in range(2)]
    for part, path in enumerate(files):
        if not Path(path).exists():
            write_records(path, [row for row in range(NUM_IMAGES) if row % 3 != 2 - 2 * part], folder)
    return files


def write_records(path: str, chosen: list[int], folder: Path) -> None:
    with tf.io.TFRecordWriter(path) as writer:
        for row in chosen:
            image = tf.train.BytesList(value=[Path(paths(folder)[row]).read_bytes()])
            label = tf.train.Int64List(value=[int(labels(folder)[row])])
            features = {"image": tf.train.Feature(bytes_list=image), "label": tf.train.Feature(int64_list=label)}
            writer.write(tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString())


def compressed_records(folder: Path) -> tf.data.Dataset:
    """The same records in files by gzip."""
    names = [f"{name}.gz" for name in record_files(folder)]
    for name in names:
        if not Path(name).exists():
            Path(name).write_bytes(gzip.compress(Path(name).with_suffix("").read_bytes()))
    return tf.data.TFRecordDataset(names, "GZIP", num_parallel_reads=2).shuffle(15, seed=3).map(parsed).batch(8)


def texts(folder: Path) -> tf.data.Dataset:
    """As tutorials on texts have it: a folder for each class, and a vocabulary that was taken from the texts."""
    words = [
        f"{'abcdefg'[number % 7]} {'hijk'[number % 4]}!\n{'Lm'[number % 2]}" * (number % 3) for number in range(30)
    ]
    for number, text in enumerate(words):
        path = folder.parent / "texts" / CLASSES[number % 3] / f"{number:02}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    found = keras.utils.text_dataset_from_directory(folder.parent / "texts", batch_size=8, seed=5, verbose=False)
    length = SIZE[0] * SIZE[1] * 3
    vectorized = keras.layers.TextVectorization(output_sequence_length=length)
    vectorized.adapt(words)
    data = found.map(lambda text, label: (vectorized(text), label), num_parallel_calls=tf.data.AUTOTUNE)
    return data.map(lambda x, y: (tf.reshape(tf.cast(x, tf.float32), [-1, *SIZE, 3]), y)).prefetch(2)


def lines(folder: Path) -> tf.data.Dataset:
    """A text with a class and words in each line, and headers; two texts are read in turn."""
    names = [folder.parent / f"{part}.csv" for part in range(2)]
    for part, name in enumerate(names):
        words = [f"{n % 3},{'abcdefg'[n % 7]} {'hijk'[n % 4]} ü{'Lm'[n % 2]}" for n in range(13 + part)]
        name.write_bytes("\r\n".join(["class,words", *words]).encode())
    vectorized = keras.layers.TextVectorization(output_sequence_length=SIZE[0] * SIZE[1] * 3)
    vectorized.adapt(["a b c h i üm", "ül d"])

    def made(lines: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        label, words = tf.io.decode_csv(lines, [0, ""])
        return words, label

    def of_file(name: tf.Tensor) -> tf.data.Dataset:
        return tf.data.TextLineDataset(name).skip(1).map(made)

    data = tf.data.Dataset.from_tensor_slices([str(name) for name in names]).interleave(of_file, cycle_length=2)
    data = data.shuffle(20, seed=3).batch(8).map(lambda words, label: (vectorized(words), label))
    return data.map(lambda x, y: (tf.reshape(tf.cast(x, tf.float32), [-1, *SIZE, 3]), y)).prefetch(2)


def table(folder: Path) -> tf.data.Dataset:
    """Numbers and a class in the columns of tables, shuffled and batched as TensorFlow's function for tables does."""
    names = [folder.parent / f"table {part}.csv" for part in range(2)]
    draw = np.random.default_rng(6)
    for name in names:
        numbers = draw.random([15, 4])
        name.write_text(
            "w,x,y,z,class\n"
            + "\n".join(f"{','.join(map(repr, row.tolist()))},{i % 3}" for i, row in enumerate(numbers))
        )
    data = tf.data.experimental.make_csv_dataset(
        [str(name) for name in names], 8, label_name="class", num_epochs=1, shuffle_buffer_size=9, shuffle_seed=2
    )

    def made(columns: dict[str, tf.Tensor], label: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        values = tf.stack(list(columns.values()), 1)
        return tf.tile(values[:, None, None, :3], [1, *SIZE, 1]) + values[:, None, None, 3:], label

    return data.map(made)


def records_of_one_length(folder: Path) -> tf.data.Dataset:
    """As CIFAR-10 has it: a class and pixels, in so many bytes."""
    length = SIZE[0] * SIZE[1] * 3
    names = [folder.parent / f"{part}.bin" for part in range(2)]
    draw = np.random.default_rng(5)
    for name in names:
        pixels = draw.integers(0, 256, [15, 1 + length], np.uint8)
        pixels[:, 0] %= 3
        name.write_bytes(pixels.tobytes())

    def made(record: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        values = tf.ensure_shape(tf.io.decode_raw(record, tf.uint8), [1 + length])
        return tf.cast(tf.reshape(values[1:], [*SIZE, 3]), tf.float32) / 255.0, tf.cast(values[0], tf.int32)

    records = tf.data.FixedLengthRecordDataset([str(name) for name in names], 1 + length, num_parallel_reads=2)
    return records.shuffle(11, seed=2).map(made).batch(8)


DATA: dict[str, Callable[[Path], tf.data.Dataset]] = {
    "mapped": mapped,
    "of_keras": of_keras,
    "labelled_by_path": labelled_by_path,
    "joined": joined,
    "of_both_parts": of_both_parts,
    "records": records,
    "records_in_turn": records_in_turn,
    "compressed_records": compressed_records,
    "texts": texts,
    "lines": lines,
    "table": table,
    "records_of_one_length": records_of_one_length,
}


class Draws(keras.Sequential):  # type: ignore[misc]
    """A model whose test step stays on the script's machine."""

    def test_step(self, data: Any) -> Any:
        x, y = data
        return super().test_step((x + tf.random.normal(tf.shape(x), seed=3), y))


def model_for(data: tf.data.Dataset, kind_of_model: type = keras.Sequential) -> Any:
    keras.utils.set_random_seed(1)
    model = kind_of_model(
        [keras.layers.Input((*SIZE, 3)), keras.layers.Conv2D(4, 3), keras.layers.Flatten(), keras.layers.Dense(3)]
    )
    is_sparse = data.element_spec[1].shape.rank == 1
    kind = keras.losses.SparseCategoricalCrossentropy if is_sparse else keras.losses.CategoricalCrossentropy
    model.compile(keras.optimizers.SGD(0.05), kind(from_logits=True), metrics=["accuracy"])
    return model


def digest(values: Any) -> str:
    return hashlib.sha256(np.ascontiguousarray(values).tobytes()).hexdigest()


def trained(make: Callable[[Path], tf.data.Dataset], folder: Path) -> Made:
    keras.utils.set_random_seed(1)
    data = make(folder)
    # The script looks into its data before and after the training.
    before = [digest(x) for x, _ in data.take(1)]
    model = model_for(data)
    validation = make(folder).take(2)
    history = model.fit(data, epochs=3, validation_data=validation, verbose=0).history
    after = [[digest(x), digest(y)] for x, y in data]
    evaluated = [model.evaluate(validation, verbose=verbose) for verbose in (1, 0)]
    predicted = [model.predict(validation, verbose=verbose) for verbose in (1, 0)]
    predicted += [model.predict(validation, steps=1, verbose=0), model.predict_on_batch(next(iter(validation))[0])]
    # What the script changes counts, and it trains on from there.
    model.set_weights([weights / 2 for weights in model.get_weights()])
    evaluated += [model.evaluate(make(folder), steps=2, verbose=0)]
    evaluated += [model.fit(data, epochs=1, verbose=0).history["loss"], model.evaluate(validation, verbose=0)]
    predicted += [model.predict(validation, verbose=0)]
    return {
        "evaluated": [float(value) for values in evaluated for value in values],
        "predicted": [float(value) for values in predicted for value in values.ravel()],
        "forms": [f"{type(values).__name__} {values.dtype} {values.shape}" for values in predicted],
        **{name: [float(v) for v in values] for name, values in history.items()},
        "weights": [float(np.sum(np.abs(w))) for w in model.get_weights()],
        "looked": [before, after],
        "iterations": int(model.optimizer.iterations),
    }


class Spoils(keras.callbacks.Callback):  # type: ignore[misc]
    """Changes a file behind the first epoch."""

    def __init__(self, path: Path, content: bytes | None) -> None:
        super().__init__()
        self._path, self._content = path, content

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if self._content is None:
            self._path.unlink()
        else:
            self._path.write_bytes(self._content)


def spoiled(folder: Path, row: int, content: bytes | None) -> Made:
    """Trains while a file is lost or broken; goes on without it."""
    keras.utils.set_random_seed(1)
    data = rows(folder).map(lambda path, label: (read(path), label)).batch(4)
    model, path = model_for(data), Path(paths(folder)[row])
    kept, raised = path.read_bytes(), ""
    try:
        model.fit(data, epochs=3, verbose=0, callbacks=[Spoils(path, content)])
    except tf.errors.OpError as error:
        raised = type(error).__name__
    weights = [float(np.sum(np.abs(w))) for w in model.get_weights()]
    try:
        model.evaluate(data, verbose=0)
    except tf.errors.OpError as error:
        raised += f" {type(error).__name__}"
    try:
        model.predict(data, verbose=0)
    except tf.errors.OpError as error:
        raised += f" {type(error).__name__}"
    path.write_bytes(kept)
    evaluated = model.evaluate(data, verbose=0)
    again = model.fit(data, epochs=1, verbose=0).history["loss"]
    return {"raised": raised, "weights": weights, "evaluated": evaluated, "again": again}


def evaluated_here(folder: Path) -> Made:
    """Evaluates in turn with a training whose data are shuffled, by a step that workers do not make."""
    keras.utils.set_random_seed(1)
    data = mapped(folder)
    model = model_for(data, Draws)
    figures = [
        values for _ in range(2) for values in (model.fit(data, verbose=0).history["loss"], model.evaluate(data))
    ]
    return {"figures": [float(value) for values in figures for value in values]}


def as_in_tutorials(folder: Path) -> Made:
    """What Keras has shuffled is looked at, then kept, and its batches are shuffled."""
    keras.utils.set_random_seed(1)
    data = of_keras(folder)
    before = [digest(x) for x, _ in data.take(1)]
    model = model_for(data)
    data = data.cache().shuffle(100, seed=8).prefetch(tf.data.AUTOTUNE)
    validation = of_keras(folder).take(2).cache().prefetch(tf.data.AUTOTUNE)
    history = model.fit(data, validation_data=validation, epochs=3, verbose=0).history
    after = [[digest(x), digest(y)] for x, y in data]
    again = model.fit(data, epochs=1, verbose=0).history["loss"]
    return {
        **{name: [float(v) for v in values] for name, values in history.items()},
        "again": again,
        "looked": [before, after],
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--cases", default=",".join([*DATA, "evaluated_here", "lost", "broken"]))
    arguments = parser.parse_args()
    # The last batch of an epoch: the end of the epoch waits for it. Then the third, whose file has been read before.
    spoils = {"lost": (NUM_IMAGES - 1, None), "broken": (9, b"\xff\xd8\xff no image")}
    made: dict[str, Made] = {}
    for case in arguments.cases.split(","):
        if case in DATA:
            made[case] = trained(DATA[case], arguments.folder)
        elif case in ("evaluated_here", "as_in_tutorials"):
            made[case] = {"evaluated_here": evaluated_here, "as_in_tutorials": as_in_tutorials}[case](arguments.folder)
        else:
            made[case] = spoiled(arguments.folder, *spoils[case])
    arguments.out.write_text(json.dumps(made))


if __name__ == "__main__":
    main()
