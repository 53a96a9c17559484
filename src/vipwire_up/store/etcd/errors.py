"""The meaning of etcd's errors: whether a change may have been made, and whether another member may do better.

etcd's texts are those of its client API (api/v3rpc/rpctypes/error.go); of gRPC's own, only those about missing
connections matter. gRPC does not say why TLS fails, so vipwire makes one TLS connection of its own, with the same
files, when all tries have failed.
"""

import socket
import ssl
from datetime import datetime
from enum import Enum
from pathlib import Path
from typing import Final

from cryptography import x509

from vipwire_up.store.etcd.settings import EtcdServer, EtcdSettings


class ErrorMeaning(Enum):
    """The meaning of an error."""

    ELSEWHERE = "not done; retry, or use another member"
    UNCERTAIN = "unknown whether done"
    LOGIN = "not done; the token has expired"
    FULL = "not done; no space left"
    LARGE = "not done; the request is too large"
    COMPACTED = "not done; the revision is compacted"
    LEASE_GONE = "not done; the lease has ended"
    REFUSED = "not done; retries are useless"


_TEXTS: Final = (
    ("database space exceeded", ErrorMeaning.FULL),
    ("request is too large", ErrorMeaning.LARGE),
    ("message larger than max", ErrorMeaning.LARGE),
    ("required revision has been compacted", ErrorMeaning.COMPACTED),
    ("requested lease not found", ErrorMeaning.LEASE_GONE),
    ("invalid auth token", ErrorMeaning.LOGIN),
    ("revision of auth store is old", ErrorMeaning.LOGIN),
    ("authentication failed", ErrorMeaning.REFUSED),
    ("authentication is not enabled", ErrorMeaning.REFUSED),
    ("user name is empty", ErrorMeaning.REFUSED),
    ("permission denied", ErrorMeaning.REFUSED),
    ("no leader", ErrorMeaning.ELSEWHERE),
    ("too many requests", ErrorMeaning.ELSEWHERE),
    ("failed to connect", ErrorMeaning.ELSEWHERE),
    ("not supported for learner", ErrorMeaning.ELSEWHERE),
)
_UNCERTAIN: Final = frozenset(
    {"UNAVAILABLE", "DEADLINE_EXCEEDED", "INTERNAL", "UNKNOWN", "CANCELLED", "ABORTED", "DATA_LOSS"}
)


def interpret_error(code: str, text: str) -> ErrorMeaning:
    for part, verdict in _TEXTS:
        if part in text:
            return verdict
    if code == "UNAUTHENTICATED":
        return ErrorMeaning.LOGIN
    return ErrorMeaning.UNCERTAIN if code in _UNCERTAIN else ErrorMeaning.REFUSED


_SECONDS: Final = 2.0


def find_tls_trouble(server: EtcdServer, settings: EtcdSettings, now: datetime) -> str:
    """Connect once; return the problem of a certificate, "" if there is none or the connection fails."""
    if not server.secure:
        return ""
    try:
        context = ssl.create_default_context(cafile=settings.cafile or None)
        if settings.certfile:
            context.load_cert_chain(settings.certfile, settings.keyfile)
        context.set_alpn_protocols(["h2"])
    except (OSError, ssl.SSLError) as error:
        return (
            f"the files of --etcd-cafile, --etcd-certfile and --etcd-keyfile cannot be used: {_shorten_error(error)}"
        )
    try:
        with socket.create_connection((server.host, server.port), _SECONDS) as plain:
            return _try_handshake(context, plain, server, settings, now)
    except OSError:
        return ""


def _try_handshake(
    context: ssl.SSLContext, plain: socket.socket, server: EtcdServer, settings: EtcdSettings, now: datetime
) -> str:
    try:
        with context.wrap_socket(plain, server_hostname=server.host) as secured:
            secured.settimeout(_SECONDS / 2)
            secured.recv(1)  # with TLS 1.3 a server refuses a client's certificate after the handshake
    except ssl.SSLCertVerificationError as error:
        clock = f"; this machine's clock says {now:%Y-%m-%d %H:%M} UTC" if "valid" in error.verify_message else ""
        clock = clock or (f"; this machine's clock says {now:%Y-%m-%d %H:%M} UTC" if "expired" in str(error) else "")
        return f"the certificate of {server.target} is not valid: {error.verify_message}{clock}"
    except ssl.SSLError as error:
        own = _explain_client_certificate(settings.certfile, now)
        return (
            f"{server.target} refuses the connection: {_shorten_error(error)}{own}"
            if "ALERT" in _shorten_error(error)
            else ""
        )
    except OSError:
        return ""
    return ""


def _explain_client_certificate(path: str, now: datetime) -> str:
    if not path:
        return "; the server may require a client certificate: --etcd-certfile, --etcd-keyfile"
    try:
        found = x509.load_pem_x509_certificate(Path(path).read_bytes())
    except (OSError, ValueError) as error:
        return f"; {path}: {error}"
    if not found.not_valid_before_utc <= now <= found.not_valid_after_utc:
        start, end = found.not_valid_before_utc, found.not_valid_after_utc
        return f"; {path} is valid from {start:%Y-%m-%d} to {end:%Y-%m-%d}, and the time is {now:%Y-%m-%d %H:%M} UTC"
    return f"; the server may not trust the issuer of {path}"


def _shorten_error(error: Exception) -> str:
    reason = getattr(error, "reason", None)
    return str(reason or getattr(error, "strerror", None) or error)
