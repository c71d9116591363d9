"""gRPC as this project uses it: channels, servers, access, and errors to and from statuses."""

import contextlib
import hmac
import ipaddress
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent import futures
from pathlib import Path
from typing import Any, Self, TypeVar

import grpc
from google.protobuf import message_factory
from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor

from fdt import errors, wire
from fdt.config import Credentials, Timing
from fdt.errors import AccessError, FdtError, PoolError, PoolUnreachableError, ProtocolError, UsageError

T = TypeVar("T")
Metadata = tuple[tuple[str, str | bytes], ...]

TOKEN_KEY = "fdt-token"
_ERROR_KEY = "fdt-error"
_HEALTH = "/grpc.health.v1.Health/Check"

# What a status means when none of our servers gave it a class: gRPC itself, a proxy, or something that is no pool.
FOREIGN_STATUS: dict[grpc.StatusCode, type[FdtError]] = {
    grpc.StatusCode.CANCELLED: errors.JobCancelledError,
    grpc.StatusCode.UNKNOWN: PoolError,
    grpc.StatusCode.INVALID_ARGUMENT: ProtocolError,
    grpc.StatusCode.DEADLINE_EXCEEDED: PoolUnreachableError,
    grpc.StatusCode.NOT_FOUND: PoolError,
    grpc.StatusCode.ALREADY_EXISTS: PoolError,
    grpc.StatusCode.PERMISSION_DENIED: AccessError,
    grpc.StatusCode.RESOURCE_EXHAUSTED: errors.CapacityError,
    grpc.StatusCode.FAILED_PRECONDITION: PoolError,
    grpc.StatusCode.ABORTED: PoolError,
    grpc.StatusCode.OUT_OF_RANGE: ProtocolError,
    grpc.StatusCode.UNIMPLEMENTED: errors.VersionError,
    grpc.StatusCode.INTERNAL: PoolError,
    grpc.StatusCode.UNAVAILABLE: PoolUnreachableError,
    grpc.StatusCode.DATA_LOSS: PoolError,
    grpc.StatusCode.UNAUTHENTICATED: AccessError,
}


# ---- errors ---------------------------------------------------------------------------------------------------------


def to_status(error: FdtError) -> tuple[grpc.StatusCode, str, Metadata]:
    """Returns the status code, text and trailing metadata under which an error travels."""
    code = next((errors.STATUS[base] for base in type(error).__mro__ if base in errors.STATUS), None)
    return (code or grpc.StatusCode.UNKNOWN, str(error), ((_ERROR_KEY, type(error).__name__),))


def from_rpc_error(error: grpc.RpcError, address: str = "") -> FdtError:
    """Returns what a failed call means, and lets go of the call.

    gRPC's error is the call itself: with its traceback it is a cycle, which the garbage collector would meet at any time, as
    late as at the end of the interpreter, when a thread of gRPC's that held the call's lock is no more.
    """
    error.__traceback__ = None
    call: Any = error
    code = call.code() if hasattr(call, "code") else grpc.StatusCode.UNKNOWN
    text = (call.details() if hasattr(call, "details") else "") or str(error)
    for key, value in (call.trailing_metadata() if hasattr(call, "trailing_metadata") else None) or ():
        if key == _ERROR_KEY:
            return errors.named(str(value), text)
    place = f" (pool at {address})" if address else ""
    return FOREIGN_STATUS.get(code, PoolError)(f"{text} [{code.name}]{place}")


@contextlib.contextmanager
def translated(address: str = "") -> Iterator[None]:
    """Turns gRPC's errors into ours."""
    try:
        yield
    except grpc.RpcError as error:
        raise from_rpc_error(error, address) from error
    except grpc.FutureCancelledError as error:
        raise PoolUnreachableError("The pool stopped taking or giving data; the transfer was given up.") from error
    except grpc.FutureTimeoutError as error:
        raise PoolUnreachableError("The pool did not answer in time.") from error


class Watch:
    """Cancels a transfer that stands still: it may take long in all, but not between two chunks."""

    def __init__(self, cancel: Callable[[], object], limit_s: float) -> None:
        """Calls `cancel` when `each` has yielded nothing for `limit_s`."""
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
        """Passes items on, taking note of the time."""
        for item in items:
            self._last_s = time.monotonic()
            yield item

    def _run(self) -> None:
        while not self._stop.wait(max(0.0, self._last_s + self._limit_s - time.monotonic())):
            if time.monotonic() - self._last_s >= self._limit_s:
                self._cancel()
                return


# ---- client ---------------------------------------------------------------------------------------------------------


class _SendToken(
    grpc.UnaryUnaryClientInterceptor,
    grpc.UnaryStreamClientInterceptor,
    grpc.StreamUnaryClientInterceptor,
    grpc.StreamStreamClientInterceptor,
):
    """Adds the token to every call. (gRPC's call credentials refuse plain loopback channels.)"""

    def __init__(self, token: str) -> None:
        self._token = token

    def _call(self, continuation: Callable[..., Any], details: Any, request: Any) -> Any:
        metadata = [*(details.metadata or ()), (TOKEN_KEY, self._token)]
        return continuation(details._replace(metadata=metadata), request)

    intercept_unary_unary = intercept_unary_stream = intercept_stream_unary = intercept_stream_stream = _call


def open_channel(address: str, credentials: Credentials, timing: Timing) -> grpc.Channel:
    """Returns a channel that has not been tried yet; see `connect`."""
    options = [
        ("grpc.keepalive_time_ms", int(timing.call_s * 1000)),
        ("grpc.keepalive_timeout_ms", int(timing.connect_s * 1000)),
        ("grpc.enable_http_proxy", 0),
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.max_reconnect_backoff_ms", 1000),
        # The name in a certificate is checked; for a unix socket there is none.
        *([("grpc.default_authority", "localhost")] if address.startswith("unix:") else []),
    ]
    if credentials.tls_ca is not None:
        try:
            authority = credentials.tls_ca.read_bytes()
        except OSError as error:
            raise UsageError(f"Cannot read the certificate of the pool's authority: {error}") from error
        channel = grpc.secure_channel(address, grpc.ssl_channel_credentials(authority), options)
    else:
        channel = grpc.insecure_channel(address, options)
    if credentials.token is None:
        return channel
    return grpc.intercept_channel(channel, _SendToken(credentials.token))


def connect(address: str, credentials: Credentials, timing: Timing) -> grpc.Channel:
    """Connects to a pool and makes sure that it answers and accepts the credentials.

    A unix socket is waited for, since the pool that will make it may be starting.

    Args:
        address: "host:port" or "unix:/path".
        credentials: Token and certificate authority.
        timing: `connect_s` is the limit.

    Raises:
        PoolUnreachableError: Nothing answers there.
        AccessError: Wrong token, or the two ends disagree about TLS.
    """
    channel = open_channel(address, credentials, timing)
    check = channel.unary_unary(_HEALTH)
    end_s = time.monotonic() + timing.connect_s
    while True:
        try:
            check(b"", timeout=max(0.1, end_s - time.monotonic()))
            return channel
        except grpc.RpcError as error:
            waiting = address.startswith("unix:") and time.monotonic() < end_s
            if not (waiting and error.code() == grpc.StatusCode.UNAVAILABLE):  # type: ignore[attr-defined]
                channel.close()
                raise _connect_error(address, credentials, error) from error
            time.sleep(min(0.02, timing.connect_s))


def close(channel: grpc.Channel, limit_s: float) -> None:
    """Closes a channel; leaves one behind that does not come to an end, since the process is about to.

    Closing waits for what the channel's own thread still has to do.
    """
    closing = threading.Thread(target=channel.close, name="fdt-close", daemon=True)
    closing.start()
    closing.join(limit_s)


def _connect_error(address: str, credentials: Credentials, error: Any) -> FdtError:
    text = error.details() or ""
    if error.code() == grpc.StatusCode.UNAUTHENTICATED:
        return from_rpc_error(error, address)
    if "CERTIFICATE_VERIFY_FAILED" in text or "Hostname Verification" in text or "name doesn't match" in text:
        return AccessError(
            f"The certificate of the pool at {address} was not signed by the given authority, or is for another name: "
            f"{text}. Received: tls_ca={credentials.tls_ca}"
        )
    if "SSL" in text or "WRONG_VERSION_NUMBER" in text or "handshake" in text.lower():
        return AccessError(f"No TLS with the pool at {address}: does it serve with --tls-cert? ({text})")
    plain = credentials.tls_ca is None and not address.startswith("unix:")
    if plain and any(sign in text for sign in ("Socket closed", "reset", "GOAWAY", "recvmsg")):
        return AccessError(
            f"{address} hung up on a connection without TLS. If the pool has a certificate, name its authority "
            f"with --tls-ca. ({text})"
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
    """Refuses calls without the token of their service, before anything of the request is read."""

    def __init__(self, token: str | None, tokens: Mapping[str, Sequence[str | None]]) -> None:
        """Takes the token of all services (None: they are open), and by service those that open it instead of that."""
        self._token = token
        self._tokens = {service: tuple(each) for service, each in tokens.items()}
        # Whatever the method: as a stream, so that not even a first message is waited for.
        self._refusal = grpc.stream_stream_rpc_method_handler(_refuse)

    def intercept_service(self, continuation: Callable[..., Any], details: Any) -> Any:
        """Passes the call on, or answers it."""
        service = details.method.rpartition("/")[0].lstrip("/")
        given = _encoded(next((value for key, value in details.invocation_metadata if key == TOKEN_KEY), ""))
        for expected in self._tokens.get(service, (self._token,)):
            if expected is None or hmac.compare_digest(given, expected.encode()):
                return continuation(details)
        return self._refusal


def _encoded(value: str | bytes) -> bytes:
    return value if isinstance(value, bytes) else value.encode()


def _refuse(_: object, context: grpc.ServicerContext) -> None:
    _abort(context, AccessError("The pool does not accept this token. Give the pool's own with --token-file."))


def _handler(streams_in: bool, streams_out: bool, behaviour: Callable[..., Any]) -> grpc.RpcMethodHandler:
    kinds = {
        (False, False): grpc.unary_unary_rpc_method_handler,
        (False, True): grpc.unary_stream_rpc_method_handler,
        (True, False): grpc.stream_unary_rpc_method_handler,
        (True, True): grpc.stream_stream_rpc_method_handler,
    }
    return kinds[streams_in, streams_out](behaviour)


def _abort(context: grpc.ServicerContext, error: FdtError) -> None:
    code, text, trailing = to_status(error)
    context.set_trailing_metadata(trailing)
    context.abort(code, text)


def service(descriptor: ServiceDescriptor, servicer: object, raw: Iterable[str] = ()) -> grpc.GenericRpcHandler:
    """Binds a servicer's methods to a service, with our own decoding and errors.

    Args:
        descriptor: The service.
        servicer: Has methods of the same names, `method(request or iterator, context)`; what it lacks is UNIMPLEMENTED.
        raw: Methods that take and give bytes instead of messages.
    """
    raw = set(raw)
    handlers = {
        method.name: _bind(method, getattr(servicer, method.name), method.name in raw)
        for method in descriptor.methods
        if hasattr(servicer, method.name)
    }
    return grpc.method_handlers_generic_handler(descriptor.full_name, handlers)


def _bind(method: MethodDescriptor, behaviour: Callable[..., Any], raw: bool) -> grpc.RpcMethodHandler:
    message = message_factory.GetMessageClass(method.input_type)

    def read(request: Any) -> Any:
        if raw:
            return request
        return (
            (wire.decode(message, item) for item in request)
            if method.client_streaming
            else wire.decode(message, request)
        )

    def write(reply: Any) -> bytes:
        return reply if raw else reply.SerializeToString()

    def single(request: Any, context: grpc.ServicerContext) -> bytes:
        with _answered(context):
            return write(behaviour(read(request), context))
        raise AssertionError

    def stream(request: Any, context: grpc.ServicerContext) -> Iterator[bytes]:
        with _answered(context):
            for reply in behaviour(read(request), context):
                yield write(reply)

    streams_out = method.server_streaming
    return _handler(method.client_streaming, streams_out, stream if streams_out else single)


@contextlib.contextmanager
def _answered(context: grpc.ServicerContext) -> Iterator[None]:
    try:
        yield
    except FdtError as error:
        _abort(context, error)


def check_listen(address: str, token: str | None, tls: bool) -> None:
    """Refuses to be seen by others without a token and TLS.

    Raises:
        UsageError: The address is off loopback, and token or certificate is missing; or it is no address.
    """
    if address.startswith("unix:"):
        return
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdigit() or int(port) > 65535:
        raise UsageError(f"Expected --listen HOST:PORT, such as 127.0.0.1:7077. Received: listen={address}")
    if not _is_loopback(host.strip("[]")) and not (tls and token):
        raise UsageError(
            f"A pool that others can reach needs --token-file, --tls-cert and --tls-key; or listen on 127.0.0.1. "
            f"Received: listen={address}"
        )


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def create_server(interceptor: RequireToken, max_calls: int, timing: Timing) -> grpc.Server:
    """Returns a server without services and ports."""
    return grpc.server(
        futures.ThreadPoolExecutor(max_calls, thread_name_prefix="fdt-call"),
        interceptors=[interceptor],
        maximum_concurrent_rpcs=max_calls,
        options=[
            ("grpc.so_reuseport", 0),
            ("grpc.keepalive_time_ms", int(timing.call_s * 1000)),
            ("grpc.keepalive_timeout_ms", int(timing.connect_s * 1000)),
            ("grpc.http2.min_ping_interval_without_data_ms", 1000),
        ],
    )


def listen(server: grpc.Server, address: str, certificate: Path | None = None, key: Path | None = None) -> str:
    """Opens a port and returns its address, with the port that the system chose if 0 was asked for.

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
