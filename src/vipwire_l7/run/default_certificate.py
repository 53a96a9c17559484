"""The self-signed certificate for names without another certificate. It stays in the folder."""

import datetime as dt
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from vipwire.file_io.files import replace_file

_NAME = "vipwire default certificate"


def read_or_make_certificate(folder: Path, now: dt.datetime) -> str:
    """Read the certificate with its key, or make them. Raise OSError."""
    file = folder / "default.pem"
    if not file.exists():
        replace_file(file, make_certificate(now).encode(), mode=0o600)
    return file.read_text(encoding="ascii")


def make_certificate(now: dt.datetime, *names: str) -> str:
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, names[0] if names else _NAME)])
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(hours=1))
        .not_valid_after(now + dt.timedelta(days=3650))
    )
    if names:
        alternative = x509.SubjectAlternativeName([x509.DNSName(name) for name in names])
        builder = builder.add_extension(alternative, critical=False)
    certificate = builder.sign(key, hashes.SHA256())
    written = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return (certificate.public_bytes(Encoding.PEM) + written).decode("ascii")
