"""Reads who may sign certificates: ConfigMaps that a Gateway or a policy names. Pure."""

import hashlib
from collections.abc import Iterable

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from vipwire.gateway.plan.grants import may_refer
from vipwire.gateway.plan.objects import GatewayWorld, Item, Verdict, no, yes
from vipwire.gateway.watch import rule_wire
from vipwire.ingress.watch.objects import IngressKind
from vipwire.model.names import ObjectName


def authorities_of(
    refs: Iterable[rule_wire.ObjectRef], owner: Item, world: GatewayWorld, wrong_kind: str
) -> tuple[str, Verdict]:
    """Return the certificates in PEM, and whether all references could be followed.

    `wrong_kind` is the reason where a reference names something else than a ConfigMap.
    """
    resolved, pems = yes("ResolvedRefs"), []
    for ref in refs:
        pem, verdict = _authority(ref, owner, world, wrong_kind)
        pems.append(pem)
        resolved = resolved if verdict.holds else verdict
    text = "".join(dict.fromkeys(pems))
    return text, resolved if text or not resolved.holds else _bad("names no certificate")


def file_of(text: str) -> str:
    """Name the file of authorities, by its content."""
    return f"authorities-{hashlib.sha256(text.encode()).hexdigest()[:16]}.ca"


def _authority(ref: rule_wire.ObjectRef, owner: Item, world: GatewayWorld, wrong_kind: str) -> tuple[str, Verdict]:
    name = ObjectName(ref.namespace or owner.name.namespace, ref.name)
    if (ref.group, ref.kind) != ("", "ConfigMap"):
        return "", no(wrong_kind, f"{ref.kind[:80]} {name}: authorities are in a ConfigMap")
    if not may_refer(world.all(IngressKind.REFERENCE_GRANT), owner, "", "ConfigMap", name):
        return "", no("RefNotPermitted", f"ConfigMap {name}: no ReferenceGrant of {name.namespace} allows it")
    text = world.authorities.get(name, {}).get("ca.crt")
    if not text:
        return "", _bad(f"ConfigMap {name} does not exist or has no ca.crt")
    try:
        chain = x509.load_pem_x509_certificates(text.encode())
    except ValueError:
        return "", _bad(f"ConfigMap {name}: ca.crt is no certificate in PEM")
    return b"".join(each.public_bytes(Encoding.PEM) for each in chain).decode("ascii"), yes("ResolvedRefs")


def _bad(message: str) -> Verdict:
    return no("InvalidCACertificateRef", message)
