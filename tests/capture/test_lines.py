"""Rows that are lines, or records of one length: the reader reads those of a batch together."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.data import Dataset

from fdt.capture.row_files import cut
from fdt.capture.rows import RowNumbers
from fdt.errors import ProtocolError
from fdt.program import record_index
from fdt.program.record_index import Records
from fdt.program.row_reader import UnreadableRowError, files_of_records, reader_here
from tests.capture.test_records import check_same

# With carriage returns, empty lines, characters of several bytes, and ends of all kinds.
TEXTS = (b"one\ntwo\r\n\n fo\rur\n", b"", b"f\xc3\xbcnf", b"six\n\r", b"\n", b"seven\n\r\r8")


@pytest.fixture
def texts(tmp_path: Path) -> list[str]:
    paths = [tmp_path / f"{number} ä.txt" for number in range(len(TEXTS))]
    for path, content in zip(paths, TEXTS, strict=True):
        path.write_bytes(content)
    return [str(path) for path in paths]


@pytest.fixture
def binary(tmp_path: Path) -> list[str]:
    """Files of records of three bytes behind a header of two, before a footer of one."""
    paths = [tmp_path / f"{number}.bin" for number in range(3)]
    for number, path in enumerate(paths):
        path.write_bytes(b"hh" + bytes(range(number * 20, number * 20 + 3 * 2 * number)) + b"f")
    return [str(path) for path in paths]


def coded(line: tf.Tensor) -> tf.Tensor:
    """Returns a line as numbers: its length, and what its bytes are hashed to."""
    return tf.stack(
        [tf.strings.length(line), tf.cast(tf.strings.to_hash_bucket_strong(line, 1 << 30, [1, 2]), tf.int32)]
    )


def of_a_text(file: tf.Tensor) -> Dataset:
    return tf.data.TextLineDataset(file).skip(1).map(coded, num_parallel_calls=2)


LINES: dict[str, Callable[[list[str]], Dataset]] = {
    "of one file": lambda files: tf.data.TextLineDataset(files[0]).map(coded),
    "of files": lambda files: tf.data.TextLineDataset(files).map(coded),
    "of files in turn": lambda files: (
        tf.data.TextLineDataset(files, num_parallel_reads=3).shuffle(4, seed=1).map(coded)
    ),
    "of files in an order of their own": lambda files: (
        Dataset.from_tensor_slices(files)
        .shuffle(6, seed=3)
        .interleave(tf.data.TextLineDataset, cycle_length=2)
        .map(coded)
    ),
    "without headers": lambda files: Dataset.from_tensor_slices(files).interleave(of_a_text, cycle_length=3),
    "without the first": lambda files: tf.data.TextLineDataset(files).skip(1).take(8).shuffle(5, seed=2).map(coded),
    "a batch at a time": lambda files: tf.data.TextLineDataset(files).map(tf.strings.length),
}


@pytest.mark.parametrize("name", LINES)
def test_lines_come_in_the_order_of_the_data_set(name: str, texts: list[str], row_numbers: RowNumbers) -> None:
    check_same(row_numbers, lambda: LINES[name](texts).batch(2))


def test_lines_are_cut_into_words_a_batch_at_a_time(texts: list[str], row_numbers: RowNumbers) -> None:
    words = tf.keras.layers.TextVectorization(output_sequence_length=2, standardize="lower")
    words.adapt(["one two", "six fünf"])
    check_same(row_numbers, lambda: tf.data.TextLineDataset(texts).shuffle(9, seed=2).batch(3).map(words))


def of_three_bytes(record: tf.Tensor) -> tf.Tensor:
    return tf.ensure_shape(tf.io.decode_raw(record, tf.uint8), [3])


@pytest.mark.parametrize("reads", [None, 2])
def test_records_of_one_length_come_in_the_order_of_the_data_set(
    reads: int | None, binary: list[str], row_numbers: RowNumbers
) -> None:
    def made() -> Dataset:
        records = tf.data.FixedLengthRecordDataset(binary, 3, header_bytes=2, footer_bytes=1, num_parallel_reads=reads)
        return records.shuffle(4, seed=4).map(of_three_bytes).batch(2)

    check_same(row_numbers, made)


def test_names_whose_order_is_not_seen_are_left_to_the_script(texts: list[str], row_numbers: RowNumbers) -> None:
    names = Dataset.from_tensor_slices(texts).shuffle(6, seed=3)
    assert row_numbers.of_files(tf.data.TextLineDataset(names).map(coded).batch(2)) is None
    assert "names of its files are shuffled" in row_numbers.reason


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda files: tf.data.FixedLengthRecordDataset(files, 4, 2, 1), "whole records of 4 bytes"),
        (lambda files: tf.data.FixedLengthRecordDataset(files, 3, compression_type="GZIP"), "incorrect header"),
        (lambda files: tf.data.TextLineDataset(files, compression_type="ZLIB"), "incorrect header"),
        (
            lambda files: Dataset.from_tensor_slices(files).flat_map(lambda f: tf.data.TextLineDataset(f).take(3)),
            "more",
        ),
    ],
)
def test_what_is_not_taken_says_why(
    make: Callable[[list[str]], Dataset], why: str, binary: list[str], row_numbers: RowNumbers
) -> None:
    assert row_numbers.of_files(make(binary).map(tf.strings.length).batch(2)) is None
    assert why in row_numbers.reason


def test_long_texts_are_not_looked_through(texts: list[str], row_numbers: RowNumbers) -> None:
    # Together they have more.
    for text in texts[:2]:
        with open(text, "r+b") as file:
            file.truncate(2 << 30)
    assert row_numbers.of_files(tf.data.TextLineDataset(texts).map(coded).batch(2)) is None
    assert "4,294,967,296 bytes to look through" in row_numbers.reason


def test_a_line_that_is_changed_is_an_error_and_costs_its_batch_alone(texts: list[str]) -> None:
    reader = reader_here(cut(tf.data.TextLineDataset(texts[0]).map(coded).batch(2)), 1)
    expected = [coded(tf.constant(line)).numpy() for line in (b"one", b"two", b"", b" four")]
    np.testing.assert_array_equal(reader.take(np.array([0, 3, 1]))[0], [expected[0], expected[3], expected[1]])
    # The second line is longer, the third begins where there is no line; the first one stays, whatever is in it.
    Path(texts[0]).write_bytes(TEXTS[0].replace(b"two\r", b"twenty").replace(b"one", b"ONE"))
    np.testing.assert_array_equal(reader.take(np.array([0]))[0], [coded(tf.constant(b"ONE"))])
    for row in (1, 2, 3):
        with pytest.raises(UnreadableRowError, match="has been changed") as caught:
            reader.take(np.array([0, row]))
        assert caught.value.step_code == tf.errors.INVALID_ARGUMENT
    Path(texts[0]).write_bytes(TEXTS[0][:3])
    np.testing.assert_array_equal(reader.take(np.array([0]))[0], [expected[0]])
    with pytest.raises(UnreadableRowError):
        reader.take(np.array([2]))
    Path(texts[0]).unlink()
    with pytest.raises(UnreadableRowError) as caught:
        reader.take(np.array([0]))
    assert caught.value.step_code == tf.errors.NOT_FOUND


def test_a_record_that_is_gone_is_an_error(binary: list[str]) -> None:
    records = tf.data.FixedLengthRecordDataset(binary, 3, header_bytes=2, footer_bytes=1)
    reader = reader_here(cut(records.map(of_three_bytes).batch(2)), 1)
    with open(binary[2], "r+b") as file:
        file.truncate(2 + 3 * 2)
    np.testing.assert_array_equal(reader.take(np.array([3]))[0], [[43, 44, 45]])
    with pytest.raises(UnreadableRowError, match="has been changed"):
        reader.take(np.array([4]))


def places(file: list[int], offset: list[int], length: list[int] | None) -> Records:
    lengths = None if length is None else np.array(length, np.int64)
    return Records(np.array(file, np.int32), np.array(offset, np.int64), lengths)


@pytest.mark.parametrize(
    "records",
    [
        places([0, 1], [0, 0], [1, 1]),
        places([0, -1], [0, 0], None),
        places([0], [-1], [1]),
        places([0], [0], [-1]),
        places([0], [0, 1], None),
        places([0, 0], [0, 1], [1]),
    ],
)
def test_rows_that_lie_in_no_file_are_refused(records: Records) -> None:
    with pytest.raises(ProtocolError, match="do not lie in their files"):
        files_of_records([b"/a"], records)


def test_lines_are_found_over_the_bounds_of_what_is_read_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record_index, "_CHUNK_BYTES", 5)
    draw = np.random.default_rng(0)
    for number in range(40):
        content = bytes(draw.choice([*b"ab\n\r"], draw.integers(0, 40), p=[0.4, 0.2, 0.3, 0.1]).tolist())
        path = tmp_path / f"{number}"
        path.write_bytes(content)
        found = record_index.index([bytes(path)], record_index.Lines())
        assert found.length is not None
        spans = zip(found.offset.tolist(), found.length.tolist(), strict=True)
        lines = [content[begin : begin + length].replace(b"\r", b"") for begin, length in spans]
        assert lines == list(tf.data.TextLineDataset(str(path)).as_numpy_iterator())
