"""`fdt.v1.Blobs`: arrays, programs and states, by their names."""

import time
from collections.abc import Callable, Iterator

import grpc

from fdt.base.config import Timing
from fdt.base.limits import Limits
from fdt.errors import CapacityError
from fdt.transport import wire
from fdt.transport.blob_store import BlobStore
from fdt.transport.blobs import Buffer, decode_data, encode_data
from fdt.v1 import blobs_pb2


class Blobs:
    """`fdt.v1.Blobs`."""

    def __init__(self, store: BlobStore, limits: Limits, timing: Timing) -> None:
        self._store, self._limits, self._timing = store, limits, timing

    def FindMissing(self, request: blobs_pb2.FindMissingRequest, _: grpc.ServicerContext) -> blobs_pb2.FindMissingReply:
        if len(request.blobs) > self._limits.asked_blobs:
            raise CapacityError(
                f"One question may name {self._limits.asked_blobs:,} blobs. Received: {len(request.blobs):,} blobs"
            )
        return blobs_pb2.FindMissingReply(missing=[ref for ref in request.blobs if not self._store.is_whole(ref)])

    def Put(self, requests: Iterator[bytes], context: grpc.ServicerContext) -> bytes:
        return self.take(requests, context, lambda _: None)

    def take(
        self,
        requests: Iterator[bytes],
        context: grpc.ServicerContext,
        check: Callable[[blobs_pb2.BlobRef], None],
    ) -> bytes:
        """Takes an upload; `check` raises for a blob that is not allowed."""
        first = wire.decode(blobs_pb2.PutChunk, next(requests, b""))
        check(first.blob)
        data = _prefixed(first.data, (decode_data(raw, blobs_pb2.PutChunk, 2) for raw in requests))
        self._store.put(first.blob, self._paced(data), context.peer())
        return blobs_pb2.PutReply(received_bytes=first.blob.size_bytes).SerializeToString()

    def Get(self, raw: bytes, _: grpc.ServicerContext) -> Iterator[bytes]:
        return self.give(wire.decode(blobs_pb2.BlobRef, raw))

    def give(self, ref: blobs_pb2.BlobRef) -> Iterator[bytes]:
        """Yields a blob as serialised chunks."""
        for chunk in self._store.chunks(ref):
            yield encode_data(chunk, 1)

    def _paced(self, chunks: Iterator[Buffer]) -> Iterator[Buffer]:
        """Ends an upload that is too slow over `chunk_s`; the rate limiter ends one that pauses."""
        least_bytes = int(self._limits.upload_bytes_s * self._timing.chunk_s)
        began_s, num_bytes = time.monotonic(), 0
        for chunk in chunks:
            yield chunk
            num_bytes += len(chunk)
            if time.monotonic() - began_s < self._timing.chunk_s:
                continue
            if num_bytes < least_bytes:
                raise CapacityError(
                    f"An upload brings at least {least_bytes:,} bytes in {self._timing.chunk_s:g} s. Received: "
                    f"{num_bytes:,} bytes"
                )
            began_s, num_bytes = time.monotonic(), 0


def _prefixed(first: bytes, rest: Iterator[memoryview]) -> Iterator[Buffer]:
    if first:
        yield first
    yield from rest
