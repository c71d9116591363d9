"""What a worker opens of the files that a client names: those of the listed folders that are the client's, and no others."""

import dataclasses
import gzip
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from fdt.base import file_identity
from fdt.base.config import Timing
from fdt.capture.row_files import cut
from fdt.client.data import renamed
from fdt.errors import ProtocolError
from fdt.program.row_function import packed_texts
from fdt.program.row_reader import RowReader, UnreadableRowError
from fdt.transport.blob_store import BlobStore
from fdt.v1 import job_pb2, program_pb2
from fdt.worker.data_files import opened
from fdt.worker.worker_config import WorkerConfig
from tests.helpers.blobs import write


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    folder.mkdir()
    for number in range(4):
        (folder / f"{number}").write_bytes(bytes([number, number]))
    (tmp_path / "secret").write_bytes(b"xy")
    (tmp_path / "data beside").mkdir()
    (tmp_path / "data beside" / "0").write_bytes(b"xy")
    return folder


@dataclasses.dataclass
class Asked:
    """A client's request, and a worker that gets it."""

    store: BlobStore
    bind: job_pb2.BindData
    config: WorkerConfig

    def opened(self) -> tuple[RowReader | None, str]:
        return opened(self.store, self.bind, 1, self.config)


def ask(folder: Path, paths: list[Path | str]) -> Asked:
    """Returns a request for rows of two bytes, from a client that has these files."""
    names = [os.fsencode(path) for path in paths]
    function = cut(tf.data.Dataset.from_tensor_slices(["/a"]).map(two_bytes).batch(1)).function
    store = BlobStore(folder.parent / "store")

    def array(values: np.ndarray, dtype: str) -> job_pb2.Array:
        tensor = program_pb2.Tensor(dtype=dtype, shape=[len(names)])
        return job_pb2.Array(tensor=tensor, blob=write(store, values.tobytes()))

    read = job_pb2.ReadRows(function=write(store, function.SerializeToString()), num_files=1)
    read.sizes.append(array(np.array([file_identity.size(name) for name in names], "<i8"), "int64"))
    for row in file_identity.sampled(len(names)):
        read.digests.add(file=0, row=row, digest=file_identity.digest(names[row]))
    bind = job_pb2.BindData(data=1, arrays=[array(packed_texts(names), "string")], read=read)
    return Asked(store, bind, WorkerConfig("pool", "w", "store", "folder", Timing(), data=(str(folder),)))


def two_bytes(path: tf.Tensor) -> tf.Tensor:
    return tf.ensure_shape(tf.io.decode_raw(tf.io.read_file(path), tf.uint8), [2])


def test_files_of_a_listed_folder_are_read(data: Path) -> None:
    inside = data / "link"
    inside.symlink_to(data / "2")
    reader, missing = ask(data, [data / "0", data / "3", f"{data}/../data/1", inside]).opened()
    assert reader is not None and missing == ""
    np.testing.assert_array_equal(reader.take(np.array([3, 1, 2]))[0], [[2, 2], [3, 3], [1, 1]])


def linked(data: Path) -> str:
    (data / "out").symlink_to(data.parent / "secret")
    return str(data / "out")


def in_a_linked_folder(data: Path) -> str:
    (data / "folder").symlink_to(data.parent)
    return str(data / "folder" / "secret")


def pipe(data: Path) -> str:
    os.mkfifo(data / "pipe")
    return str(data / "pipe")


LEADING_OUT: dict[str, tuple[Callable[[Path], str], str]] = {
    "beside": (lambda data: str(data.parent / "secret"), "no folder that the pool's operator lists"),
    "dots": (lambda data: f"{data}/../secret", "no folder"),
    "a name that begins alike": (lambda data: f"{data} beside/0", "no folder"),
    "a link": (linked, "no folder"),
    "a link to a folder": (in_a_linked_folder, "no folder"),
    "the process": (lambda data: "/proc/self/environ", "no folder"),
    "the process, by dots": (lambda data: f"{data}/../../../../../../../../proc/self/environ", "no folder"),
    "relative": (lambda data: os.path.relpath(data / "0"), "absolute"),
    "of a kind that waits": (pipe, "no file there"),
    "the folder itself": (lambda data: f"{data}/.", "absolute"),
    "missing": (lambda data: f"{data}/9", "no file there"),
    "elsewhere": (lambda data: "gs://bucket/0", "absolute"),
}


@pytest.mark.parametrize("name", LEADING_OUT)
def test_nothing_else_is(name: str, data: Path) -> None:
    make, why = LEADING_OUT[name]
    reader, missing = ask(data, [data / "0", make(data)]).opened()
    assert reader is None
    assert why in missing


def test_a_pool_without_folders_reads_nothing(data: Path) -> None:
    asked = ask(data, [data / "0"])
    asked.config = dataclasses.replace(asked.config, data=())
    reader, missing = asked.opened()
    assert reader is None and "no folder" in missing


def with_records(asked: Asked, compression: str, **places: np.ndarray) -> Asked:
    """Says that the rows of a request are records of its files."""
    records = asked.bind.read.records
    for name, values in places.items():
        tensor = program_pb2.Tensor(dtype=values.dtype.name, shape=values.shape)
        getattr(records, name).CopyFrom(job_pb2.Array(tensor=tensor, blob=write(asked.store, values.tobytes())))
    records.compression = compression
    return asked


FILE, OFFSET, LENGTH = np.array([1, 0], "<i4"), np.array([0, 0], "<i8"), np.array([2, 2], "<i8")


def test_records_of_compressed_files_are_read(data: Path) -> None:
    for number in range(2):
        (data / f"{number}").write_bytes(gzip.compress(bytes([number, number, 9])))
    places = {"file": FILE, "offset": np.array([0, 1], "<i8"), "length": LENGTH}
    reader, missing = with_records(ask(data, [data / "0", data / "1"]), "GZIP", **places).opened()
    assert reader is not None and missing == ""
    np.testing.assert_array_equal(reader.take(np.array([1, 0]))[0], [[0, 9], [1, 1]])


def test_files_that_are_not_compressed_as_a_client_says_are_an_error(data: Path) -> None:
    places = {"file": FILE, "offset": OFFSET, "length": LENGTH}
    reader, _ = with_records(ask(data, [data / "0", data / "1"]), "GZIP", **places).opened()
    assert reader is not None
    with pytest.raises(UnreadableRowError):
        reader.take(np.array([0]))


@pytest.mark.parametrize(
    ("compression", "places"),
    [
        ("BZ2", {"file": FILE, "offset": OFFSET, "length": LENGTH}),
        ("GZIP", {"file": FILE, "offset": OFFSET}),
        ("", {"file": FILE, "offset": OFFSET.astype("<f8"), "length": LENGTH}),
        ("", {"file": FILE[None], "offset": OFFSET, "length": LENGTH}),
        ("", {"file": FILE + 1, "offset": OFFSET, "length": LENGTH}),
    ],
)
def test_records_that_contradict_themselves_are_refused(
    compression: str, places: dict[str, np.ndarray], data: Path
) -> None:
    with pytest.raises(ProtocolError):
        with_records(ask(data, [data / "0", data / "1"]), compression, **places).opened()


def test_another_file_of_the_same_name_is_not_read(data: Path) -> None:
    asked = ask(data, [data / "0", data / "1"])
    (data / "1").write_bytes(b"abc")
    assert asked.opened() == (None, f"{data}/1: the pool has a file of 3 bytes there, not of 2")
    (data / "1").write_bytes(b"ab")
    assert asked.opened() == (None, f"{data}/1: the pool has a file with other content there")


def test_a_digest_that_lies_opens_nothing(data: Path) -> None:
    asked = ask(data, [data / "0", data / "1"])
    asked.bind.read.digests[1].digest = bytes(32)
    reader, missing = asked.opened()
    assert reader is None and "other content" in missing
    del asked.bind.read.digests[:]
    assert "other content" in asked.opened()[1]
    del asked.bind.read.sizes[:]
    with pytest.raises(ProtocolError, match="how large its files are"):
        asked.opened()


def test_a_file_that_is_changed_later_is_an_error(data: Path) -> None:
    reader, _ = ask(data, [data / "0", data / "1"]).opened()
    assert reader is not None
    (data / "1").write_bytes(b"abc")
    np.testing.assert_array_equal(reader.take(np.array([0]))[0], [[0, 0]])
    with pytest.raises(UnreadableRowError, match="changed, where the pool is"):
        reader.take(np.array([1]))


def test_of_many_files_some_are_looked_into() -> None:
    for number in (1, 2, 255, 256, 257, 1000, 1_000_000):
        chosen = file_identity.sampled(number)
        assert chosen[0] == 0 and chosen[-1] == number - 1
        assert len(chosen) == min(number, file_identity.SAMPLED)


def test_a_run_of_its_own_reads_what_its_user_may_read(data: Path) -> None:
    asked = ask(data, [data / "0", data.parent / "secret", data / "9"])
    asked.config = dataclasses.replace(asked.config, data=(), reads_all=True)
    reader, missing = asked.opened()
    assert reader is not None and missing == ""
    np.testing.assert_array_equal(reader.take(np.array([1]))[0], [list(b"xy")])
    # Of a file that is not there the script is told when it comes to the row.
    with pytest.raises(UnreadableRowError) as caught:
        reader.take(np.array([2]))
    assert caught.value.step_code == tf.errors.NOT_FOUND


@pytest.mark.parametrize(
    ("path", "name"),
    [
        (b"/home/me/data/a.png", b"/mnt/a.png"),
        (b"/home/me/data/train/a.png", b"/fast/a.png"),
        (b"/home/me/database/a.png", b"/home/me/database/a.png"),
        (b"/elsewhere/data/a.png", b"/elsewhere/data/a.png"),
    ],
)
def test_a_file_is_named_as_in_the_innermost_folder_that_is_mapped(path: bytes, name: bytes) -> None:
    assert renamed(path, [("/home/me/data/", "/mnt/"), ("/home/me/data/train", "/fast")]) == name
    assert renamed(b"/data/a.png", [("/", "/mnt")]) == b"/mnt/data/a.png"
