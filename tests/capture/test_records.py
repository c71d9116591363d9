"""Rows that are records: an index tells where they begin, and the reader reads those that it is asked for."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.data import Dataset

from fdt.capture.row_files import cut
from fdt.capture.rows import RowNumbers
from fdt.capture.rowwise import NotRowsError
from fdt.program import record_index
from fdt.program.row_reader import UnreadableRowError, reader_here


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    paths = [str(tmp_path / f"{number} ä") for number in range(3)]
    # The second one is empty.
    for path, lengths in zip(paths, ([3, 0, 5], [], [100_000, 1]), strict=True):
        with tf.io.TFRecordWriter(path) as writer:
            for length in lengths:
                writer.write(bytes([length % 256]) * length)
    return paths


def measured(record: tf.Tensor) -> tf.Tensor:
    return tf.stack([tf.strings.length(record), tf.reduce_sum(tf.cast(tf.io.decode_raw(record, tf.uint8), tf.int32))])


def test_the_index_has_every_record(files: list[str]) -> None:
    found = record_index.index([path.encode() for path in files], record_index.TFRecords())
    assert found.file.tolist() == [0, 0, 0, 2, 2]
    assert found.offset.tolist() == [0, 19, 35, 0, 100_016]


def test_a_file_that_ends_within_a_record_is_told(files: list[str]) -> None:
    content = Path(files[2]).read_bytes()
    for length in (100_016 + 11, 100_016 + 12, len(content) - 1, 5):
        Path(files[2]).write_bytes(content[:length])
        with pytest.raises(record_index.NoIndexError, match="ends within the record"):
            record_index.of_file(files[2].encode(), record_index.TFRecords())
    Path(files[2]).write_bytes(content[:100_016])
    assert record_index.of_file(files[2].encode(), record_index.TFRecords())[0].tolist() == [0]


def test_the_reader_reads_the_records_of_its_rows(files: list[str]) -> None:
    data = tf.data.TFRecordDataset(files).map(measured).batch(2)
    reader = reader_here(cut(data), 2)
    expected = np.concatenate([batch.numpy() for batch in data])
    for rows in ([4, 0, 3], [1], [2, 2]):
        np.testing.assert_array_equal(reader.take(np.array(rows))[0], expected[rows])


def test_a_shuffled_data_set_has_its_order(files: list[str]) -> None:
    numbers = RowNumbers()
    tf.random.set_seed(2)
    data = tf.data.TFRecordDataset(files).shuffle(3, seed=4, reshuffle_each_iteration=False).map(measured).batch(2)
    rows = numbers.of_files(data)
    assert rows is not None and rows.files is not None
    reader = reader_here(rows.files, 1)
    for batch, chosen in zip(data, rows.numbers, strict=True):
        np.testing.assert_array_equal(batch, reader.take(chosen.numpy())[0])
    # Rows of records are no arrays.
    assert numbers.of(data) is None
    assert numbers.of(tf.data.TFRecordDataset(files).batch(2)) is None


def by_name(files: list[str]) -> Dataset:
    return Dataset.from_tensor_slices(files)


TABLE = tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer([3, 5, 100_000], [7, 8, 9]), -1)


def looked_up(record: tf.Tensor) -> tf.Tensor:
    return TABLE.lookup(tf.strings.length(record))


def of_a_file(file: tf.Tensor) -> Dataset:
    """As input pipelines have it: records are parsed where their file is read."""
    factor = tf.constant([1, 2])
    records = tf.data.TFRecordDataset(file).map(lambda record: measured(record) * factor, num_parallel_calls=2)
    return records.map(lambda values: values + 1).prefetch(2)


IN_TURN: dict[str, Callable[[list[str]], Dataset]] = {
    "several files at once": lambda files: tf.data.TFRecordDataset(files, num_parallel_reads=2),
    "as many as there are cores": lambda files: tf.data.TFRecordDataset(files, num_parallel_reads=tf.data.AUTOTUNE),
    "names that are shuffled": lambda files: tf.data.TFRecordDataset(by_name(files).shuffle(3, seed=1)),
    "flat_map": lambda files: by_name(files).repeat(2).flat_map(tf.data.TFRecordDataset),
    "interleave": lambda files: by_name(files).interleave(tf.data.TFRecordDataset),
    "two in turn": lambda files: by_name(files).interleave(tf.data.TFRecordDataset, cycle_length=2, block_length=2),
    "in parallel": lambda files: by_name(files).interleave(
        lambda file: tf.data.TFRecordDataset([file], buffer_size=64),
        cycle_length=3,
        num_parallel_calls=tf.data.AUTOTUNE,
    ),
    "parallel_interleave": lambda files: by_name(files).apply(
        tf.data.experimental.parallel_interleave(tf.data.TFRecordDataset, 2, block_length=2)
    ),
    "a shard of the files": lambda files: by_name(files).shard(2, 0).interleave(tf.data.TFRecordDataset),
    "list_files": lambda files: Dataset.list_files(files, seed=5).interleave(tf.data.TFRecordDataset, cycle_length=2),
}


@pytest.mark.parametrize("name", IN_TURN)
def test_records_come_in_the_order_of_the_data_set(name: str, files: list[str], row_numbers: RowNumbers) -> None:
    check_same(row_numbers, lambda: IN_TURN[name](files).shuffle(4, seed=4).map(measured).batch(2))
    check_same(row_numbers, lambda: IN_TURN[name](files).map(measured).batch(2, drop_remainder=True))


def test_functions_of_a_files_records_are_functions_of_rows(files: list[str], row_numbers: RowNumbers) -> None:
    def made() -> Dataset:
        records = by_name(files).shuffle(3, seed=3).interleave(of_a_file, cycle_length=2, num_parallel_calls=2)
        return records.map(lambda values: values * 3).batch(2)

    check_same(row_numbers, made)


@pytest.mark.parametrize("as_a_row", [True, False])
def test_records_are_looked_up_in_tables(as_a_row: bool, files: list[str], row_numbers: RowNumbers) -> None:
    def made() -> Dataset:
        if as_a_row:
            return tf.data.TFRecordDataset(files).shuffle(4, seed=2).map(looked_up).batch(2)
        return by_name(files).interleave(lambda file: tf.data.TFRecordDataset(file).map(looked_up)).batch(2)

    check_same(row_numbers, made)


def example(number: int) -> bytes:
    features = {
        "number": tf.train.Feature(int64_list=tf.train.Int64List(value=[number])),
        "pair": tf.train.Feature(float_list=tf.train.FloatList(value=[number / 2, number / 3])),
        "raw": tf.train.Feature(bytes_list=tf.train.BytesList(value=[bytes([number, number + 1])])),
        "few": tf.train.Feature(int64_list=tf.train.Int64List(value=range(number % 3))),
    }
    content: bytes = tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString()
    return content


@pytest.fixture
def examples(tmp_path: Path) -> str:
    path = str(tmp_path / "examples")
    with tf.io.TFRecordWriter(path) as writer:
        for number in range(7):
            writer.write(example(number))
    return path


def test_records_that_are_parsed_a_batch_at_a_time_are_rows(examples: str, row_numbers: RowNumbers) -> None:
    """As TensorFlow's guide to fast input pipelines has it."""
    features = {
        "number": tf.io.FixedLenFeature([], tf.int64),
        "pair": tf.io.FixedLenFeature([2], tf.float32),
        "raw": tf.io.FixedLenFeature([], tf.string),
        "lacking": tf.io.FixedLenFeature([3], tf.int64, default_value=[7, 8, 9]),
    }

    def parsed(records: tf.Tensor) -> tuple[tf.Tensor, ...]:
        found = tf.io.parse_example(records, features)
        pixels = tf.ensure_shape(tf.io.decode_raw(found["raw"], tf.uint8), [None, 2])
        return tf.cast(pixels, tf.float32) / 255.0, found["number"], found["pair"], found["lacking"]

    check_same(row_numbers, lambda: tf.data.TFRecordDataset(examples).shuffle(5, seed=1).batch(3).map(parsed))


def test_records_whose_features_differ_in_length_are_not_parsed_as_rows(examples: str) -> None:
    def parsed(records: tf.Tensor) -> tf.Tensor:
        found = tf.io.parse_example(records, {"few": tf.io.VarLenFeature(tf.int64)})
        return tf.ensure_shape(tf.sparse.to_dense(found["few"]), [None, 2])

    with pytest.raises(NotRowsError, match="may mix rows"):
        cut(tf.data.TFRecordDataset(examples).batch(3).map(parsed))


def check_same(row_numbers: RowNumbers, make: Callable[[], Dataset]) -> None:
    """Reads a data set and its twin in turn, as a script does that looks at its data before the epochs and between them."""
    data, same = make(), make()
    for _ in range(2):
        assert len(list(data)) == len(list(same)) > 0
        rows = row_numbers.of_files(data)
        assert rows is not None and rows.files is not None, row_numbers.reason
        reader = reader_here(rows.files, 1)
        for _ in range(2):
            for batch, chosen in zip(same, rows.numbers, strict=True):
                for plain, made in zip(tf.nest.flatten(batch), reader.take(chosen.numpy()), strict=True):
                    np.testing.assert_array_equal(plain, made)


def test_a_record_that_is_damaged_is_plain_pythons_error(files: list[str]) -> None:
    reader = reader_here(cut(tf.data.TFRecordDataset(files).map(measured).batch(2)), 1)
    content = bytearray(Path(files[0]).read_bytes())
    content[12] ^= 1
    Path(files[0]).write_bytes(content)
    np.testing.assert_array_equal(reader.take(np.array([2]))[0], [[5, 25]])
    with pytest.raises(UnreadableRowError) as caught:
        reader.take(np.array([0]))
    assert caught.value.step_code == tf.errors.DATA_LOSS


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda files: tf.data.TFRecordDataset(files, compression_type="GZIP"), "incorrect header"),
        (lambda files: by_name(files).interleave(lambda f: tf.data.TFRecordDataset(f, "GZIP")), "incorrect header"),
        (lambda files: by_name(files).map(lambda f: f + "").interleave(tf.data.TFRecordDataset), "names .* computed"),
        (lambda files: by_name(files).interleave(lambda f: tf.data.TFRecordDataset(f + "")), "other files"),
        (lambda files: by_name(files).interleave(lambda f: tf.data.TFRecordDataset(files)), "other files"),
        (lambda files: by_name(files).interleave(lambda f: tf.data.TFRecordDataset(f).take(1)), "TakeDataset"),
        (lambda files: tf.data.TFRecordDataset([*files, files[0] + "?"]), "No such file"),
        (lambda files: tf.data.TFRecordDataset(files).cache(), "cache"),
    ],
)
def test_what_is_not_taken_says_why(make: object, why: str, files: list[str]) -> None:
    assert callable(make)
    with pytest.raises(NotRowsError, match=why):
        cut(make(files).map(measured).batch(2))
