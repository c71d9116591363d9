"""Makes gRPC's channels and servers, with TLS, tokens, keepalive and limits."""

import contextlib
import datetime
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Self, TypeVar

import grpc
from google.protobuf import message_factory
from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor

from fdt.base.config import Credentials, Timing
from fdt.base.limits import Limits
from fdt.errors import AccessError, FdtError, PoolUnreachableError, ProtocolError, UsageError
from fdt.transport import tokens, wire
from fdt.transport.rate_limits import CallThreads, RateLimiter
from fdt.transport.statuses import abort, from_rpc_error

T = TypeVar("T")

TOKEN_KEY = "fdt-token"
HEALTH = "grpc.health.v1.Health"
_NO_TOKEN = (
    "The pool at {address} asks for a token, and there is none to give: the pool is another user's, or on another machine. Ask "
    "its operator for a token and name the file with --token-file, or serve a pool of your own: "
    "`fdt serve --listen 127.0.0.1:PORT`."
)
# gRPC's default bound on calls that wait for a server's thread.
_PENDING_CALLS = 1000
# Seconds between two attempts to connect.
_RETRY_S = 0.02


class Watch:
    """Cancels a transfer that stands still; the time between two chunks is limited, not the whole time."""

    def __init__(self, cancel: Callable[[], object], limit_s: float) -> None:
        """Makes a watch that calls `cancel` when `each` has yielded nothing for `limit_s` seconds."""
        self._cancel, self._limit_s = cancel, limit_s
        self._last_s = time.monotonic()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="fdt-watch", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def each(self, items: Iterable[T]) -> Iterator[T]:
        """Yields items, and records the time of each."""
        for item in items:
            self._last_s = time.monotonic()
            yield item

    def _run(self) -> None:
        while not self._stop.wait(max(0.0, self._last_s + self._limit_s - time.monotonic())):
            if time.monotonic() - self._last_s >= self._limit_s:
                self._cancel()
                return


# ---- client ---------------------------------------------------------------------------------------------------------


class SendToken(
    grpc.UnaryUnaryClientInterceptor,
    grpc.UnaryStreamClientInterceptor,
    grpc.StreamUnaryClientInterceptor,
    grpc.StreamStreamClientInterceptor,
):
    """Adds the token to every call. (gRPC's call credentials refuse plain loopback channels.)

    Attributes:
        token: The token of the next call.
    """

    def __init__(self, token: str, address: str = "") -> None:
        """
        Args:
            token: Sent if no pool of this user has published a token for `address`.
            address: Where the pool listens; "" to send `token` always.
        """
        self.token, self._address = token, address

    def _call(self, continuation: Callable[..., Any], details: Any, request: Any) -> Any:
        token = (tokens.find(self._address) if self._address else None) or self.token
        metadata = [*(details.metadata or ()), (TOKEN_KEY, token)]
        return continuation(details._replace(metadata=metadata), request)

    intercept_unary_unary = intercept_unary_stream = intercept_stream_unary = intercept_stream_stream = _call


def _keepalive(timing: Timing) -> list[tuple[str, int]]:
    """Returns gRPC's options by which both ends notice within `call_s` / 2 + `connect_s` that the other has stopped."""
    return [
        ("grpc.keepalive_time_ms", int(timing.call_s * 500)),
        ("grpc.keepalive_timeout_ms", int(timing.connect_s * 1000)),
        # For the same ping; by default a minute. The longer of the two counts.
        ("grpc.http2.ping_timeout_ms", int(timing.connect_s * 1000)),
        # By default pings without data come once a minute: too seldom while a job queues, or a step takes long.
        ("grpc.http2.max_pings_without_data", 0),
    ]


def open_channel(address: str, credentials: Credentials, timing: Timing, behind: str | None = None) -> grpc.Channel:
    """Returns a channel, without checking that a pool answers; `connect` checks that.

    Off loopback the channel always uses TLS, as pools do (`check_listen`), so that nobody on the network can read the token.

    Args:
        address: The address to connect to.
        credentials: Token and certificate authority.
        timing: The intervals of its keepalive.
        behind: The pool's own "host:port", if the address belongs to a tunnel to the pool.
    """
    options = [
        *_keepalive(timing),
        ("grpc.enable_http_proxy", 0),
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.max_reconnect_backoff_ms", 1000),
        # The name that the certificate must have; a unix socket has no name of its own.
        *([("grpc.default_authority", "localhost")] if address.startswith("unix:") else []),
        *([("grpc.ssl_target_name_override", behind.rpartition(":")[0].strip("[]"))] if behind is not None else []),
    ]
    if credentials.tls_ca is None and tokens.is_local(behind or address):
        channel = grpc.insecure_channel(address, options)
    else:
        channel = grpc.secure_channel(address, grpc.ssl_channel_credentials(_authority(credentials.tls_ca)), options)
    if credentials.token is None:
        return channel
    found_at = address if credentials.is_found else ""
    return grpc.intercept_channel(channel, SendToken(credentials.token, found_at))


def _authority(path: Path | None) -> bytes | None:
    """Returns the certificate of the pool's authority; None for gRPC's default, the authorities that this system trusts."""
    try:
        return None if path is None else path.read_bytes()
    except OSError as error:
        raise UsageError(f"Cannot read the certificate of the pool's authority: {error}") from error


def connect(address: str, credentials: Credentials, timing: Timing) -> grpc.Channel:
    """Connects to a pool, and checks that it answers and accepts the credentials.

    Retries if the pool does not answer on a unix socket, since the pool may be starting; and if the pool closes the connection,
    since it may have reached its limit of connections.

    Args:
        address: "host:port" or "unix:/path".
        credentials: Token and certificate authority.
        timing: `connect_s` is the limit.

    Raises:
        PoolUnreachableError: No pool answers at the address.
        AccessError: The token is wrong, or the two ends disagree about TLS.
    """
    channel = open_channel(address, credentials, timing)
    check = channel.unary_unary(f"/{HEALTH}/Check")
    end_s = time.monotonic() + timing.connect_s
    while True:
        try:
            check(b"", timeout=max(0.1, end_s - time.monotonic()))
            return channel
        except grpc.RpcError as error:
            worth_it = address.startswith("unix:") or _hung_up(error)
            waiting = worth_it and time.monotonic() + _RETRY_S < end_s
            if not (waiting and error.code() == grpc.StatusCode.UNAVAILABLE):  # type: ignore[attr-defined]
                channel.close()
                raise _connect_error(address, credentials, error) from error
            time.sleep(_RETRY_S)


def _hung_up(error: Any) -> bool:
    return any(sign in (error.details() or "") for sign in ("Socket closed", "reset", "GOAWAY", "recvmsg", "sendmsg"))


def close(channel: grpc.Channel, limit_s: float) -> None:
    """Closes a channel; after `limit_s` leaves it open, since the process is about to end.

    Closing waits for the channel's own thread to finish its work.
    """
    closing = threading.Thread(target=channel.close, name="fdt-close", daemon=True)
    closing.start()
    closing.join(limit_s)


def _connect_error(address: str, credentials: Credentials, error: Any) -> FdtError:
    text = error.details() or ""
    if error.code() == grpc.StatusCode.UNAUTHENTICATED:
        if credentials.token is None:
            return AccessError(_NO_TOKEN.format(address=address))
        return from_rpc_error(error, address)
    if "certificate is not yet valid" in text or "certificate has expired" in text:
        now = datetime.datetime.now(datetime.UTC)
        what = "is not valid yet" if "not yet" in text else "is not valid any more"
        return AccessError(
            f"The certificate of the pool at {address} {what} by this machine's clock, which shows {now:%Y-%m-%d %H:%M} UTC. "
            "If that is right, the pool's operator must make another certificate; if not, set the clock (NTP). Received: "
            f"tls_ca={credentials.tls_ca}"
        )
    if "CERTIFICATE_VERIFY_FAILED" in text or "Hostname Verification" in text or "name doesn't match" in text:
        signer = "the given authority" if credentials.tls_ca is not None else "one that this system trusts"
        return AccessError(
            f"The certificate of the pool at {address} was not signed by {signer}, or is for another name: {text}. Expected "
            f"with --tls-ca the authority that signed it. Received: tls_ca={credentials.tls_ca}"
        )
    if "SSL" in text or "WRONG_VERSION_NUMBER" in text or "handshake" in text.lower():
        return AccessError(
            f"No TLS with the pool at {address}: does it serve with --tls-cert? A pool without a certificate is only reached "
            f"from its own machine. ({text})"
        )
    plain = credentials.tls_ca is None and tokens.is_local(address) and not address.startswith("unix:")
    if plain and _hung_up(error):
        return AccessError(
            f"{address} hung up on a connection without TLS. If the pool has a certificate, name its authority "
            f"with --tls-ca; if not, it has reached its limit of connections: try again later. ({text})"
        )
    if error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
        return PoolUnreachableError(
            f"No pool answers at {address}. Is `fdt serve` running there, and is the port right? ({text})"
        )
    if error.code() == grpc.StatusCode.UNIMPLEMENTED:
        return PoolUnreachableError(f"What answers at {address} is not a pool. ({text})")
    return from_rpc_error(error, address)


# ---- server ---------------------------------------------------------------------------------------------------------


class RequireToken(grpc.ServerInterceptor):
    """Refuses calls without an accepted token, before their requests are read."""

    def __init__(
        self,
        complaint: Callable[[str, bytes], str | None],
        refused: Callable[[grpc.ServicerContext, str, str], None] = lambda context, method, why: None,
    ) -> None:
        """
        Args:
            complaint: Returns why a method ("package.Service/Method") does not accept a token (b"" for none); None if it does.
            refused: Called with the context of a refused call, its method, and the reason.
        """
        self._complaint, self._refused = complaint, refused

    def intercept_service(self, continuation: Callable[..., Any], details: Any) -> Any:
        """Passes the call on, or refuses it."""
        method = details.method.lstrip("/")
        why = self._complaint(method, _given_in(details.invocation_metadata))
        if why is None:
            return continuation(details)

        def refuse(_: object, context: grpc.ServicerContext) -> None:
            self._refused(context, method, why)
            abort(context, AccessError(why))

        # Calls of all methods are refused as streams, since only a stream's handler starts before the first message.
        return grpc.stream_stream_rpc_method_handler(refuse)


def given_token(context: grpc.ServicerContext) -> bytes:
    """Returns a call's token; b"" if it has none."""
    return _given_in(context.invocation_metadata())


def _given_in(metadata: Iterable[tuple[str, str | bytes]]) -> bytes:
    value = next((value for key, value in metadata if key == TOKEN_KEY), b"")
    return value if isinstance(value, bytes) else value.encode()


def service(
    descriptor: ServiceDescriptor, servicer: object, limiter: RateLimiter, raw: Iterable[str] = ()
) -> grpc.GenericRpcHandler:
    """Returns a handler that serves a service with a servicer's methods, with our own decoding and errors.

    Args:
        descriptor: The service.
        servicer: Has methods of the same names, `method(request or iterator, context)`; missing ones are UNIMPLEMENTED.
        limiter: The rate limiter that admits calls.
        raw: Methods that take and return bytes instead of messages.
    """
    raw = set(raw)
    handlers = {
        method.name: _bind(method, getattr(servicer, method.name), limiter, method.name in raw)
        for method in descriptor.methods
        if hasattr(servicer, method.name)
    }
    return grpc.method_handlers_generic_handler(descriptor.full_name, handlers)


def _bind(
    method: MethodDescriptor, behaviour: Callable[..., Any], limiter: RateLimiter, raw: bool
) -> grpc.RpcMethodHandler:
    message = message_factory.GetMessageClass(method.input_type)
    name = f"{method.containing_service.full_name}/{method.name}"

    def read(requests: Iterator[bytes]) -> Any:
        decoded: Iterator[Any] = requests if raw else (wire.decode(message, item) for item in requests)
        if method.client_streaming:
            return decoded
        for only in decoded:
            return only
        raise ProtocolError(f"The call ended before its request had come. Expected: {message.__name__}")

    def write(reply: Any) -> bytes:
        return reply if raw else reply.SerializeToString()

    def single(requests: Iterator[bytes], context: grpc.ServicerContext) -> bytes:
        with _answered(context), limiter.visit(name, context) as visit:
            return write(behaviour(read(visit.requests(requests)), context))
        raise AssertionError

    def stream(requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        with _answered(context), limiter.visit(name, context) as visit:
            for reply in visit.replies(behaviour(read(visit.requests(requests)), context)):
                yield write(reply)

    # Registered as a stream of requests: gRPC would wait for a single request without a limit, in a thread.
    if method.server_streaming:
        return grpc.stream_stream_rpc_method_handler(stream)
    return grpc.stream_unary_rpc_method_handler(single)


@contextlib.contextmanager
def _answered(context: grpc.ServicerContext) -> Iterator[None]:
    try:
        yield
    except FdtError as error:
        abort(context, error)


def check_listen(address: str, token: str | None, tls: bool) -> None:
    """Refuses an address that other machines can reach, unless the pool has a token and TLS.

    Raises:
        UsageError: The address is off loopback, and the token or certificate is missing; or it is invalid.
    """
    if address.startswith("unix:"):
        _check_socket(Path(address.removeprefix("unix:")), token)
        return
    _, colon, port = address.rpartition(":")
    if not colon or not port.isdigit() or int(port) > 65535:
        raise UsageError(f"Expected --listen HOST:PORT, such as 127.0.0.1:7077. Received: listen={address}")
    if not tokens.is_local(address) and not (tls and token):
        raise UsageError(
            f"A pool that others can reach needs --token-file, --tls-cert and --tls-key; or listen on 127.0.0.1. "
            f"Received: listen={address}"
        )


def _check_socket(path: Path, token: str | None) -> None:
    """Refuses a socket in a folder that other users can open, unless there is a token: they could connect to the socket."""
    try:
        status = path.parent.stat()
    except OSError as error:
        raise UsageError(f"Cannot listen there: {error}. Received: listen=unix:{path}") from error
    if not token and (status.st_mode & 0o077 or status.st_uid != os.geteuid()):
        raise UsageError(
            f"A pool without a token needs its socket in a folder that only this user can open: chmod 700 {path.parent}, or "
            f"give a token. Received: listen=unix:{path}"
        )


def create_server(
    interceptor: RequireToken, limiter: RateLimiter, limits: Limits, timing: Timing, connections: int | None = None
) -> grpc.Server:
    """Returns a server without services or ports.

    Args:
        interceptor: Checks tokens.
        limiter: The rate limiter that admits calls.
        limits: The pool's.
        timing: `call_s` and `connect_s` are used for keepalive, `warm_s` for calls that wait for a thread.
        connections: The most connections of each port; the number in `limits` if None.
    """
    return grpc.server(
        CallThreads(),
        interceptors=[interceptor],
        maximum_concurrent_rpcs=limiter.max_calls,
        options=[
            ("grpc.so_reuseport", 0),
            *_keepalive(timing),
            ("grpc.http2.min_ping_interval_without_data_ms", 500),
            ("grpc.server_handshake_timeout_ms", int(limits.handshake_s * 1000)),
            ("grpc.max_connection_idle_ms", int(limits.idle_s * 1000)),
            ("grpc.max_allowed_incoming_connections", connections or limits.connections),
            ("grpc.max_concurrent_streams", limits.streams_each),
            ("grpc.max_metadata_size", limits.metadata_bytes),
            ("grpc.absolute_max_metadata_size", limits.metadata_bytes),
            ("grpc.max_receive_message_length", limits.message_bytes),
            # Bounds for calls that no thread has taken yet. By default gRPC silently cancels them above 1000, and after half a
            # minute; but all workers of a large pool attach at the same moment, and each may take `warm_s` to start.
            ("grpc.server_max_unrequested_time_in_server", max(30, int(timing.warm_s))),
            ("grpc.server.max_pending_requests", max(_PENDING_CALLS, limiter.max_calls)),
            ("grpc.server.max_pending_requests_hard_limit", 3 * max(_PENDING_CALLS, limiter.max_calls)),
        ],
    )


def listen(server: grpc.Server, address: str, certificate: Path | None = None, key: Path | None = None) -> str:
    """Opens a port; returns its address, with the port that the system chose if 0 was given.

    Raises:
        UsageError: The port is taken, or the certificate cannot be read.
    """
    try:
        if certificate is not None and key is not None:
            pair = (key.read_bytes(), certificate.read_bytes())
            port = server.add_secure_port(address, grpc.ssl_server_credentials([pair]))
        else:
            port = server.add_insecure_port(address)
    except (OSError, RuntimeError) as error:
        raise UsageError(f"Cannot listen there: {error}. Received: listen={address}") from error
    return address if address.startswith("unix:") else f"{address.rpartition(':')[0]}:{port}"
