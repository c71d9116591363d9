"""What a tunnel lets through, and whom."""

import contextlib
import hashlib
import json
import os
import socket
import ssl
import threading
from collections.abc import Callable, Iterator

import pytest

from fdt.worker import tunnel
from fdt.worker.tunnel import Member, Secured, Tunnel, _accept, _Identity, _proven

LIMIT_S = 20.0
OWN = "127.0.0.1"


def member(identity: _Identity, port: int = 0) -> Member:
    return Member(identity.address, port, identity.certificate, (OWN, 0))


def connected() -> tuple[socket.socket, socket.socket]:
    with socket.create_server((OWN, 0)) as listener:
        one = socket.create_connection(listener.getsockname(), LIMIT_S)
        other, _ = listener.accept()
    for end in (one, other):
        end.settimeout(LIMIT_S)
    return one, other


def both(one: Callable[[], object], other: Callable[[], object]) -> tuple[object, object]:
    """Runs two things at once and returns what they returned or raised."""
    found: dict[int, object] = {}

    def run(number: int, do: Callable[[], object]) -> None:
        try:
            found[number] = do()
        except Exception as error:
            found[number] = error

    threads = [threading.Thread(target=run, args=each) for each in enumerate((one, other))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(2 * LIMIT_S)
    return found[0], found[1]


def secured(
    client: _Identity, server: _Identity, expected: _Identity, known: _Identity
) -> tuple[object, object, socket.socket, socket.socket]:
    """Lets a client that expects one certificate meet a server that knows one."""
    here, there = connected()
    dialling = client.context(ssl.PROTOCOL_TLS_CLIENT, [member(expected)])
    accepting = server.context(ssl.PROTOCOL_TLS_SERVER, [member(known)])
    one, other = both(
        lambda: _proven(here, dialling, [member(expected)], server=False),
        lambda: _proven(there, accepting, [member(known)], server=True),
    )
    return one, other, here, there


@pytest.fixture(scope="module")
def identities() -> tuple[_Identity, _Identity, _Identity]:
    return (_Identity.make(OWN), _Identity.make(OWN), _Identity.make(OWN))


Pair = tuple[Secured, Secured]


@pytest.fixture
def pair(identities: tuple[_Identity, ...]) -> Iterator[Pair]:
    client, server, _ = identities
    one, other, *sockets = secured(client, server, server, client)
    assert isinstance(one, Secured) and isinstance(other, Secured), (one, other)
    yield one, other
    for end in sockets:
        end.close()


def received(end: Secured) -> bytes:
    buffer, whole = memoryview(bytearray(100_000)), hashlib.sha256()
    while size := end.receive(buffer):
        whole.update(buffer[:size])
    return whole.digest()


def test_bytes_go_both_ways_at_once_and_each_way_ends_by_itself(pair: Pair) -> None:
    """One side has long ended when the other begins."""
    one, other = pair
    short, long = b"question", os.urandom(9_999_999)

    def ask() -> bytes:
        one.send(memoryview(short))
        one.end()
        return received(one)

    def answer() -> bytes:
        question = received(other)
        other.send(memoryview(long))
        other.end()
        return question

    assert both(ask, answer) == (hashlib.sha256(long).digest(), hashlib.sha256(short).digest())


def test_nothing_is_lost_of_what_came_before_an_end(pair: Pair) -> None:
    """The other side's data wait unread when this side says its end."""
    one, other = pair
    content = os.urandom(3_000_000)

    def go(end: Secured) -> bytes:
        sending = threading.Thread(target=lambda: (end.send(memoryview(content)), end.end()))
        # What has come is decrypted, and more of it than the buffer takes.
        sending.start()
        first = memoryview(bytearray(10))
        assert end.receive(first) == 10
        rest, whole = memoryview(bytearray(1000)), hashlib.sha256(first)
        while size := end.receive(rest):
            whole.update(rest[:size])
        sending.join(LIMIT_S)
        return whole.digest()

    digest = hashlib.sha256(content).digest()
    assert both(lambda: go(one), lambda: go(other)) == (digest, digest)


def test_a_connection_that_is_cut_is_no_end(pair: Pair) -> None:
    one, other = pair
    one.send(memoryview(b"half"))
    one._plain.end()
    buffer = memoryview(bytearray(10))
    assert other.receive(buffer) == 4
    with pytest.raises(ConnectionResetError, match="in the middle"):
        other.receive(buffer)


@pytest.mark.parametrize("number", [0, 1])
def test_each_of_several_hosts_is_let_in(identities: tuple[_Identity, ...], number: int) -> None:
    server, *clients = identities
    here, there = connected()
    known, expected = [member(client) for client in clients], [member(server)]
    accepting = server.context(ssl.PROTOCOL_TLS_SERVER, known)
    dialling = clients[number].context(ssl.PROTOCOL_TLS_CLIENT, expected)
    with here, there:
        ends = both(
            lambda: _proven(here, dialling, expected, server=False),
            lambda: _proven(there, accepting, known, server=True),
        )
        assert all(isinstance(end, Secured) for end in ends), ends


def test_one_that_is_known_to_nobody_is_refused(identities: tuple[_Identity, ...]) -> None:
    client, server, stranger = identities
    # A stranger who knows the server's certificate, which is no secret.
    _, refused, *sockets = secured(stranger, server, server, client)
    assert isinstance(refused, ssl.SSLError) and "certificate verify failed" in str(refused)
    # And one who takes the server's place.
    refused, _, *more = secured(client, stranger, server, client)
    assert isinstance(refused, ssl.SSLError) and "certificate verify failed" in str(refused)
    for end in (*sockets, *more):
        end.close()


def test_one_certificate_does_not_stand_for_another(identities: tuple[_Identity, ...]) -> None:
    """Even if the library took it: what was shown is compared."""
    client, server, other = identities
    here, there = connected()
    dialling = client.context(ssl.PROTOCOL_TLS_CLIENT, [member(server)])
    accepting = server.context(ssl.PROTOCOL_TLS_SERVER, [member(client)])
    _, refused = both(
        lambda: _proven(here, dialling, [member(server)], server=False),
        lambda: _proven(there, accepting, [member(other)], server=True),
    )
    assert isinstance(refused, ConnectionRefusedError)
    here.close()


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2])
def test_older_tls_is_refused(identities: tuple[_Identity, ...], version: ssl.TLSVersion) -> None:
    client, server, _ = identities
    here, there = connected()
    dialling = client.context(ssl.PROTOCOL_TLS_CLIENT, [member(server)])
    dialling.minimum_version = ssl.TLSVersion.TLSv1_2
    dialling.maximum_version = version
    accepting = server.context(ssl.PROTOCOL_TLS_SERVER, [member(client)])
    _, refused = both(
        lambda: _proven(here, dialling, [member(server)], server=False),
        lambda: _proven(there, accepting, [member(client)], server=True),
    )
    assert isinstance(refused, ssl.SSLError) and "unsupported protocol" in str(refused)
    here.close()


@pytest.mark.parametrize("said", [b"", b"\x16\x03\x01", b"GET / HTTP/1.0\r\n\r\n"])
def test_what_says_nothing_or_nonsense_is_dropped(
    identities: tuple[_Identity, ...], monkeypatch: pytest.MonkeyPatch, said: bytes
) -> None:
    monkeypatch.setattr(tunnel, "HANDSHAKE_S", 0.1)
    client, server, _ = identities
    here, there = connected()
    here.sendall(said)
    with pytest.raises(OSError):
        _proven(there, server.context(ssl.PROTOCOL_TLS_SERVER, [member(client)]), [member(client)], server=True)
    assert there.fileno() == -1
    here.close()


def test_unproven_connections_have_a_bound() -> None:
    """More than that wait until one has ended; none of them is even accepted."""
    began: list[socket.socket] = []
    changed, release = threading.Condition(), threading.Event()
    bound = threading.BoundedSemaphore(3)

    def go(connection: socket.socket) -> None:
        with changed:
            began.append(connection)
            changed.notify_all()
        release.wait(LIMIT_S)
        bound.release()

    listener = socket.create_server((OWN, 0))
    _accept(listener, go, bound)
    with contextlib.ExitStack() as opened:
        for _ in range(5):
            opened.enter_context(socket.create_connection(listener.getsockname(), LIMIT_S))
        with changed:
            assert changed.wait_for(lambda: len(began) == 3, LIMIT_S)
        assert not bound.acquire(blocking=False)
        release.set()
        with changed:
            assert changed.wait_for(lambda: len(began) == 5, LIMIT_S)


def test_a_tunnel_that_is_sealed_takes_no_orders() -> None:
    """What has taken a worker over cannot have it connect to the machine's network."""
    orders, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    blanks, given = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    sealed = Tunnel(theirs, given)
    serving = threading.Thread(target=sealed.serve)
    serving.start()

    def ask(kind: str, argument: object) -> dict[str, object]:
        orders.send(json.dumps({kind: argument}).encode())
        answer: dict[str, object] = json.loads(orders.recv(tunnel.MAX_MESSAGE_BYTES))
        return answer

    with orders, theirs, blanks, given, socket.create_server((OWN, 0)) as outside:
        orders.settimeout(LIMIT_S)
        outside.setblocking(False)
        assert "port" in ask("open", OWN)
        assert ask("seal", None) == {}
        for kind, argument in (("pool", outside.getsockname()), ("open", OWN), ("meet", {}), ("else", 1)):
            assert "does not know this request" in str(ask(kind, argument)["error"])
        with pytest.raises(BlockingIOError):
            outside.accept()
        orders.shutdown(socket.SHUT_RDWR)
        serving.join(LIMIT_S)
        assert not serving.is_alive()
    # In a process of its own it would end with that.
    assert sealed._listener is not None
    sealed._listener.close()
