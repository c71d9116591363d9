"""Reads streams of messages that may break."""

import contextlib
from collections.abc import Iterator

import grpc


def until_broken(requests: Iterator[bytes]) -> Iterator[bytes]:
    """Yields messages until their stream ends or breaks."""
    with contextlib.suppress(grpc.RpcError):
        yield from requests
