"""The process beside a worker that has a network of its own: its only way out, to the pool and to its job's other hosts.

It stays in the machine's network, holds no secret of the pool's, and is told by its worker (`fdt.worker.gateway`) over a socket
what to open. The worker also hands it blank sockets of its own network, so that neither needs a privilege:

- to the pool, a port of the worker's loopback whose bytes are passed on as they are: the TLS on them is the worker's;
- to the process of each other host, an address of the worker's loopback (`fdt.worker.runtime.inner_address`), whose connections
  go to the tunnel of that host inside TLS 1.3, and from there to the same address in its worker's network.

It is told all that before the worker meets a program, and from then on takes no orders: a worker that has fallen to one
cannot have it connect to anything else.

A tunnel listens on the host's address on the trusted network and answers the job's hosts alone. Each has a key of its own for
this job, made here, and shows a certificate; the others were told it through the pool, and take exactly that one.
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

PARENT = "FDT_TUNNEL_PARENT"
# A message of either side: certificates of all hosts of a job are some 40 KB.
MAX_MESSAGE_BYTES = 1 << 17

# From a connection to its proof: what says nothing, or drips, is dropped after this.
HANDSHAKE_S = 5.0
_CONNECT_S = 10.0
# Connections that have not proven themselves yet; more wait until one of these has, or was dropped.
MAX_UNPROVEN = 32
# Connections that are passed on at once; TensorFlow opens a few for each pair of hosts.
MAX_STREAMS = 256
_BUFFER_BYTES = 1 << 18
_BACKLOG = 128


@dataclasses.dataclass(frozen=True)
class Member:
    """A host of a job.

    Attributes:
        address: On the trusted network.
        port: Of its tunnel.
        certificate: Of its tunnel, PEM.
        inner: Where its process is reached inside of the networks that are joined.
    """

    address: str
    port: int
    certificate: str
    inner: tuple[str, int]


class Tunnel:
    """One worker's."""

    def __init__(self, orders: socket.socket, blanks: socket.socket) -> None:
        """
        Args:
            orders: Messages of the worker come in, and are answered, here.
            blanks: For each message, the worker sends a TCP socket of its network.
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
        """Does what the worker asks for, until it ends."""
        while raw := self._orders.recv(MAX_MESSAGE_BYTES):
            ((kind, argument),) = json.loads(raw).items()
            try:
                if kind not in self._do:
                    raise ValueError(f"a tunnel takes no such order, or none any more: {kind}")
                answer = self._do[kind](argument)
            except (OSError, ValueError, ImportError) as error:
                answer = {"error": f"{type(error).__name__}: {error}"}
            self._orders.send(json.dumps(answer).encode())

    def _blank(self) -> socket.socket:
        """Returns a TCP socket of the worker's network that is neither bound nor connected."""
        with self._asking:
            self._blanks.send(b"?")
            _, descriptors, _, _ = socket.recv_fds(self._blanks, 1, 1)
        if not descriptors:
            raise OSError("the worker gave no socket")
        return socket.socket(fileno=descriptors[0])

    def _inside(self, address: tuple[str, int]) -> socket.socket:
        """Listens in the worker's network."""
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
        """Passes bytes both ways until both have ended."""
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
    """Gives each connection a thread, and closes it when that has ended.

    Args:
        listener: Of the connections.
        go: What is done with each; an OSError ends it.
        before: Acquired before each is accepted; `go` releases it.
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
    """Serves the worker that started this process, which has it inherit two sockets and says their numbers."""
    die_with(int(os.environ[PARENT]))
    # The pool's terminal, and its signals, are not ours: this process ends with its worker.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    orders, blanks = (socket.socket(fileno=int(number)) for number in sys.argv[1:])
    # What nobody expected ends the job, by the name of this host, and not one of its threads.
    threading.excepthook = _broken
    with contextlib.suppress(OSError):
        Tunnel(orders, blanks).serve()
    # Threads may be in the middle of a connection.
    os._exit(0)


def _broken(what: threading.ExceptHookArgs) -> None:
    sys.excepthook(what.exc_type, what.exc_value or what.exc_type(), what.exc_traceback)
    os._exit(1)


# ---- ends of a connection -------------------------------------------------------------------------------------------


class End(Protocol):
    """One end of what is joined."""

    def receive(self, buffer: memoryview) -> int:
        """Fills a buffer with what comes next; returns how many bytes, 0 at the end."""

    def send(self, data: memoryview) -> None:
        """Sends all of it."""

    def end(self) -> None:
        """Sends the end; what the other side sends can still be received."""

    def abort(self) -> None:
        """Wakes whoever receives or sends, with an error."""

    def close(self) -> None:
        """Lets go of it."""


def _pass(source: End, target: End) -> None:
    """Passes bytes on as they come, and their end; if either side breaks, breaks both."""
    buffer = memoryview(bytearray(_BUFFER_BYTES))
    try:
        while size := source.receive(buffer):
            target.send(buffer[:size])
        target.end()
    except OSError:
        source.abort()
        target.abort()


class Plain:
    """A TCP connection; see `End`."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._connection = connection

    def receive(self, buffer: memoryview) -> int:
        """See `End.receive`."""
        return self._connection.recv_into(buffer)

    def send(self, data: memoryview) -> None:
        """See `End.send`."""
        self._connection.sendall(data)

    def end(self) -> None:
        """See `End.end`."""
        self._connection.shutdown(socket.SHUT_WR)

    def abort(self) -> None:
        """See `End.abort`."""
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """See `End.close`."""
        self._connection.close()


class Secured:
    """The same inside TLS; see `End`. One thread receives, one sends.

    OpenSSL's connection is not made for two threads, so it works on memory, under a lock, and the threads wait outside of it.
    """

    def __init__(self, connection: socket.socket, context: ssl.SSLContext, *, server: bool) -> None:
        """Says nothing yet."""
        self._plain = Plain(connection)
        self._connection = connection
        self._lock = threading.Lock()
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=server)
        self._raw = memoryview(bytearray(_BUFFER_BYTES))
        # What had come, and was not received, when this side ended.
        self._left = memoryview(b"")

    def shake_hands(self, until_s: float) -> bytes:
        """Proves both sides to each other; returns the other's certificate, DER.

        Raises:
            OSError: It did not do so by then.
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
        """See `End.receive`."""
        while True:
            with self._lock:
                size = self._decrypted(buffer)
            if size is not None:
                return size
            raw = self._connection.recv_into(self._raw)
            with self._lock:
                self._take(raw)

    def send(self, data: memoryview) -> None:
        """See `End.send`."""
        with self._lock:
            while data:
                data = data[self._tls.write(data) :]
            out = self._outgoing.read()
        self._connection.sendall(out)

    def end(self) -> None:
        """See `End.end`."""
        with self._lock:
            # OpenSSL says the end, then looks for the other side's, and takes offence at data that have come before it.
            left = memoryview(bytearray(_BUFFER_BYTES))
            self._left = left[: self._decrypted(left) or 0]
            with contextlib.suppress(ssl.SSLWantReadError):
                self._tls.unwrap()
            out = self._outgoing.read()
        self._connection.sendall(out)

    def abort(self) -> None:
        """See `End.abort`."""
        self._plain.abort()

    def close(self) -> None:
        """See `End.close`."""
        self._plain.close()

    def _take(self, size: int) -> None:
        if not size:
            raise ConnectionResetError("the connection ended in the middle")
        self._incoming.write(self._raw[:size])

    def _decrypted(self, buffer: memoryview) -> int | None:
        """Fills a buffer with what has come; None if nothing has, 0 if the other side has ended."""
        filled = min(len(buffer), len(self._left))
        buffer[:filled], self._left = self._left[:filled], self._left[filled:]
        while filled < len(buffer):
            try:
                # Into a buffer it reads, and returns how much, which its type does not tell.
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
    """Returns a connection of which both ends have proven themselves.

    Raises:
        OSError: The other end is none of these members, or did not prove it in time.
    """
    secured = Secured(connection, context, server=server)
    try:
        shown = secured.shake_hands(time.monotonic() + HANDSHAKE_S)
        if shown not in [ssl.PEM_cert_to_DER_cert(member.certificate) for member in members]:
            raise ConnectionRefusedError("not the certificate that the pool told")
    except OSError:
        connection.close()
        raise
    return secured


@dataclasses.dataclass(frozen=True)
class _Identity:
    """What a tunnel proves itself with; `address` is its host's on the trusted network."""

    address: str
    certificate: str
    key: str

    @classmethod
    def make(cls, address: str) -> "_Identity":
        """Makes a key for one job, and a certificate that it signs itself."""
        return cls(address, *self_signed(address))

    def context(self, protocol: int, members: Any) -> ssl.SSLContext:
        """Returns how connections with these members, and nobody else, are made."""
        context = ssl.SSLContext(protocol)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.check_hostname = False
        context.verify_mode = ssl.CERT_REQUIRED
        if protocol == ssl.PROTOCOL_TLS_SERVER:
            # Nobody takes a session up again, and who only sends would never read a ticket.
            context.num_tickets = 0
        for member in members:
            context.load_verify_locations(cadata=member.certificate)
        with _file(self.certificate + self.key) as path:
            context.load_cert_chain(path)
        return context


@contextlib.contextmanager
def _file(content: str) -> Any:
    """A file in memory: `ssl` reads keys from files only."""
    descriptor = os.memfd_create("fdt-tunnel")
    try:
        os.write(descriptor, content.encode())
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)


if __name__ == "__main__":
    main()
