"""Streams of messages that end in whatever way."""

import contextlib
from collections.abc import Iterator

import grpc


def until_broken(requests: Iterator[bytes]) -> Iterator[bytes]:
    """Passes messages on until their stream ends, or breaks."""
    with contextlib.suppress(grpc.RpcError):
        yield from requests
