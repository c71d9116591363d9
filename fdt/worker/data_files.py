"""Opens data sets whose rows are files: looks whether this worker can and may read them before the first step."""

import errno
import os
from collections.abc import Sequence

import numpy as np

from fdt.base import file_identity
from fdt.errors import ProtocolError
from fdt.program import compressed_file, row_function
from fdt.program.engine import bound_arrays
from fdt.program.record_index import Records
from fdt.program.row_reader import Column, Files, RowReader, WholeFiles, columns, files_of_records, text_column
from fdt.transport import wire
from fdt.transport.blob_store import BlobStore
from fdt.v1 import job_pb2, program_pb2
from fdt.worker.worker_config import WorkerConfig


class _UnreadableError(Exception):
    """A file cannot be had, and why."""


def opened(
    store: BlobStore, bind: job_pb2.BindData, num_threads: int, config: WorkerConfig
) -> tuple[RowReader | None, str]:
    """Opens a data set whose rows are files.

    Args:
        store: The store of this host's blobs.
        bind: The client's instruction, whose function the pool has examined.
        num_threads: How many rows are computed at once.
        config: This worker's settings, which say what it reads.

    Returns:
        What reads its rows, and ""; None and which file cannot be read, and why.

    Raises:
        ProtocolError: The instruction contradicts itself.
    """
    read = bind.read
    if not 0 < read.num_files <= len(bind.arrays):
        raise ProtocolError(f"A row has files, named by arrays. Received: num_files={read.num_files}")
    first, sizes = len(bind.arrays) - read.num_files, list[Column | None]([None]) * read.num_files
    names = [_names(store, array) for array in bind.arrays[first:]]
    try:
        if config.reads_all:
            for of_file in names:
                _check_rights(of_file)
        else:
            known = _sizes(store, read, [len(of_file) for of_file in names])
            folders = _Folders(config.data)
            names = [folders.files(of_file, of_size) for of_file, of_size in zip(names, known, strict=True)]
            _check_digests(names, read.digests)
            sizes = list(columns(store, read.sizes))
    except _UnreadableError as error:
        return None, str(error)
    function = wire.decode(program_pb2.StepProgram, store.open(read.function).tobytes())
    if read.HasField("records"):
        files: list[Files] = [files_of_records(names[0], _records(store, read.records))]
    else:
        texts = [text_column(row_function.packed_texts(of_file), len(of_file)) for of_file in names]
        files = list(map(WholeFiles, texts, sizes))
    return RowReader(function, columns(store, bind.arrays[:first]), files, num_threads), ""


def _names(store: BlobStore, array: job_pb2.Array) -> list[bytes]:
    if array.tensor.dtype != "string" or len(array.tensor.shape) != 1:
        raise ProtocolError(f"Names of files are texts. Received: dtype={array.tensor.dtype}")
    places, texts = row_function.unpacked_texts(store.open(array.blob), int(array.tensor.shape[0]))
    return [texts[begin:end] for begin, end in zip(places[:-1].tolist(), places[1:].tolist(), strict=True)]


def _records(store: BlobStore, records: job_pb2.Records) -> Records:
    """Returns where rows lie in their files."""
    told = [records.file, records.offset, *([records.length] if records.HasField("length") else [])]
    file, offset, *length = (tensor.numpy() for tensor in bound_arrays(store, told))
    if file.dtype != np.int32 or any(values.dtype != np.int64 for values in (offset, *length)):
        raise ProtocolError("Places in files are integers.")
    if any(values.ndim != 1 for values in (file, offset, *length)):
        raise ProtocolError("A row has one place in its file.")
    if records.compression and (records.compression not in compressed_file.KINDS or not length):
        raise ProtocolError(f"Records are compressed as {', '.join(compressed_file.KINDS)}, and have a length.")
    return Records(file, offset, length[0] if length else None, records.are_lines, records.compression)


def _check_rights(names: Sequence[bytes]) -> None:
    """Looks whether this process may read some of the script's own files; of a missing one the script is told at its step."""
    for row in file_identity.sampled(len(names)):
        try:
            os.close(os.open(names[row], os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK))
        except OSError as error:
            if error.errno in (errno.EACCES, errno.EPERM):
                raise _UnreadableError(f"{os.fsdecode(names[row])}: {error.strerror}") from None


def _sizes(store: BlobStore, read: job_pb2.ReadRows, lengths: Sequence[int]) -> list[np.ndarray]:
    """Returns the sizes that the client's files have."""
    if len(read.sizes) != read.num_files:
        raise ProtocolError("A client says how large its files are, where the pool may have other ones of their names.")
    known = [tensor.numpy() for tensor in bound_arrays(store, read.sizes)]
    if any(of_file.dtype != np.int64 or of_file.shape != (n,) for of_file, n in zip(known, lengths, strict=True)):
        raise ProtocolError("Each file has one size, an integer.")
    return known


class _Folders:
    """The folders of data sets that an operator has listed."""

    def __init__(self, listed: Sequence[str]) -> None:
        """
        Args:
            listed: Absolute paths, resolved.
        """
        self._listed = [os.fsencode(os.path.realpath(folder)) for folder in listed]
        # By a folder as it is named, what it is.
        self._resolved: dict[bytes, bytes] = {}

    def files(self, names: Sequence[bytes], sizes: np.ndarray) -> list[bytes]:
        """Returns the resolved paths of these files.

        Args:
            names: Absolute paths.
            sizes: int64, the client's sizes in bytes.

        Raises:
            _UnreadableError: One of them is not in a listed folder, or is another file than the client's.
        """
        found = []
        for name, size in zip(names, sizes.tolist(), strict=True):
            path = self._path(name)
            if not self._is_listed(path):
                raise _UnreadableError(f"{os.fsdecode(name)} is in no folder that the pool's operator lists (--data)")
            here = file_identity.size(path)
            if here != size or here < 0:
                what = "no file there" if here < 0 else f"a file of {here:,} bytes there, not of {size:,}"
                raise _UnreadableError(f"{os.fsdecode(name)}: the pool has {what}")
            found.append(path)
        return found

    def _path(self, name: bytes) -> bytes:
        """Resolves links and `..`; of a file in a folder that is known, with one look at the file."""
        folder, _, base = name.rpartition(b"/")
        if not name.startswith(b"/") or b"\0" in name or base in (b"", b".", b".."):
            raise _UnreadableError(f"{os.fsdecode(name)!r} is not the absolute path of a file")
        if folder not in self._resolved:
            self._resolved[folder] = os.path.realpath(folder or b"/")
        path = os.path.join(self._resolved[folder], base)
        return os.path.realpath(path) if os.path.islink(path) else path

    def _is_listed(self, path: bytes) -> bool:
        return any(path.startswith(folder + b"/") for folder in self._listed)


def _check_digests(names: Sequence[Sequence[bytes]], digests: Sequence[job_pb2.FileDigest]) -> None:
    told = {(each.file, each.row): each.digest for each in digests}
    for file, of_file in enumerate(names):
        for row in file_identity.sampled(len(of_file)):
            here, name = file_identity.digest(of_file[row]), os.fsdecode(of_file[row])
            if not here:
                raise _UnreadableError(f"{name}: the pool's workers may not read it")
            if told.get((file, row)) != here:
                raise _UnreadableError(f"{name}: the pool has a file with other content there")
