"""Reads CA certificates from the ConfigMaps and ClusterTrustBundles that a Gateway or a policy names. Pure."""

import hashlib
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from vipwire.model.names import ObjectName
from vipwire_l7.gateway.plan.kinds.grants import may_refer
from vipwire_l7.gateway.plan.kinds.objects import GatewayWorld, Item, Verdict, no, yes
from vipwire_l7.gateway.watch import rule_wire, wire

_BUNDLE: Final = (wire.CERTIFICATES_GROUP, "ClusterTrustBundle")


def authorities_of(
    validation: wire.TlsValidation | wire.ClientValidation, owner: Item, world: GatewayWorld, wrong_kind: str
) -> tuple[str, Verdict]:
    """Return the CA certificates in PEM, and the condition ResolvedRefs.

    `wrong_kind` is the reason for a reference to any other kind. A ClusterTrustBundle may be in the list of
    references, or in its own field (GEP-5075). It has no namespace, and needs no ReferenceGrant.
    """
    resolved, pems, bundle = yes("ResolvedRefs"), [], validation.cluster_trust_bundle_ref
    for ref in validation.ca_certificate_refs:
        pem, verdict = _authority(ref, owner, world, wrong_kind)
        pems.append(pem)
        resolved = resolved if verdict.holds else verdict
    if bundle is not None:
        is_bundle = (bundle.group, bundle.kind) == _BUNDLE
        strange = no(wrong_kind, f"{bundle.kind[:80]}: clusterTrustBundleRef must name a ClusterTrustBundle")
        pem, verdict = _bundle(bundle.name, world) if is_bundle else ("", strange)
        pems.append(pem)
        resolved = resolved if verdict.holds else verdict
    text = "".join(dict.fromkeys(pems))
    return text, resolved if text or not resolved.holds else _bad("no reference names a CA certificate")


def file_of(text: str) -> str:
    """Return the name of a CA file, which follows from its content."""
    return f"authorities-{hashlib.sha256(text.encode()).hexdigest()[:32]}.ca"


def _authority(ref: rule_wire.ObjectRef, owner: Item, world: GatewayWorld, wrong_kind: str) -> tuple[str, Verdict]:
    name = ObjectName(ref.namespace or owner.name.namespace, ref.name)
    if (ref.group, ref.kind) == _BUNDLE:
        return _bundle(ref.name, world)
    if (ref.group, ref.kind) != ("", "ConfigMap"):
        return "", no(
            wrong_kind, f"{ref.kind[:80]} {name}: CA certificates must be in a ConfigMap or a ClusterTrustBundle"
        )
    if not may_refer(world, owner, "", "ConfigMap", name):
        return "", no("RefNotPermitted", f"ConfigMap {name}: no ReferenceGrant of {name.namespace} allows it")
    text = world.authorities(name).get("ca.crt")
    if not text:
        return "", _bad(f"ConfigMap {name} does not exist or has no ca.crt")
    return _read_authority(text, f"ConfigMap {name}: ca.crt")


def _bundle(name: str, world: GatewayWorld) -> tuple[str, Verdict]:
    text = world.bundle(name)
    if text is None:
        return "", _bad(f"ClusterTrustBundle {name[:253]} does not exist")
    return _read_authority(text, f"ClusterTrustBundle {name[:253]}: trustBundle")


def _read_authority(text: str, what: str) -> tuple[str, Verdict]:
    try:
        chain = x509.load_pem_x509_certificates(text.encode())
    except ValueError:
        return "", _bad(f"{what} has no valid certificate in PEM")
    return b"".join(each.public_bytes(Encoding.PEM) for each in chain).decode("ascii"), yes("ResolvedRefs")


def _bad(message: str) -> Verdict:
    return no("InvalidCACertificateRef", message)
