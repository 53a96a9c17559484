"""Verifies that certificates and keys in an answer belong to the pinned authority.

A joining machine reads answers that any host on the network may have written. Each text is parsed as exactly one
certificate or key, and compared with the hash of --ca-hash or the machine's own key. The machine uses and stores the
parsed value, encoded anew, never the text. Pure.
"""

import contextlib
import hashlib
from collections.abc import Iterator
from typing import Any, Final

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.types import CertificatePublicKeyTypes
from cryptography.x509.oid import NameOID

from vipwire.errors import VipwireError

_PEM: Final = serialization.Encoding.PEM
_REFUSED: Final = (ValueError, TypeError, InvalidSignature, UnsupportedAlgorithm, x509.InvalidVersion)


class CredentialsUntrustedError(VipwireError):
    """A server has sent a certificate or a key that this machine must not use."""


def parse_authority(text: Any, pinned: str, server: str) -> x509.Certificate:
    """Parse an authority's certificate: one, self-signed, with the pinned hash. Raise CredentialsUntrustedError."""
    with _explain_errors(server, "the certificate of its authority"):
        found = read_certificate(text)
        actual = hash_of(found)
        found.verify_directly_issued_by(found)
    if actual != pinned:
        raise CredentialsUntrustedError(f"{server}: its authority has the hash {actual}, not {pinned}")
    return found


def parse_signed_certificate(
    text: Any, request: x509.CertificateSigningRequest, authority: x509.Certificate, server: str
) -> x509.Certificate:
    """Parse the certificate for a request's key and name, signed by `authority`. Raise CredentialsUntrustedError."""
    with _explain_errors(server, "the certificate for this machine"):
        found = read_certificate(text)
        if _public_bytes(found.public_key()) != _public_bytes(request.public_key()):
            raise ValueError("the certificate is for another key")
        if _common_names(found.subject) != _common_names(request.subject):
            raise ValueError("the certificate is for another name")
        found.verify_directly_issued_by(authority)
    return found


def parse_authority_key(text: Any, authority: x509.Certificate, server: str) -> ec.EllipticCurvePrivateKey:
    """Parse the private key of an authority. Raise CredentialsUntrustedError."""
    with _explain_errors(server, "the key of its authority"):
        found = serialization.load_pem_private_key(_require_text(text).encode(), None)
        if not isinstance(found, ec.EllipticCurvePrivateKey) or _public_bytes(found.public_key()) != _public_bytes(
            authority.public_key()
        ):
            raise ValueError("the key differs")
    return found


def read_certificate(text: Any) -> x509.Certificate:
    """Parse a text that is one certificate in PEM form and nothing else. Raise ValueError."""
    found = x509.load_pem_x509_certificate(_require_text(text).encode())
    if "".join(encode_certificate(found).split()) != "".join(_require_text(text).split()):
        raise ValueError("not exactly one certificate in PEM form")
    return found


def encode_certificate(certificate: x509.Certificate) -> str:
    return certificate.public_bytes(_PEM).decode()


def hash_of(certificate: x509.Certificate) -> str:
    """Return the hash of a certificate as kubeadm does: SHA-256 of its public key."""
    return hash_of_key(certificate.public_key())


def hash_of_key(key: CertificatePublicKeyTypes) -> str:
    return f"sha256:{hashlib.sha256(_public_bytes(key)).hexdigest()}"


def _public_bytes(key: CertificatePublicKeyTypes) -> bytes:
    return key.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)


def _common_names(subject: x509.Name) -> list[str | bytes]:
    return [each.value for each in subject.get_attributes_for_oid(NameOID.COMMON_NAME)]


def _require_text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError("it is missing")
    return value


@contextlib.contextmanager
def _explain_errors(server: str, part: str) -> Iterator[None]:
    try:
        yield
    except _REFUSED as error:
        reason = str(error).partition(". ")[0] or "wrong signature"
        raise CredentialsUntrustedError(f"{server}: {part} cannot be trusted: {reason}") from error
