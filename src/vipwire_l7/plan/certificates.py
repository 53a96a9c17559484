"""Decides which TLS Secrets are valid: certificate and key present, readable, matching, and in their time.

The PEM for HAProxy is written from the parsed certificate, so that nothing but PEM reaches HAProxy. Parsing costs
some hundred microseconds (RSA keys more), so it is done once for each content.
"""

import math
from datetime import UTC, datetime
from functools import lru_cache
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import NameOID

from vipwire_l7.watch.convert import is_host
from vipwire_l7.watch.objects import Secret


class CertificatePair(NamedTuple):
    """A certificate with its key as HAProxy reads them, and its names. Times are seconds since the epoch."""

    pem: str
    names: tuple[str, ...]
    begins: float
    ends: float


def judge_secret(secret: Secret | None, now: float) -> tuple[CertificatePair | None, str]:
    """Read a Secret's certificate and key; if they are not valid, return the reason.

    `now` is in seconds since the epoch.
    """
    if secret is None:
        return None, "the Secret does not exist"
    missing = [key for key in ("tls.crt", "tls.key") if not secret.data.get(key)]
    if missing:
        return None, f"the Secret has no {' and no '.join(missing)}"
    pair, reason = read_pair(secret.data["tls.crt"], secret.data["tls.key"])
    if pair is None:
        return None, reason
    if now >= pair.ends:
        return None, f"the certificate has expired on {_format_day(pair.ends)}"
    if now < pair.begins:
        return None, f"the certificate is not valid before {_format_day(pair.begins)}"
    return pair, ""


def find_next_change(secret: Secret | None, now: float) -> float:
    """Return when the result for an unchanged Secret changes: when its certificate becomes valid, or expires."""
    data = secret.data if secret is not None else {}
    pair, _ = read_pair(data.get("tls.crt", b""), data.get("tls.key", b""))
    return min((time for time in (pair and (pair.begins, pair.ends)) or () if time > now), default=math.inf)


@lru_cache(maxsize=8192)
def read_pair(certificate: bytes, key: bytes) -> tuple[CertificatePair | None, str]:
    """Read a chain and a key in PEM. The first certificate must match the key."""
    try:
        chain = x509.load_pem_x509_certificates(certificate)
    except (ValueError, TypeError) as error:
        return None, f"tls.crt is no certificate in PEM: {_get_first_line(error)}"
    try:
        private = load_pem_private_key(key, None)
    except (ValueError, TypeError, NotImplementedError) as error:
        return None, f"tls.key is no private key in PEM without a password: {_get_first_line(error)}"
    form = (Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    try:
        if private.public_key().public_bytes(*form) != chain[0].public_key().public_bytes(*form):
            return None, "tls.key is not the key of the certificate in tls.crt"
        written = private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    except (ValueError, TypeError, AttributeError) as error:
        return None, f"unsupported kind of key: {_get_first_line(error)}"
    pem = b"".join(each.public_bytes(Encoding.PEM) for each in chain) + written
    leaf = chain[0]
    times = leaf.not_valid_before_utc.timestamp(), leaf.not_valid_after_utc.timestamp()
    return CertificatePair(pem.decode("ascii"), _list_names(leaf), *times), ""


def _list_names(leaf: x509.Certificate) -> tuple[str, ...]:
    """Return the SNI names of a certificate without a list of hosts: subjectAltNames, and the common name."""
    try:
        found = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        names = [str(each) for each in found.get_values_for_type(x509.DNSName)]
    except (x509.ExtensionNotFound, ValueError):
        names = []
    names += [str(each.value) for each in leaf.subject.get_attributes_for_oid(NameOID.COMMON_NAME)]
    return tuple(name for name in dict.fromkeys(name.lower() for name in names) if is_host(name))


def _format_day(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d")


def _get_first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:120]
