"""Blobs for tests."""

from fdt.transport.blob_store import BlobStore
from fdt.transport.blobs import reference
from fdt.v1 import blobs_pb2


def write(store: BlobStore, content: bytes) -> blobs_pb2.BlobRef:
    """Adds a blob named by its content, unless the store has it; returns its name."""
    ref = reference(content)
    if not store.has(ref):
        store.add(ref, [content])
    return ref
