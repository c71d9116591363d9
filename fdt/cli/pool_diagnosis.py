"""Checks a pool from a client's side (`fdt doctor --server`): address, TLS, certificate, token, versions."""

import argparse
import dataclasses
import datetime
import secrets
import socket
import ssl
from collections.abc import Iterator
from typing import Any

import grpc
from google.protobuf.descriptor import FileDescriptor

from fdt.base.config import Credentials, Timing
from fdt.base.printable import printable
from fdt.base.versions import versions
from fdt.cli.settings import credentials, open_to_others
from fdt.errors import AccessError, FdtError, VersionError
from fdt.transport import rpc, statuses, tokens
from fdt.v1 import blobs_pb2, host_pb2, job_pb2, pool_pb2, pool_pb2_grpc, worker_pb2

_FILES: tuple[FileDescriptor, ...] = tuple(
    file.DESCRIPTOR for file in (blobs_pb2, job_pb2, worker_pb2, host_pb2, pool_pb2)
)
# Methods of grpcio-health-checking, a package that only a pool has.
_HEALTH = ("/grpc.health.v1.Health/Check", "/grpc.health.v1.Health/Watch")
_DAY_S = 86400.0
_REFUSED = (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.UNIMPLEMENTED)
# A certificate that expires sooner is reported.
_SOON_DAYS = 14


@dataclasses.dataclass(frozen=True)
class Verdict:
    """The result of one check.

    Attributes:
        name: What was checked.
        found: The finding.
        remedy: The remedy; None if the check passed.
        broken: Whether it must be fixed; if False, it may be intended.
    """

    name: str
    found: str
    remedy: str | None = None
    broken: bool = True


def look(options: argparse.Namespace, timing: Timing | None = None) -> Iterator[Verdict]:
    """Yields the results of all checks of a pool; those that need no token come first.

    Args:
        options: Has `server`, `token_file` and `tls_ca`.
        timing: `connect_s` and `call_s` are the limits.
    """
    timing, address = timing or Timing(), options.server
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timing.connect_s).close()
    except OSError as error:
        yield Verdict("address", f"{address}: {error}", "is `fdt serve` running there, and is the port right?")
        return
    local = tokens.is_local(address)
    yield Verdict(
        "address", f"{address} answers; {'an address of this machine alone' if local else 'others can reach it'}"
    )
    certificate = list(_certificate(host.strip("[]"), int(port), local, timing))
    yield from certificate
    is_secure = certificate[0].found.startswith("TLS")
    yield from _doors(options, is_secure, local, timing)
    try:
        known = credentials(options, address)
        if options.token_file is not None:
            remedy = open_to_others(options.token_file)
            found = f"{options.token_file}, {'others on this machine can read it' if remedy else 'yours alone'}"
            yield Verdict("token file", found, remedy, broken=False)
        yield from _told(address, known, timing)
    except AccessError as error:
        yield Verdict("access", "refused", str(error))
    except FdtError as error:
        yield Verdict("pool", type(error).__name__, str(error))


# ---- TLS ------------------------------------------------------------------------------------------------------------


def _certificate(host: str, port: int, local: bool, timing: Timing) -> Iterator[Verdict]:
    try:
        version, shown = _handshake(host, port, timing)
    except OSError:
        remedy = (
            None if local else "others on the network can read token, programs, data: serve with --tls-cert, --tls-key"
        )
        yield Verdict("tls", "none; the traffic stays on this machine" if local else "none", remedy)
        return
    yield Verdict("tls", version)
    try:
        fields = _fields(host, port, shown, timing)
    except ssl.SSLCertVerificationError as error:
        yield Verdict("certificate", error.verify_message, "make another, and give it with --tls-cert and --tls-key")
        return
    names = [value for _, value in fields.get("subjectAltName", ())]
    signed = "self-signed" if fields.get("issuer") == fields.get("subject") else "signed by an authority"
    yield Verdict("certificate", f"for {printable(', '.join(names)) or 'no name'}; {signed}")
    if host not in names:
        remedy = "name the pool as its certificate does, or make one for this name (subjectAltName)"
        yield Verdict("its name", f"{host} is not in it", remedy)
    yield _expiry(fields["notAfter"])


def _handshake(host: str, port: int, timing: Timing) -> tuple[str, bytes]:
    """Returns the version of TLS and the server's certificate, without verifying it."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    with socket.create_connection((host, port), timing.connect_s) as raw, context.wrap_socket(raw) as secure:
        return (secure.version() or "").replace("TLSv", "TLS "), secure.getpeercert(binary_form=True) or b""


def _fields(host: str, port: int, shown: bytes, timing: Timing) -> dict[str, Any]:
    """Returns a certificate's fields. Python parses only trusted certificates, so this one is added as trusted."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    context.set_alpn_protocols(["h2"])
    context.load_verify_locations(cadata=shown)
    with socket.create_connection((host, port), timing.connect_s) as raw, context.wrap_socket(raw) as secure:
        return dict(secure.getpeercert() or {})


def _expiry(until: str) -> Verdict:
    end = datetime.datetime.fromtimestamp(ssl.cert_time_to_seconds(until), datetime.UTC)
    days = (end - datetime.datetime.now(datetime.UTC)).total_seconds() / _DAY_S
    found = f"until {end:%Y-%m-%d} ({days:.0f} days)"
    return Verdict("its end", found, "make another in time" if days < _SOON_DAYS else None, broken=False)


# ---- the token ------------------------------------------------------------------------------------------------------


def _doors(options: argparse.Namespace, is_secure: bool, local: bool, timing: Timing) -> Iterator[Verdict]:
    """Tries each method of each service without a token, and with a wrong one."""
    if not is_secure and not local:
        yield Verdict("token", "not tried: off loopback FDT uses TLS only", "serve with --tls-cert and --tls-key")
        return
    authority = options.tls_ca if is_secure else None
    if is_secure and local and authority is None:
        yield Verdict("token", "not tried", "give --tls-ca FILE, the authority of the certificate", broken=True)
        return
    methods = [
        *_HEALTH,
        *(
            f"/{service.full_name}/{method.name}"
            for file in _FILES
            for service in file.services_by_name.values()
            for method in service.methods
        ),
    ]
    for given, token in (("without a token", None), ("with a wrong token", secrets.token_hex(32))):
        found = {method: _status(options.server, Credentials(token, authority), method, timing) for method in methods}
        if set(found.values()) == {grpc.StatusCode.UNAVAILABLE}:
            remedy = "is --tls-ca the authority that signed its certificate?"
            yield Verdict("calls", f"{given}: no connection", remedy)
            continue
        open_ones = [method for method, code in found.items() if code not in _REFUSED]
        if not open_ones:
            yield Verdict("calls", f"{given}: all {len(methods)} methods are refused")
            continue
        who = "every user of that machine" if local else "everybody who reaches it"
        remedy = f"open to {who}: serve it without --no-token, or with --token-file"
        yield Verdict("calls", f"{given}: {len(open_ones)} of {len(methods)} methods answer", remedy, broken=not local)


def _status(address: str, known: Credentials, method: str, timing: Timing) -> grpc.StatusCode:
    with rpc.open_channel(address, known, timing) as channel:
        call = channel.stream_stream(method)(iter([b""]), timeout=timing.call_s)
        try:
            for _ in call:
                break
            call.cancel()
        except grpc.RpcError:
            pass
        code: grpc.StatusCode = call.code()
        # CANCELLED, by the line above, means that the pool had admitted the call.
        return code


# ---- its description ------------------------------------------------------------------------------------------------


def _told(address: str, known: Credentials, timing: Timing) -> Iterator[Verdict]:
    with rpc.connect(address, known, timing) as channel, statuses.translated(address):
        described = pool_pb2_grpc.PoolStub(channel).Describe(pool_pb2.DescribeRequest(), timeout=timing.call_s)
    yield Verdict("access", "without a token" if known.token is None else "the token is accepted")
    theirs, ours = described.versions, versions()
    told = ", ".join(f"{name} {getattr(theirs, name) or '-'}" for name in ("fdt", "tensorflow", "python"))
    fits = theirs.fdt.split(".")[:2] == ours.fdt.split(".")[:2]
    yield Verdict("versions", printable(told), None if fits else f"{VersionError.__name__}: here is fdt {ours.fdt}")
    found = f"{described.num_free} of {described.num_workers} workers free, {', '.join(described.modes)}"
    yield Verdict("workers", printable(found))
    yield Verdict("listens", printable(", ".join(described.listens)) or "-")
    if described.network:
        yield Verdict(
            "hosts", f"takes hosts on {printable(described.network)}, where workers exchange data in the clear"
        )
    for host in described.hosts:
        yield Verdict("host", printable(host))
