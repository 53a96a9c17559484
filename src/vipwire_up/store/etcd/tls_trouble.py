"""Says why TLS with a member of etcd fails, in words of its certificate: gRPC tells only that there is no connection.

It makes one connection by itself, with the same files, when nothing else has worked.
"""

import socket
import ssl
from datetime import datetime
from pathlib import Path
from typing import Final

from cryptography import x509

from vipwire_up.store.etcd.settings import EtcdSettings, Server

_SECONDS: Final = 2.0


def tls_trouble(server: Server, settings: EtcdSettings, now: datetime) -> str:
    """Connect once; return what is wrong with certificates, "" if nothing is, or if there is no connection at all."""
    if not server.secure:
        return ""
    try:
        context = ssl.create_default_context(cafile=settings.cafile or None)
        if settings.certfile:
            context.load_cert_chain(settings.certfile, settings.keyfile)
        context.set_alpn_protocols(["h2"])
    except (OSError, ssl.SSLError) as error:
        return f"the files of --etcd-cafile, --etcd-certfile and --etcd-keyfile cannot be used: {_short(error)}"
    try:
        with socket.create_connection((server.host, server.port), _SECONDS) as plain:
            return _shake_hands(context, plain, server, settings, now)
    except OSError:
        return ""


def _shake_hands(
    context: ssl.SSLContext, plain: socket.socket, server: Server, settings: EtcdSettings, now: datetime
) -> str:
    try:
        with context.wrap_socket(plain, server_hostname=server.host) as secured:
            secured.settimeout(_SECONDS / 2)
            secured.recv(1)  # with TLS 1.3 a server refuses a client's certificate after the client is done
    except ssl.SSLCertVerificationError as error:
        clock = f"; this machine's clock says {now:%Y-%m-%d %H:%M} UTC" if "valid" in error.verify_message else ""
        clock = clock or (f"; this machine's clock says {now:%Y-%m-%d %H:%M} UTC" if "expired" in str(error) else "")
        return f"the certificate of {server.target} does not hold: {error.verify_message}{clock}"
    except ssl.SSLError as error:
        own = _own_certificate(settings.certfile, now)
        return f"{server.target} refuses the connection: {_short(error)}{own}" if "ALERT" in _short(error) else ""
    except OSError:
        return ""
    return ""


def _own_certificate(path: str, now: datetime) -> str:
    """Say what is wrong with our certificate, as far as it can be seen here."""
    if not path:
        return "; it may want a client certificate: --etcd-certfile, --etcd-keyfile"
    try:
        found = x509.load_pem_x509_certificate(Path(path).read_bytes())
    except (OSError, ValueError) as error:
        return f"; {path}: {error}"
    if not found.not_valid_before_utc <= now <= found.not_valid_after_utc:
        start, end = found.not_valid_before_utc, found.not_valid_after_utc
        return f"; {path} is valid from {start:%Y-%m-%d} to {end:%Y-%m-%d}, and it is {now:%Y-%m-%d %H:%M} UTC"
    return f"; it may not trust the issuer of {path}"


def _short(error: Exception) -> str:
    reason = getattr(error, "reason", None)
    return str(reason or getattr(error, "strerror", None) or error)
