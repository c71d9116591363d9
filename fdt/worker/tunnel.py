"""Runs a tunnel: a process that connects a worker in a network of its own to the pool and to its job's other hosts.

The tunnel runs in the machine's network and has no secret of the pool. The worker (`fdt.worker.gateway`) requests connections
over a socket, and gives the tunnel unconnected sockets of the worker's network, so that neither process needs a privilege. The
tunnel opens two kinds of ports in the worker's network:

- for the pool, a port on loopback. It passes bytes on unchanged: TLS is between the worker and the pool;
- for each other host's process, an address on loopback (`fdt.worker.runtime.inner_address`). Connections go to that host's
  tunnel inside TLS 1.3, and from there to the same address in that worker's network.

The worker sends all requests before it reads a program, and the tunnel refuses later ones: a malicious program in the worker
cannot make it connect to anything else. The tunnel reads what strangers on the network send, so it is sandboxed, too.

A tunnel listens on the host's address on the trusted network and answers only the job's hosts. Each tunnel makes a key and a
certificate for the job; the pool passes the certificate to the other tunnels, which accept exactly this one.
"""

import contextlib
import dataclasses
import functools
import json
import os
import signal
import socket
import ssl
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from fdt.base.lifetime import die_with
from fdt.worker.certificate import self_signed
from fdt.worker.sandbox import Reach, raise_walls

PARENT = "FDT_TUNNEL_PARENT"
# The most bytes of a message, either way: certificates of all hosts of a job are some 40 KB.
MAX_MESSAGE_BYTES = 1 << 17

# A connection whose handshake is not complete after this time is dropped.
HANDSHAKE_S = 5.0
_CONNECT_S = 10.0
# The most connections with an incomplete handshake; further ones wait until one of these is authenticated or dropped.
MAX_UNPROVEN = 32
# The most connections passed on at once; TensorFlow opens a few for each pair of hosts.
MAX_STREAMS = 256
_BUFFER_BYTES = 1 << 18
_BACKLOG = 128


@dataclasses.dataclass(frozen=True)
class Member:
    """A host of a job.

    Attributes:
        address: Its address on the trusted network.
        port: Its tunnel's port.
        certificate: Its tunnel's certificate, PEM.
        inner: The address of its process in the workers' networks.
    """

    address: str
    port: int
    certificate: str
    inner: tuple[str, int]


class Tunnel:
    """The tunnel of one worker."""

    def __init__(self, orders: socket.socket, blanks: socket.socket) -> None:
        """
        Args:
            orders: Carries the worker's requests and the answers.
            blanks: For each message sent here, the worker returns a TCP socket of its network.
        """
        self._orders, self._blanks = orders, blanks
        self._asking = threading.Lock()
        self._streams = threading.BoundedSemaphore(MAX_STREAMS)
        self._own: _Identity | None = None
        self._listener: socket.socket | None = None
        self._do: dict[str, Callable[[Any], dict[str, object]]] = {
            "pool": self._to_pool,
            "open": self._open,
            "meet": self._meet,
            "seal": self._seal,
        }

    def serve(self) -> None:
        """Executes the worker's requests, until the worker ends."""
        while raw := self._orders.recv(MAX_MESSAGE_BYTES):
            ((kind, argument),) = json.loads(raw).items()
            try:
                if kind not in self._do:
                    raise ValueError(f"a tunnel does not know this request, or takes no more: {kind}")
                answer = self._do[kind](argument)
            except (OSError, ValueError, ImportError) as error:
                answer = {"error": f"{type(error).__name__}: {error}"}
            self._orders.send(json.dumps(answer).encode())

    def _blank(self) -> socket.socket:
        """Returns an unbound, unconnected TCP socket of the worker's network."""
        with self._asking:
            self._blanks.send(b"?")
            _, descriptors, _, _ = socket.recv_fds(self._blanks, 1, 1)
        if not descriptors:
            raise OSError("the worker gave no socket")
        return socket.socket(fileno=descriptors[0])

    def _inside(self, address: tuple[str, int]) -> socket.socket:
        """Returns a socket that listens in the worker's network."""
        listener = self._blank()
        listener.bind(address)
        listener.listen(_BACKLOG)
        return listener

    # ---- orders -----------------------------------------------------------------------------------------------------

    def _to_pool(self, pool: Sequence[Any]) -> dict[str, object]:
        host, port = pool
        listener = self._inside(("127.0.0.1", 0))
        _accept(listener, lambda inner: self._join(Plain(inner), lambda: Plain(_dialled((host, port), None))))
        return {"port": listener.getsockname()[1]}

    def _open(self, address: str) -> dict[str, object]:
        self._own = _Identity.make(address)
        self._listener = socket.create_server((address, 0), backlog=_BACKLOG)
        return {"port": self._listener.getsockname()[1], "certificate": self._own.certificate}

    def _meet(self, told: dict[str, Any]) -> dict[str, object]:
        own, listener = self._own, self._listener
        assert own is not None and listener is not None
        members = [Member(address, port, pem, (inner[0], inner[1])) for address, port, pem, inner in told["members"]]
        mine = members.pop(told["rank"])
        for other in members:
            context = own.context(ssl.PROTOCOL_TLS_CLIENT, [other])
            _accept(self._inside(other.inner), functools.partial(self._to_member, own, other, context))
        context = own.context(ssl.PROTOCOL_TLS_SERVER, members)
        unproven = threading.BoundedSemaphore(MAX_UNPROVEN)
        _accept(listener, functools.partial(self._from_members, mine, members, context, unproven), unproven)
        return self._seal(None)

    def _seal(self, _: object) -> dict[str, object]:
        self._do.clear()
        return {}

    # ---- connections ------------------------------------------------------------------------------------------------

    def _to_member(self, own: "_Identity", member: Member, context: ssl.SSLContext, inner: socket.socket) -> None:
        def dial() -> Secured:
            outer = _dialled((member.address, member.port), own.address)
            return _proven(outer, context, [member], server=False)

        self._join(Plain(inner), dial)

    def _from_members(
        self,
        own: Member,
        others: Sequence[Member],
        context: ssl.SSLContext,
        unproven: threading.BoundedSemaphore,
        outer: socket.socket,
    ) -> None:
        try:
            if outer.getpeername()[0] not in [member.address for member in others]:
                return
            secured = _proven(outer, context, others, server=True)
        finally:
            unproven.release()

        def dial() -> Plain:
            inner = self._blank()
            inner.connect(own.inner)
            return Plain(inner)

        self._join(secured, dial)

    def _join(self, one: "End", dial: "Callable[[], End]") -> None:
        """Passes bytes both ways until both ends have closed."""
        if not self._streams.acquire(blocking=False):
            return
        try:
            with contextlib.closing(dial()) as other:
                back = threading.Thread(target=_pass, args=(other, one), name="fdt-tunnel-back", daemon=True)
                back.start()
                _pass(one, other)
                back.join()
        finally:
            self._streams.release()


def _accept(
    listener: socket.socket, go: Callable[[socket.socket], None], before: threading.BoundedSemaphore | None = None
) -> None:
    """Accepts connections; handles each in a thread of its own, and closes it afterwards.

    Args:
        listener: The listening socket.
        go: Handles a connection; an OSError ends that connection.
        before: Acquired before each connection is accepted; `go` releases it.
    """

    def one(connection: socket.socket) -> None:
        with contextlib.closing(connection), contextlib.suppress(OSError):
            go(connection)

    def accept() -> None:
        while True:
            if before is not None:
                before.acquire()
            connection, _ = listener.accept()
            threading.Thread(target=one, args=(connection,), name="fdt-tunnel", daemon=True).start()

    threading.Thread(target=accept, name="fdt-tunnel-accept", daemon=True).start()


def main() -> None:
    """Serves the worker that started this process. The arguments are the numbers of two inherited sockets."""
    die_with(int(os.environ[PARENT]))
    # Ignores signals of the pool's terminal: this process ends with its worker.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    orders, blanks = (socket.socket(fileno=int(number)) for number in sys.argv[1:])
    # An unexpected error in a thread ends this process. The job then fails, and names this host.
    threading.excepthook = _broken
    # The result is not looked at: the pool reports at its start which mechanisms this system lacks.
    raise_walls(Reach())
    with contextlib.suppress(OSError):
        Tunnel(orders, blanks).serve()
    # Threads may still be serving connections.
    os._exit(0)


def _broken(what: threading.ExceptHookArgs) -> None:
    sys.excepthook(what.exc_type, what.exc_value or what.exc_type(), what.exc_traceback)
    os._exit(1)


# ---- ends of a connection -------------------------------------------------------------------------------------------


class End(Protocol):
    """One end of a connection that is passed on."""

    def receive(self, buffer: memoryview) -> int:
        """Receives bytes into a buffer; returns their number, 0 at the end."""

    def send(self, data: memoryview) -> None:
        """Sends all of the data."""

    def end(self) -> None:
        """Closes the sending direction; the other side's bytes can still be received."""

    def abort(self) -> None:
        """Wakes threads that receive or send, with an error."""

    def close(self) -> None:
        """Closes the connection."""


def _pass(source: End, target: End) -> None:
    """Passes bytes on until the source ends, then ends the target; if either connection breaks, aborts both."""
    buffer = memoryview(bytearray(_BUFFER_BYTES))
    try:
        while size := source.receive(buffer):
            target.send(buffer[:size])
        target.end()
    except OSError:
        source.abort()
        target.abort()


class Plain:
    """An end that is a TCP connection."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._connection = connection

    def receive(self, buffer: memoryview) -> int:
        return self._connection.recv_into(buffer)

    def send(self, data: memoryview) -> None:
        self._connection.sendall(data)

    def end(self) -> None:
        self._connection.shutdown(socket.SHUT_WR)

    def abort(self) -> None:
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._connection.close()


class Secured:
    """An end that is a TCP connection with TLS. One thread receives, one sends.

    Two threads must not use a connection of OpenSSL at once. Therefore OpenSSL reads and writes memory, under a lock; the
    threads read from and write to the network without the lock.
    """

    def __init__(self, connection: socket.socket, context: ssl.SSLContext, *, server: bool) -> None:
        """Wraps a connection; `shake_hands` does the handshake."""
        self._plain = Plain(connection)
        self._connection = connection
        self._lock = threading.Lock()
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=server)
        self._raw = memoryview(bytearray(_BUFFER_BYTES))
        # Decrypted bytes that were not received yet when this side closed its direction.
        self._left = memoryview(b"")

    def shake_hands(self, until_s: float) -> bytes:
        """Does the TLS handshake, which authenticates both sides; returns the other side's certificate, DER.

        Raises:
            OSError: The handshake failed, or was not complete by `until_s`.
        """
        while True:
            try:
                self._tls.do_handshake()
            except ssl.SSLWantReadError:
                self._flush()
                self._connection.settimeout(max(0.001, until_s - time.monotonic()))
                self._take(self._connection.recv_into(self._raw))
            else:
                self._flush()
                self._connection.settimeout(None)
                return self._tls.getpeercert(binary_form=True) or b""

    def receive(self, buffer: memoryview) -> int:
        while True:
            with self._lock:
                size = self._decrypted(buffer)
            if size is not None:
                return size
            raw = self._connection.recv_into(self._raw)
            with self._lock:
                self._take(raw)

    def send(self, data: memoryview) -> None:
        with self._lock:
            while data:
                data = data[self._tls.write(data) :]
            out = self._outgoing.read()
        self._connection.sendall(out)

    def end(self) -> None:
        with self._lock:
            # OpenSSL sends the close, then looks for the other side's, and raises an error if data came before that.
            left = memoryview(bytearray(_BUFFER_BYTES))
            self._left = left[: self._decrypted(left) or 0]
            with contextlib.suppress(ssl.SSLWantReadError):
                self._tls.unwrap()
            out = self._outgoing.read()
        self._connection.sendall(out)

    def abort(self) -> None:
        self._plain.abort()

    def close(self) -> None:
        self._plain.close()

    def _take(self, size: int) -> None:
        if not size:
            raise ConnectionResetError("the connection ended in the middle")
        self._incoming.write(self._raw[:size])

    def _decrypted(self, buffer: memoryview) -> int | None:
        """Fills a buffer with decrypted bytes; returns their number, None if there are none yet, 0 at the other side's end."""
        filled = min(len(buffer), len(self._left))
        buffer[:filled], self._left = self._left[:filled], self._left[filled:]
        while filled < len(buffer):
            try:
                # Given a buffer, `read` returns the number of bytes, which its type does not tell.
                size = int(self._tls.read(len(buffer) - filled, buffer[filled:]))  # type: ignore[arg-type]
            except ssl.SSLWantReadError:
                return filled or None
            except ssl.SSLZeroReturnError:
                size = 0
            if not size:
                break
            filled += size
        return filled

    def _flush(self) -> None:
        self._connection.sendall(self._outgoing.read())


def _dialled(address: tuple[str, int], source: str | None) -> socket.socket:
    own = (source, 0) if source is not None else None
    connection = socket.create_connection(address, _CONNECT_S, source_address=own)
    connection.settimeout(None)
    return connection


def _proven(connection: socket.socket, context: ssl.SSLContext, members: Sequence[Member], *, server: bool) -> Secured:
    """Does a connection's handshake; returns the connection with both ends authenticated.

    Raises:
        OSError: The other end is none of these members, or the handshake was not complete in time.
    """
    secured = Secured(connection, context, server=server)
    try:
        shown = secured.shake_hands(time.monotonic() + HANDSHAKE_S)
        if shown not in [ssl.PEM_cert_to_DER_cert(member.certificate) for member in members]:
            raise ConnectionRefusedError("not the certificate that the pool sent")
    except OSError:
        connection.close()
        raise
    return secured


@dataclasses.dataclass(frozen=True)
class _Identity:
    """A tunnel's certificate and key; `address` is its host's address on the trusted network."""

    address: str
    certificate: str
    key: str

    @classmethod
    def make(cls, address: str) -> "_Identity":
        """Makes a key and a self-signed certificate for one job."""
        return cls(address, *self_signed(address))

    def context(self, protocol: int, members: Any) -> ssl.SSLContext:
        """Returns the TLS settings for connections with these members only."""
        context = ssl.SSLContext(protocol)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.check_hostname = False
        context.verify_mode = ssl.CERT_REQUIRED
        if protocol == ssl.PROTOCOL_TLS_SERVER:
            # No tickets: sessions are never resumed, and a side that only sends would never read one.
            context.num_tickets = 0
        for member in members:
            context.load_verify_locations(cadata=member.certificate)
        with _file(self.certificate + self.key) as path:
            context.load_cert_chain(path)
        return context


@contextlib.contextmanager
def _file(content: str) -> Any:
    """Yields the path of a file in memory: `ssl` reads keys only from files."""
    descriptor = os.memfd_create("fdt-tunnel")
    try:
        os.write(descriptor, content.encode())
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)


if __name__ == "__main__":
    main()
