"""What strangers and a client gone wild do to a pool, for so many seconds; prints what they were answered, as JSON.

    python benchmarks/besiegers.py ATTACK HOST:PORT TOKEN_FILE SECONDS

Bounded in number and time, and only ever for a pool on loopback that the caller has started itself.
"""

import collections
import itertools
import json
import os
import selectors
import socket
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc

NUM_CONNECTIONS = 1_000
NUM_HALF_OPEN = 2_000
NUM_STRANGE_CALLS = 10_000
NUM_MALFORMED = 20_000
NUM_STREAMS = 200
# The beginning of what an HTTP/2 client says first.
_HALF_A_PREFACE = b"PRI * HTTP/2.0\r\n"
_UNARY = ("Pool/Describe", "Pool/ListJobs", "Pool/CancelJob", "Blobs/FindMissing")
_STREAMS = ("Jobs/Train", "Blobs/Put", "Hosts/Attach", "Workers/Attach")

Answers = collections.Counter[str]


def hold(address: str, number: int, first: bytes, seconds: float) -> Answers:
    """Holds connections open that say only this; opens another one for each that is dropped."""
    host, port = address.split(":")
    answers: Answers = collections.Counter()
    end_s = time.monotonic() + seconds
    with selectors.DefaultSelector() as selector:
        while time.monotonic() < end_s:
            if len(selector.get_map()) < number:
                with socket.socket() as connection:
                    connection.settimeout(1.0)
                    try:
                        connection.connect((host, int(port)))
                        connection.sendall(first)
                    except OSError as error:
                        answers[type(error).__name__] += 1
                        time.sleep(0.05)
                        continue
                    answers["opened"] += 1
                    connection.setblocking(False)
                    selector.register(os.dup(connection.fileno()), selectors.EVENT_READ)
            for key, _ in selector.select(0 if len(selector.get_map()) < number else 0.1):
                if not _alive(key.fd):
                    answers["dropped by the pool"] += 1
                    selector.unregister(key.fd)
                    os.close(key.fd)
        answers["held at the end"] = len(selector.get_map())
        for descriptor in list(selector.get_map()):
            os.close(descriptor)
    return answers


def _alive(descriptor: int) -> bool:
    try:
        return bool(os.read(descriptor, 4096))
    except BlockingIOError:
        return True
    except OSError:
        return False


def call(address: str, token: str | None, number: int, seconds: float) -> Answers:
    """Makes calls with random bytes, spread evenly over the time."""
    answers: Answers = collections.Counter()
    metadata = (("fdt-token", token),) if token is not None else ()
    with grpc.insecure_channel(address) as channel:
        methods = itertools.cycle(
            [*(_unary(channel, name) for name in _UNARY), *(_stream(channel, n) for n in _STREAMS)]
        )
        began_s = time.monotonic()
        for count in range(number):
            ahead_s = began_s + seconds * count / number - time.monotonic()
            if ahead_s > 0:
                time.sleep(ahead_s)
            answers[next(methods)(os.urandom(1 + count % 200), metadata)] += 1
        answers["seconds"] = round(time.monotonic() - began_s)
    return answers


Method = Callable[[bytes, tuple[tuple[str, str], ...]], str]


def _unary(channel: grpc.Channel, name: str) -> Method:
    make = channel.unary_unary(f"/fdt.v1.{name}")
    return lambda payload, metadata: _status(lambda: make(payload, timeout=10, metadata=metadata))


def _stream(channel: grpc.Channel, name: str) -> Method:
    make = channel.stream_stream(f"/fdt.v1.{name}")
    return lambda payload, metadata: _status(lambda: list(make(iter([payload]), timeout=10, metadata=metadata)))


def _status(ask: Callable[[], object]) -> str:
    try:
        ask()
    except grpc.RpcError as error:
        code: grpc.StatusCode = error.code()  # type: ignore[attr-defined]
        return code.name
    return "OK"


def silent_streams(address: str, token: str, number: int, seconds: float) -> Answers:
    """Opens streams that never say anything."""
    answers: Answers = collections.Counter()
    end_s = time.monotonic() + seconds
    with grpc.insecure_channel(address) as channel:
        train = channel.stream_stream("/fdt.v1.Jobs/Train")
        calls = [train(_nothing(end_s), metadata=(("fdt-token", token),), timeout=seconds) for _ in range(number)]
        for stream in calls:
            answers[_status(lambda stream=stream: list(stream))] += 1  # type: ignore[misc]
    return answers


def _nothing(end_s: float) -> Iterator[bytes]:
    time.sleep(max(0.0, end_s - time.monotonic()))
    yield from ()


ATTACKS: dict[str, Callable[[str, str, float], Answers]] = {
    "silent connections": lambda address, _, seconds: hold(address, NUM_CONNECTIONS, b"", seconds),
    "half-open connections": lambda address, _, seconds: hold(address, NUM_HALF_OPEN, _HALF_A_PREFACE, seconds),
    "calls without a token": lambda address, _, seconds: call(address, None, NUM_STRANGE_CALLS, seconds),
    "malformed messages": lambda address, token, seconds: call(address, token, NUM_MALFORMED, seconds),
    "silent streams": lambda address, token, seconds: silent_streams(address, token, NUM_STREAMS, seconds),
}


def main() -> None:
    kind, address, token_file, seconds = sys.argv[1:]
    token = Path(token_file).read_text().strip()
    print(json.dumps(ATTACKS[kind](address, token, float(seconds))))


if __name__ == "__main__":
    main()
