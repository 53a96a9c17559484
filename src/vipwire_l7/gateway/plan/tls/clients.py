"""Reads a Gateway's validation of client certificates, and the certificate that it presents to Pods.

HAProxy validates client certificates by port, not by host: an HTTP/2 client sends requests for many hosts over one
connection. Pure.
"""

import hashlib
from dataclasses import dataclass, field
from typing import Final

from vipwire_l7.gateway.plan.kinds.objects import Gateway, GatewayWorld, Verdict, no, yes
from vipwire_l7.gateway.plan.tls.authorities import authorities_of, file_of
from vipwire_l7.gateway.plan.tls.certified import pair_of

_OPTIONAL: Final = "AllowInsecureFallback"
_MODES: Final = ("AllowValidOnly", _OPTIONAL)


@dataclass(frozen=True, slots=True)
class ClientCheck:
    """Validation of client certificates: a CA file and its content. `optional` lets other clients connect too."""

    file: str
    content: str
    optional: bool = False


@dataclass(frozen=True, slots=True)
class JudgedValidation:
    """The result of a port's validation."""

    check: ClientCheck | None = None
    accepted: Verdict = field(default_factory=lambda: yes("Accepted"))
    resolved: Verdict = field(default_factory=lambda: yes("ResolvedRefs"))


@dataclass(frozen=True, slots=True)
class OwnCertificate:
    """The client certificate that a Gateway presents to Pods, if its Secret is valid."""

    verdict: Verdict
    file: str = ""
    pem: str = field(default="", repr=False)


def client_check(gateway: Gateway, port: int, world: GatewayWorld) -> JudgedValidation:
    """Read a Gateway's validation of client certificates at a port."""
    frontend = gateway.spec.tls.frontend
    here = next((each.tls for each in frontend.per_port if each.port == port), frontend.default)
    validation = here.validation
    if validation is None:
        return JudgedValidation()
    text, resolved = authorities_of(validation, gateway, world, "InvalidCACertificateKind")
    if not text:
        return JudgedValidation(None, no("NoValidCACertificate", resolved.message), resolved)
    if validation.mode not in _MODES:
        return JudgedValidation(
            None, no("UnsupportedValue", f"{validation.mode[:40]!r}: {' or '.join(_MODES)}"), resolved
        )
    return JudgedValidation(ClientCheck(file_of(text), text, validation.mode == _OPTIONAL), resolved=resolved)


def own_certificate(gateway: Gateway, world: GatewayWorld) -> OwnCertificate | None:
    """Read the client certificate that a Gateway presents to Pods; None if it names none."""
    ref = gateway.spec.tls.backend.client_certificate_ref
    if ref is None:
        return None
    pair = pair_of(gateway, ref, world, "InvalidClientCertificateRef")
    if isinstance(pair, Verdict):
        return OwnCertificate(pair)
    file = f"client-{hashlib.sha256(pair.pem.encode()).hexdigest()[:32]}.pem"
    return OwnCertificate(yes("ResolvedRefs"), file, pair.pem)
