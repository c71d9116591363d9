"""Makes self-signed certificates for the tunnels of a job, and for a pool that lasts as long as a run."""

import datetime
import ipaddress
import secrets

# A margin for hosts whose clocks differ. The dates add no security: the other side accepts exactly this certificate.
_CLOCKS_DIFFER = datetime.timedelta(days=2)
_VALID = datetime.timedelta(days=365)


def self_signed(address: str) -> tuple[str, str]:
    """Returns a new self-signed certificate for an IPv4 address, and its key, both in PEM."""
    # Imported here: only jobs over several hosts need it, and the import takes a tenth of a second.
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    # A unique name: OpenSSL looks up trusted certificates by name, and takes the first of several with the same name.
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, f"fdt {secrets.token_hex(16)}")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _CLOCKS_DIFFER)
        .not_valid_after(now + _VALID)
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(address))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    secret = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return certificate.public_bytes(pem).decode(), secret.decode()
