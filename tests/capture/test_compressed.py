"""Rows that are records of compressed files."""

import gzip
import tempfile
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.data import Dataset

from fdt.capture.row_files import cut
from fdt.capture.rows import RowNumbers
from fdt.program import compressed_file, record_index
from fdt.program.compressed_file import CompressedError, CompressedFiles
from fdt.program.row_reader import UnreadableRowError, reader_here
from tests.capture.test_lines import TEXTS, coded
from tests.capture.test_records import check_same

COMPRESS: dict[str, Callable[[bytes], bytes]] = {"GZIP": gzip.compress, "ZLIB": zlib.compress}
KINDS = sorted(COMPRESS)


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compressed_file, "_BLOCK_BYTES", 7)
    monkeypatch.setattr(compressed_file, "_CHUNK_BYTES", 5)


def written(folder: Path, contents: list[bytes], kind: str) -> list[str]:
    paths = [folder / f"{number} ä" for number in range(len(contents))]
    for path, content in zip(paths, contents, strict=True):
        path.write_bytes(COMPRESS[kind](content))
    return [str(path) for path in paths]


def records(folder: Path, kind: str) -> list[str]:
    paths = [str(folder / f"{number}.tfrecord") for number in range(3)]
    for path, lengths in zip(paths, ([3, 0, 5], [], [300, 1]), strict=True):
        with tf.io.TFRecordWriter(path, kind) as writer:
            for length in lengths:
                writer.write(bytes(i % 251 for i in range(length)))
    return paths


@pytest.mark.parametrize("kind", KINDS)
def test_any_part_of_the_content_can_be_read(kind: str, tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    contents = [draw.integers(0, 4, size, np.uint8).tobytes() for size in (0, 6, 7, 8, 400)]
    files = CompressedFiles([path.encode() for path in written(tmp_path, contents, kind)], kind)
    for _ in range(300):
        file, offset, length = int(draw.integers(5)), int(draw.integers(420)), int(draw.integers(30))
        assert files.read(file, length, offset) == contents[file][offset : offset + length]
    # What a client says of its records may be anything.
    assert files.read(3, 1 << 60, 2) == contents[3][2:]
    assert files.read(4, 3, 1 << 60) == b""


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("reads", [None, 2])
def test_tfrecords_come_in_the_order_of_the_data_set(
    kind: str, reads: int | None, tmp_path: Path, row_numbers: RowNumbers
) -> None:
    files = records(tmp_path, kind)

    def made() -> Dataset:
        found = tf.data.TFRecordDataset(files, kind, num_parallel_reads=reads)
        return found.shuffle(4, seed=1).map(coded).batch(2)

    check_same(row_numbers, made)


@pytest.mark.parametrize("kind", KINDS)
def test_lines_come_in_the_order_of_the_data_set(kind: str, tmp_path: Path, row_numbers: RowNumbers) -> None:
    files = written(tmp_path, list(TEXTS), kind)

    def of_a_text(file: tf.Tensor) -> Dataset:
        return tf.data.TextLineDataset(file, compression_type=kind).skip(1).map(coded)

    check_same(row_numbers, lambda: Dataset.from_tensor_slices(files).interleave(of_a_text, cycle_length=3).batch(2))


@pytest.mark.parametrize("kind", KINDS)
def test_records_of_one_length_come_in_the_order_of_the_data_set(
    kind: str, tmp_path: Path, row_numbers: RowNumbers
) -> None:
    files = written(tmp_path, [b"hh" + bytes(range(3 * number)) + b"f" for number in range(4)], kind)

    def made() -> Dataset:
        return tf.data.FixedLengthRecordDataset(files, 3, 2, 1, compression_type=kind).map(coded).batch(2)

    check_same(row_numbers, made)


def test_what_is_not_whole_is_left_to_the_script(tmp_path: Path, row_numbers: RowNumbers) -> None:
    """As plain Python reads it: TensorFlow may read several parts, or raise at the end."""
    (path,) = records(tmp_path, "GZIP")[-1:]
    content = Path(path).read_bytes()
    data = tf.data.TFRecordDataset(path, "GZIP").map(coded).batch(2)
    assert row_numbers.of_files(data) is not None
    for changed, why in ((content[:-1], "is not whole"), (content * 2, "follows"), (b"no" + content, "header")):
        Path(path).write_bytes(changed)
        assert row_numbers.of_files(data) is None
        assert why in row_numbers.reason
    Path(path).write_bytes(gzip.compress(gzip.decompress(content)[:-1]))
    assert row_numbers.of_files(data) is None
    assert "ends within the record" in row_numbers.reason


def test_large_files_are_not_decompressed_beforehand(
    tmp_path: Path, row_numbers: RowNumbers, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = records(tmp_path, "GZIP")
    monkeypatch.setattr(record_index, "_MAX_COMPRESSED_BYTES", 60)
    assert row_numbers.of_files(tf.data.TFRecordDataset(files, "GZIP").map(coded).batch(2)) is None
    assert "60 bytes to look through" in row_numbers.reason
    monkeypatch.undo()
    monkeypatch.setattr(record_index, "_MAX_CONTENT_BYTES", 300)
    assert row_numbers.of_files(tf.data.TFRecordDataset(files, "GZIP").map(coded).batch(2)) is None
    assert "hold more than 300 bytes" in row_numbers.reason


def test_each_file_is_decompressed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    draw, made = np.random.default_rng(1), list[int]()
    contents = [draw.integers(0, 4, 300, np.uint8).tobytes() for _ in range(3)]
    files = CompressedFiles([path.encode() for path in written(tmp_path, contents, "GZIP")], "GZIP")
    read = compressed_file._Decompressor.read
    monkeypatch.setattr(
        compressed_file._Decompressor, "read", lambda of, descriptor: made.append(1) or read(of, descriptor)
    )
    for _ in range(200):
        file, offset = int(draw.integers(3)), int(draw.integers(300))
        assert files.read(file, 9, offset) == contents[file][offset : offset + 9]
    assert len(made) == 3 * -(-300 // compressed_file._BLOCK_BYTES)


def test_a_file_that_is_changed_is_read_anew(tmp_path: Path) -> None:
    contents = [bytes(20), bytes(range(20)), b"ab"]
    (path,) = written(tmp_path, contents[:1], "GZIP")
    files = CompressedFiles([path.encode()], "GZIP")
    assert files.read(0, 20, 0) == contents[0]
    for content in contents[1:]:
        Path(path).write_bytes(gzip.compress(content))
        assert files.read(0, 20, 0) == content
    Path(path).write_bytes(b"not compressed")
    with pytest.raises(CompressedError, match="header"):
        files.read(0, 1, 0)
    Path(path).unlink()
    with pytest.raises(FileNotFoundError):
        files.read(0, 1, 0)


def test_a_disk_that_is_full_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", "/dev")
    full = Path("/dev/full").open("wb")  # noqa: SIM115, closed with what reads
    monkeypatch.setattr(tempfile, "NamedTemporaryFile", lambda: full)
    reader = reader_here(cut(tf.data.TFRecordDataset(records(tmp_path, "GZIP"), "GZIP").map(coded).batch(2)), 1)
    with pytest.raises(UnreadableRowError, match=r"kept in /dev .* No space left on device.*Make room there"):
        reader.take(np.array([0]))


def test_a_file_that_is_changed_is_an_error(tmp_path: Path) -> None:
    files = records(tmp_path, "GZIP")
    reader = reader_here(cut(tf.data.TFRecordDataset(files, "GZIP").map(coded).batch(2)), 1)
    with open(files[2], "r+b") as file:
        file.truncate(20)
    reader.take(np.array([0, 2]))
    with pytest.raises(UnreadableRowError, match="has been changed"):
        reader.take(np.array([4]))
    Path(files[2]).unlink()
    with pytest.raises(UnreadableRowError) as caught:
        reader.take(np.array([3]))
    assert caught.value.step_code == tf.errors.NOT_FOUND


def test_another_compression_is_told(tmp_path: Path) -> None:
    (path,) = written(tmp_path, [b"content"], "GZIP")
    with pytest.raises(CompressedError, match="header"):
        CompressedFiles([path.encode()], "ZLIB").read(0, 1, 0)
