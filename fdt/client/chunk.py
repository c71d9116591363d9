"""Packs streamed batches into chunks: a chunk is a data set that is sent, used once and deleted."""

import array
from collections.abc import Iterator, Sequence
from typing import Any

from fdt.v1 import blobs_pb2, job_pb2, program_pb2

# Arrays begin at multiples of this in a chunk's blob, as TensorFlow wants its memory.
_ALIGNMENT_BYTES = 64


class Chunk:
    """Batches whose rows lie one after the other in one array for each input.

    Attributes:
        num_bytes: Size of all batches so far.
    """

    def __init__(self) -> None:
        self._inputs: list[list[Any]] = []
        self._like: list[program_pb2.Tensor] = []
        self._sizes: list[int] = []
        self.num_bytes = 0

    def __len__(self) -> int:
        """Returns the number of batches."""
        return len(self._sizes)

    def takes(self, specs: Sequence[program_pb2.Tensor]) -> bool:
        """Returns whether a batch has the same types, and all dimensions but the first, as those in the chunk."""
        return not self._sizes or (
            len(specs) == len(self._like)
            and all(
                s.dtype == like.dtype and list(s.shape[1:]) == list(like.shape[1:])
                for s, like in zip(specs, self._like, strict=True)
            )
        )

    def add(self, arrays: Sequence[Any], specs: Sequence[program_pb2.Tensor]) -> None:
        """Adds a batch; its memory must stay as it is until the chunk has been sent.

        Args:
            arrays: The bytes of C-contiguous arrays [rows, ...].
            specs: Their descriptions, full shapes included; `takes` has accepted them.
        """
        if not self._sizes:
            self._like = list(specs)
            self._inputs = [[] for _ in specs]
        for pieces, values in zip(self._inputs, arrays, strict=True):
            pieces.append(values)
            self.num_bytes += len(values)
        self._sizes.append(specs[0].shape[0])

    def size_bytes(self) -> int:
        """Returns the length of the chunk's blob."""
        return sum(_padded(length) for length in self._lengths())

    def pieces(self) -> Iterator[Any]:
        """Yields the content of the chunk's blob, copying nothing."""
        for pieces, length in zip(self._inputs, self._lengths(), strict=True):
            yield from pieces
            yield bytes(_padded(length) - length)

    def kept_pieces(self) -> list[Any]:
        """Returns the same pieces, with copies of memory that its owner may write to again."""
        return [piece if memoryview(piece).readonly else bytes(piece) for piece in self.pieces()]

    def arrays(self, blob: blobs_pb2.BlobRef) -> list[job_pb2.Array]:
        """Returns where in the blob each input is."""
        described, offset = [], 0
        for like, length in zip(self._like, self._lengths(), strict=True):
            shape = [sum(self._sizes), *like.shape[1:]]
            tensor = program_pb2.Tensor(name=like.name, dtype=like.dtype, shape=shape)
            described.append(job_pb2.Array(tensor=tensor, blob=blob, offset=offset))
            offset += _padded(length)
        return described

    def batches(self) -> Iterator[bytes]:
        """Yields the rows of each batch, little-endian int64."""
        first = 0
        for size in self._sizes:
            yield array.array("q", range(first, first + size)).tobytes()
            first += size

    def _lengths(self) -> list[int]:
        return [sum(len(piece) for piece in pieces) for pieces in self._inputs]


def _padded(num_bytes: int) -> int:
    return -(-num_bytes // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES
