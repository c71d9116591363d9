"""The way of Horovod's C++ to the job's meeting place."""

import contextlib
import http.client
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from hfdt import bridge as module
from hfdt.bridge import Bridge, is_own
from tests.helpers.rendezvous import OwnMeetingPlace

# What a stranger on the same machine and of the same user gets, over one connection a request.
STRANGER = """
import http.client, sys
for method, path in (("GET", "/scope/secret"), ("PUT", "/scope/mine"), ("DELETE", "/scope")):
    connection = http.client.HTTPConnection("127.0.0.1", int(sys.argv[1]), timeout=10)
    try:
        connection.request(method, path, body=b"value" if method == "PUT" else None)
        print(method, connection.getresponse().status)
    except (ConnectionError, http.client.RemoteDisconnected) as error:
        print(method, "nothing")
"""


@pytest.fixture
def rendezvous() -> OwnMeetingPlace:
    return OwnMeetingPlace()


@pytest.fixture
def bridge(rendezvous: OwnMeetingPlace) -> Iterator[Bridge]:
    with Bridge(rendezvous) as opened:
        yield opened


def call(bridge: Bridge, method: str, path: str, body: bytes | None = None) -> tuple[int, bytes]:
    with contextlib.closing(http.client.HTTPConnection(*bridge.address, timeout=10)) as connection:
        connection.request(method, path, body=body)
        reply = connection.getresponse()
        return reply.status, reply.read()


def sent(bridge: Bridge, request: bytes) -> bytes:
    with socket.create_connection(bridge.address, timeout=10) as connection:
        connection.sendall(request)
        connection.shutdown(socket.SHUT_WR)
        answer = b""
        # A reset ends an answer as well as an end does.
        with contextlib.suppress(ConnectionResetError):
            while part := connection.recv(65536):
                answer += part
        return answer


def test_what_one_rank_puts_another_gets(bridge: Bridge, rendezvous: OwnMeetingPlace) -> None:
    assert call(bridge, "GET", "/scope/0") == (404, b"")
    assert call(bridge, "PUT", "/scope/0", b"\x00address\xff") == (200, b"")
    assert call(bridge, "GET", "/scope/0") == (200, b"\x00address\xff")
    assert rendezvous.get("/scope/0") == b"\x00address\xff"
    assert call(bridge, "DELETE", "/scope") == (200, b"")


def test_it_is_on_loopback(bridge: Bridge) -> None:
    address, port = bridge.address
    assert address == "127.0.0.1"
    assert bridge.environment() == {
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": "127.0.0.1",
        "HOROVOD_GLOO_RENDEZVOUS_PORT": str(port),
    }


def test_another_process_gets_nothing(bridge: Bridge, rendezvous: OwnMeetingPlace) -> None:
    rendezvous.put("/scope/secret", b"secret")
    command = [sys.executable, "-c", STRANGER, str(bridge.address[1])]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.splitlines() == ["GET nothing", "PUT nothing", "DELETE nothing"]
    assert rendezvous.get("/scope/mine") is None
    assert call(bridge, "GET", "/scope/secret") == (200, b"secret")


def test_ends_of_a_connection_are_told_apart() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        client = socket.create_connection(server.getsockname())
        accepted, address = server.accept()
        with client, accepted:
            assert is_own(address, server.getsockname())
            assert not is_own(address, ("127.0.0.1", 9))
            assert not is_own(("127.0.0.2", address[1]), server.getsockname())


@pytest.mark.parametrize(
    ("length", "status"),
    [
        (b"Content-Length: -1\r\n", b"411"),
        (b"Content-Length: +5\r\n", b"411"),
        (b"Content-Length: 5_0\r\n", b"411"),
        (b"Content-Length: x\r\n", b"411"),
        (b"", b"411"),
        (b"Content-Length: 1048577\r\n", b"413"),
        (b"Content-Length: 99999999999999999999\r\n", b"413"),
    ],
)
def test_a_value_without_an_honest_length_is_refused(
    bridge: Bridge, rendezvous: OwnMeetingPlace, length: bytes, status: bytes
) -> None:
    assert sent(bridge, b"PUT /scope/0 HTTP/1.1\r\n" + length + b"\r\nhello").split()[1] == status
    assert rendezvous.get("/scope/0") is None


def test_what_the_meeting_place_refuses_is_told_as_a_status(
    bridge: Bridge, rendezvous: OwnMeetingPlace, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(bridge, "PUT", "/" + "k" * 300, b"value")[0] == 502
    assert "under keys of at most 256" in capsys.readouterr().err


def test_connections_have_a_bound(bridge: Bridge) -> None:
    with contextlib.ExitStack() as opened:
        for _ in range(module._MAX_HANDLERS):
            silent = opened.enter_context(socket.create_connection(bridge.address, timeout=10))
            silent.sendall(b"GET /scope")
        refused = opened.enter_context(socket.create_connection(bridge.address, timeout=10))
        with contextlib.suppress(ConnectionResetError):
            assert refused.recv(1) == b""
    # Those have gone; their places are free as soon as their threads have noticed.
    for _ in range(1000):
        with contextlib.suppress(ConnectionError, http.client.RemoteDisconnected):
            if call(bridge, "DELETE", "/scope")[0] == 200:
                return
    raise AssertionError("no place became free")


def test_it_is_closed_when_the_ranks_have_met(rendezvous: OwnMeetingPlace) -> None:
    with Bridge(rendezvous) as opened:
        address = opened.address
        assert call(opened, "DELETE", "/scope")[0] == 200
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(address, timeout=10)
    assert "hfdt-bridge" not in [thread.name for thread in threading.enumerate()]
