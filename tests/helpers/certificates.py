"""Certificates for pools of tests."""

import datetime
import ipaddress
from collections.abc import Sequence
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

_DAY = datetime.timedelta(days=1)


def certificate(
    directory: Path,
    names: Sequence[str] = ("localhost",),
    addresses: Sequence[str] = ("127.0.0.1",),
    days_ahead: int = 0,
) -> tuple[Path, Path]:
    """Writes a certificate that is its own authority, as `openssl req -x509` would.

    Args:
        directory: Made if it is not there.
        names: By which the server is called, at least one.
        addresses: The server's, IPv4 or IPv6.
        days_ahead: How far the clock is ahead on the machine where it is made.

    Returns:
        The files of certificate and private key, PEM.
    """
    key = ec.generate_private_key(ec.SECP256R1())
    called = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, names[0])])
    servers: list[x509.GeneralName] = [x509.DNSName(name) for name in names]
    servers += [x509.IPAddress(ipaddress.ip_address(address)) for address in addresses]
    now = datetime.datetime.now(datetime.UTC) + days_ahead * _DAY
    signed = (
        x509.CertificateBuilder()
        .subject_name(called)
        .issuer_name(called)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        # From yesterday, so that a clock that is set back while tests run does no harm.
        .not_valid_before(now - _DAY)
        .not_valid_after(now + 2 * _DAY)
        .add_extension(x509.SubjectAlternativeName(servers), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    directory.mkdir(parents=True, exist_ok=True)
    cert_file, key_file = directory / "cert.pem", directory / "key.pem"
    cert_file.write_bytes(signed.public_bytes(serialization.Encoding.PEM))
    key_file.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return cert_file, key_file
