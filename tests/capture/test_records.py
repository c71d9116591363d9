"""Rows that are records: an index tells where they begin, and the reader reads those that it is asked for."""

from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from fdt.capture.mapped import NotRowsError
from fdt.capture.row_files import cut
from fdt.capture.rows import RowNumbers
from fdt.program import record_index
from fdt.program.row_reader import UnreadableRowError, reader_here

Dataset = tf.data.Dataset


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
    found = record_index.index([path.encode() for path in files])
    assert found.file.tolist() == [0, 0, 0, 2, 2]
    assert found.offset.tolist() == [0, 19, 35, 0, 100_016]


def test_a_file_that_ends_within_a_record_is_told(files: list[str]) -> None:
    content = Path(files[2]).read_bytes()
    for length in (100_016 + 11, 100_016 + 12, len(content) - 1, 5):
        Path(files[2]).write_bytes(content[:length])
        with pytest.raises(record_index.BrokenRecordsError, match="ends within the record"):
            record_index.of_file(files[2].encode())
    Path(files[2]).write_bytes(content[:100_016])
    assert record_index.of_file(files[2].encode()).tolist() == [0]


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
        (lambda files: tf.data.TFRecordDataset(files, compression_type="GZIP"), "compressed"),
        (lambda files: tf.data.TFRecordDataset(files, num_parallel_reads=2), "several files at once"),
        (lambda files: tf.data.TFRecordDataset(Dataset.from_tensor_slices(files).shuffle(3)), "names of its files"),
        (lambda files: tf.data.TFRecordDataset([*files, files[0] + "?"]), "No such file"),
        (lambda files: tf.data.TFRecordDataset(files).cache(), "cache"),
    ],
)
def test_what_is_not_taken_says_why(make: object, why: str, files: list[str]) -> None:
    assert callable(make)
    with pytest.raises(NotRowsError, match=why):
        cut(make(files).map(measured).batch(2))
