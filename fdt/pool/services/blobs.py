"""Serves `fdt.v1.Blobs`: uploads and downloads of arrays, programs and states, by their names."""

import time
from collections.abc import Callable, Iterator

import grpc

from fdt.base.config import Timing
from fdt.base.limits import Limits
from fdt.errors import CapacityError
from fdt.pool.access import Access, Caller
from fdt.transport import wire
from fdt.transport.blob_store import BlobStore, not_here
from fdt.transport.blobs import Buffer, decode_data, encode_data
from fdt.v1 import blobs_pb2


class Blobs:
    """The service `fdt.v1.Blobs`."""

    def __init__(self, store: BlobStore, limits: Limits, timing: Timing, access: Access) -> None:
        self._store, self._limits, self._timing, self._access = store, limits, timing, access

    def FindMissing(
        self, request: blobs_pb2.FindMissingRequest, context: grpc.ServicerContext
    ) -> blobs_pb2.FindMissingReply:
        if len(request.blobs) > self._limits.asked_blobs:
            raise CapacityError(
                f"A request may name {self._limits.asked_blobs:,} blobs. Received: {len(request.blobs):,} blobs"
            )
        caller = self._access.caller(context)
        missing = [
            ref for ref in request.blobs if not (may_use(self._store, caller, ref) and self._store.is_whole(ref))
        ]
        return blobs_pb2.FindMissingReply(missing=missing)

    def Put(self, requests: Iterator[bytes], context: grpc.ServicerContext) -> bytes:
        caller, sender = self._access.caller(context), self._access.counted_as(context)
        return self.take(self._access.while_valid(caller, requests), sender, caller.name, lambda _: None)

    def take(
        self, requests: Iterator[bytes], sender: str, owner: str, check: Callable[[blobs_pb2.BlobRef], None]
    ) -> bytes:
        """Stores an upload; returns a serialised reply.

        Args:
            requests: Serialised chunks.
            sender: The client; the disk space of one client's unfinished uploads is bounded.
            owner: The person who may use the blob from now on; "" for the operator.
            check: Called with the blob's name and size; raises if the upload is not allowed.
        """
        first = wire.decode(blobs_pb2.PutChunk, next(requests, b""))
        check(first.blob)
        data = _prefixed(first.data, (decode_data(raw, blobs_pb2.PutChunk, 2) for raw in requests))
        self._store.put(first.blob, self._paced(data), sender, owner)
        return blobs_pb2.PutReply(received_bytes=first.blob.size_bytes).SerializeToString()

    def Get(self, raw: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
        caller, ref = self._access.caller(context), wire.decode(blobs_pb2.BlobRef, raw)
        if not may_use(self._store, caller, ref):
            raise not_here(ref)
        return self._access.while_valid(caller, self.give(ref))

    def give(self, ref: blobs_pb2.BlobRef) -> Iterator[bytes]:
        """Yields a blob as serialised chunks."""
        for chunk in self._store.chunks(ref):
            yield encode_data(chunk, 1)

    def _paced(self, chunks: Iterator[Buffer]) -> Iterator[Buffer]:
        """Yields an upload's chunks, and ends it if it is too slow over `chunk_s`; the rate limiter ends one that pauses."""
        least_bytes = int(self._limits.upload_bytes_s * self._timing.chunk_s)
        began_s, num_bytes = time.monotonic(), 0
        for chunk in chunks:
            yield chunk
            num_bytes += len(chunk)
            if time.monotonic() - began_s < self._timing.chunk_s:
                continue
            if num_bytes < least_bytes:
                raise CapacityError(
                    f"An upload must bring at least {least_bytes:,} bytes in {self._timing.chunk_s:g} s. Received: "
                    f"{num_bytes:,} bytes"
                )
            began_s, num_bytes = time.monotonic(), 0


def may_use(store: BlobStore, caller: Caller, ref: blobs_pb2.BlobRef) -> bool:
    """Returns whether a caller may fetch a blob and train on it, if it is here."""
    return caller.sees_all or store.owns(caller.name, ref)


def _prefixed(first: bytes, rest: Iterator[memoryview]) -> Iterator[Buffer]:
    if first:
        yield first
    yield from rest
