"""Packs streamed batches into chunks: a chunk is sent with its steps, used once and deleted."""

from collections.abc import Iterator, Sequence
from typing import Any

from fdt.v1 import blobs_pb2, job_pb2, program_pb2

# Arrays begin at multiples of this in a chunk's blob, as TensorFlow wants its memory.
_ALIGNMENT_BYTES = 64
# A smaller chunk travels inside its instruction, once for each worker; a larger one as a blob, once for each host.
INLINE_BYTES = 1 << 16


class _Group:
    """Batches whose rows lie one after the other in one array for each input.

    Attributes:
        like: Descriptions of the arrays of one of the batches.
        sizes: Rows of each batch.
    """

    def __init__(self, like: Sequence[program_pb2.Tensor]) -> None:
        self.like = list(like)
        self.sizes: list[int] = []
        self._inputs: list[list[Any]] = [[] for _ in like]

    def takes(self, specs: Sequence[program_pb2.Tensor]) -> bool:
        """Returns whether a batch has the same types, and all dimensions but the first."""
        return len(specs) == len(self.like) and all(
            s.dtype == like.dtype and list(s.shape[1:]) == list(like.shape[1:])
            for s, like in zip(specs, self.like, strict=True)
        )

    def add(self, arrays: Sequence[Any], rows: int) -> None:
        for pieces, values in zip(self._inputs, arrays, strict=True):
            pieces.append(values)
        self.sizes.append(rows)

    def lengths(self) -> list[int]:
        """Returns the bytes of each input."""
        return [sum(len(piece) for piece in pieces) for pieces in self._inputs]

    def pieces(self) -> Iterator[Any]:
        for pieces, length in zip(self._inputs, self.lengths(), strict=True):
            yield from pieces
            yield bytes(_padded(length) - length)

    def contents(self) -> Iterator[bytes]:
        """Yields the bytes of each input."""
        for pieces in self._inputs:
            yield b"".join(pieces)

    def described(self) -> Iterator[tuple[program_pb2.Tensor, int]]:
        """Yields the description of each input, and its bytes."""
        for like, length in zip(self.like, self.lengths(), strict=True):
            shape = [sum(self.sizes), *like.shape[1:]]
            yield program_pb2.Tensor(name=like.name, dtype=like.dtype, shape=shape), length


class Chunk:
    """Batches of consecutive steps; those whose rows have the same shapes are a group.

    Attributes:
        num_bytes: Size of all batches so far.
    """

    def __init__(self) -> None:
        self._groups: list[_Group] = []
        self.num_bytes = 0

    def __len__(self) -> int:
        """Returns the number of batches."""
        return sum(len(group.sizes) for group in self._groups)

    @property
    def is_small(self) -> bool:
        """Whether it travels inside its instruction."""
        return self.num_bytes <= INLINE_BYTES

    def add(self, arrays: Sequence[Any], specs: Sequence[program_pb2.Tensor]) -> None:
        """Adds a batch; its memory must stay as it is until the chunk has been sent.

        Args:
            arrays: The bytes of C-contiguous arrays [rows, ...].
            specs: Their descriptions, full shapes included.
        """
        if not self._groups or not self._groups[-1].takes(specs):
            self._groups.append(_Group(specs))
        self._groups[-1].add(arrays, specs[0].shape[0])
        self.num_bytes += sum(map(len, arrays))

    def size_bytes(self) -> int:
        """Returns the length of the chunk's blob."""
        return sum(_padded(length) for group in self._groups for length in group.lengths())

    def pieces(self) -> Iterator[Any]:
        """Yields the content of the chunk's blob, copying nothing."""
        for group in self._groups:
            yield from group.pieces()

    def kept_pieces(self) -> list[Any]:
        """Returns the same pieces, with copies of memory that its owner may write to again."""
        return [piece if memoryview(piece).readonly else bytes(piece) for piece in self.pieces()]

    def inside(self) -> job_pb2.Chunk:
        """Returns the message with the arrays' bytes inside."""
        arrays = [
            job_pb2.Array(tensor=tensor, content=content)
            for group in self._groups
            for (tensor, _), content in zip(group.described(), group.contents(), strict=True)
        ]
        return job_pb2.Chunk(arrays=arrays, groups=len(self._groups))

    def within(self, blob: blobs_pb2.BlobRef) -> job_pb2.Chunk:
        """Returns the message that says where in the blob each input of each group is."""
        chunk, offset = job_pb2.Chunk(groups=len(self._groups)), 0
        for tensor, length in (each for group in self._groups for each in group.described()):
            chunk.arrays.append(job_pb2.Array(tensor=tensor, blob=blob, offset=offset))
            offset += _padded(length)
        return chunk

    def batches(self) -> list[job_pb2.Batch]:
        """Returns how many rows each batch has, and in which group."""
        return [
            job_pb2.Batch(group=number, following=size)
            for number, group in enumerate(self._groups)
            for size in group.sizes
        ]


def _padded(num_bytes: int) -> int:
    return -(-num_bytes // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES
