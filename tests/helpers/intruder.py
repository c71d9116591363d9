"""Somebody who speaks to a pool by hand, as a worker or a host, and looks into the memory of a process."""

import contextlib
import queue
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import grpc
from google.protobuf.message import Message

from fdt.base.versions import host_versions
from fdt.transport.rpc import TOKEN_KEY
from fdt.v1 import host_pb2, worker_pb2
from tests.helpers.train_stream import LIMIT_S

_REGION = re.compile(r"([0-9a-f]+)-([0-9a-f]+) rw.. ")


class Call:
    """A call with a token of one's choice: what is sent goes at once, what comes is waited for."""

    def __init__(self, channel: grpc.Channel, method: str, reply: type[Any], token: str) -> None:
        self._out: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        ask = channel.stream_stream(f"/fdt.v1.{method}", response_deserializer=reply.FromString)
        self._call = ask(iter(self._out.get, None), metadata=((TOKEN_KEY, token),), timeout=LIMIT_S)

    def send(self, *messages: Message) -> "Call":
        for message in messages:
            self._out.put(message.SerializeToString())
        return self

    def next(self) -> Any:
        return next(self._call)

    def outcome(self) -> tuple[grpc.StatusCode, list[Any]]:
        """Ends what is sent; returns the status, and what came."""
        self._out.put(None)
        came: list[Any] = []
        with contextlib.suppress(grpc.RpcError):
            came.extend(self._call)
        return self._call.code(), came

    def break_off(self) -> None:
        """Ends the call, and waits until that is known."""
        self._call.cancel()
        self._out.put(None)


def attach(channel: grpc.Channel, name: str, secret: str) -> Call:
    """Says that it is a worker."""
    ready = worker_pb2.WorkerEvent(ready=worker_pb2.Ready(worker=name))
    return Call(channel, "Workers/Attach", worker_pb2.WorkerInstruction, secret).send(ready)


@contextmanager
def joined(channel: grpc.Channel, token: str, num_workers: int) -> Iterator[dict[str, str]]:
    """Joins as a host that starts no process; yields the names of the workers that it is to start, with their secrets."""
    hello = host_pb2.Hello(
        name="by hand",
        num_workers=num_workers,
        num_cores=1,
        address="127.0.0.1",
        interface="lo",
        versions=host_versions(),
    )
    call = Call(channel, "Hosts/Attach", host_pb2.HostInstruction, token).send(host_pb2.HostEvent(hello=hello))
    assert call.next().HasField("welcome")
    starts = [call.next().start for _ in range(num_workers)]
    yield {start.worker: start.secret for start in starts}
    call.break_off()


def holds(pid: int, text: str) -> bool:
    """Returns whether a text is anywhere in the memory that a process may write to."""
    wanted = text.encode()
    with open(f"/proc/{pid}/maps") as maps, open(f"/proc/{pid}/mem", "rb", 0) as memory:
        for region in filter(None, map(_REGION.match, maps)):
            start, end = (int(each, 16) for each in region.groups())
            # Some of the kernel's own cannot be read.
            with contextlib.suppress(OSError):
                memory.seek(start)
                if wanted in memory.read(end - start):
                    return True
    return False
