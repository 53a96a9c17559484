"""Reads the certificates of listeners and Gateways, and the CA certificates for clients and endpoints. Pure.

A listener's or Gateway's certificate is in a Secret that exists, is permitted, and has a valid pair. CA certificates
are in ConfigMaps and ClusterTrustBundles. HAProxy validates client certificates by port, not by host: an HTTP/2
client sends requests for many hosts over one connection. Of several BackendTLSPolicies for one port, the one that
names the port wins, then the oldest. The others get a condition.
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from vipwire.model.names import ObjectName
from vipwire_l7.gateway.plan.kinds.grants import may_refer
from vipwire_l7.gateway.plan.kinds.objects import Gateway, GatewayWorld, Item, Verdict, no, yes
from vipwire_l7.gateway.watch import rule_wire, wire
from vipwire_l7.plan.certificates import CertificatePair
from vipwire_l7.plan.policy import Verification
from vipwire_l7.plan.sites import Certificate, ObjectField, name_certificate
from vipwire_l7.watch.convert import is_host
from vipwire_l7.watch.objects import BackendPort, GatewayObject, IngressKind
from vipwire_l7.watch.snapshot import ObjectRef

_BUNDLE: Final = (wire.CERTIFICATES_GROUP, "ClusterTrustBundle")


def read_authorities(
    validation: wire.TlsValidation | wire.ClientValidation, owner: Item, world: GatewayWorld, wrong_kind: str
) -> tuple[str, Verdict]:
    """Return the CA certificates in PEM, and the condition ResolvedRefs.

    `wrong_kind` is the reason for a reference to any other kind. A ClusterTrustBundle may be in the list of
    references, or in its own field (GEP-5075). It has no namespace, and needs no ReferenceGrant.
    """
    resolved, pems, bundle = yes("ResolvedRefs"), [], validation.cluster_trust_bundle_ref
    for ref in validation.ca_certificate_refs:
        pem, verdict = _read_authority_ref(ref, owner, world, wrong_kind)
        pems.append(pem)
        resolved = resolved if verdict.holds else verdict
    if bundle is not None:
        is_bundle = (bundle.group, bundle.kind) == _BUNDLE
        strange = no(wrong_kind, f"{bundle.kind[:80]}: clusterTrustBundleRef must name a ClusterTrustBundle")
        pem, verdict = _read_bundle(bundle.name, world) if is_bundle else ("", strange)
        pems.append(pem)
        resolved = resolved if verdict.holds else verdict
    text = "".join(dict.fromkeys(pems))
    return text, resolved if text or not resolved.holds else _refuse_authority("no reference names a CA certificate")


def name_authority_file(text: str) -> str:
    return f"authorities-{hashlib.sha256(text.encode()).hexdigest()[:32]}.ca"


def _read_authority_ref(
    ref: rule_wire.ObjectRef, owner: Item, world: GatewayWorld, wrong_kind: str
) -> tuple[str, Verdict]:
    name = ObjectName(ref.namespace or owner.name.namespace, ref.name)
    if (ref.group, ref.kind) == _BUNDLE:
        return _read_bundle(ref.name, world)
    if (ref.group, ref.kind) != ("", "ConfigMap"):
        return "", no(
            wrong_kind, f"{ref.kind[:80]} {name}: CA certificates must be in a ConfigMap or a ClusterTrustBundle"
        )
    if not may_refer(world, owner, "", "ConfigMap", name):
        return "", no("RefNotPermitted", f"ConfigMap {name}: no ReferenceGrant of {name.namespace} allows it")
    text = world.read_config_map(name).get("ca.crt")
    if not text:
        return "", _refuse_authority(f"ConfigMap {name} does not exist or has no ca.crt")
    return _read_authority(text, f"ConfigMap {name}: ca.crt")


def _read_bundle(name: str, world: GatewayWorld) -> tuple[str, Verdict]:
    text = world.read_trust_bundle(name)
    if text is None:
        return "", _refuse_authority(f"ClusterTrustBundle {name[:253]} does not exist")
    return _read_authority(text, f"ClusterTrustBundle {name[:253]}: trustBundle")


def _read_authority(text: str, what: str) -> tuple[str, Verdict]:
    try:
        chain = x509.load_pem_x509_certificates(text.encode())
    except ValueError:
        return "", _refuse_authority(f"{what} has no valid certificate in PEM")
    return b"".join(each.public_bytes(Encoding.PEM) for each in chain).decode("ascii"), yes("ResolvedRefs")


def _refuse_authority(message: str) -> Verdict:
    return no("InvalidCACertificateRef", message)


_BAD: Final = "InvalidCertificateRef"


def read_listener_certificates(
    owner: Item, tls: wire.ListenerTls | None, world: GatewayWorld
) -> tuple[Verdict, tuple[Certificate, ...]]:
    verdict, found = yes("ResolvedRefs"), []
    for ref in tls.certificate_refs if tls else ():
        pair = read_certificate_ref(owner, ref, world, _BAD)
        if isinstance(pair, Verdict):
            verdict = pair
            continue
        name = name_certificate(ObjectName(ref.namespace or owner.name.namespace, ref.name))
        asker = ObjectField(owner.kind.value, owner.name, "spec.listeners")
        found.append(Certificate(name, pair.pem, pair.names, (asker,), listed=False))
    if tls is None or not tls.certificate_refs:
        verdict = no(_BAD, "tls.certificateRefs names no certificate")
    return verdict, tuple(found)


def read_certificate_ref(
    owner: Item, ref: rule_wire.ObjectRef, world: GatewayWorld, bad: str
) -> CertificatePair | Verdict:
    """Read the certificate of a Secret. `bad` is the reason if the reference has none."""
    name = ObjectName(ref.namespace or owner.name.namespace, ref.name)
    if (ref.group, ref.kind) != ("", "Secret"):
        return no(bad, f"{ref.kind[:80]} {name}: a certificate must be in a Secret")
    if not may_refer(world, owner, "", "Secret", name):
        return no("RefNotPermitted", f"Secret {name}: no ReferenceGrant of {name.namespace} allows it")
    pair, reason = world.read_certificate(name)
    return pair if pair is not None else no(bad, f"Secret {name}: {reason}")


def drop_duplicates(found: Iterable[Certificate]) -> tuple[Certificate, ...]:
    made: dict[str, Certificate] = {}
    for each in found:
        made.setdefault(each.name, replace(each, hosts=()))
    return tuple(made.values())


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


def read_client_validation(gateway: Gateway, port: int, world: GatewayWorld) -> JudgedValidation:
    frontend = gateway.spec.tls.frontend
    here = next((each.tls for each in frontend.per_port if each.port == port), frontend.default)
    validation = here.validation
    if validation is None:
        return JudgedValidation()
    text, resolved = read_authorities(validation, gateway, world, "InvalidCACertificateKind")
    if not text:
        return JudgedValidation(None, no("NoValidCACertificate", resolved.message), resolved)
    if validation.mode not in _MODES:
        return JudgedValidation(
            None, no("UnsupportedValue", f"{validation.mode[:40]!r}: {' or '.join(_MODES)}"), resolved
        )
    return JudgedValidation(
        ClientCheck(name_authority_file(text), text, validation.mode == _OPTIONAL), resolved=resolved
    )


def read_client_certificate(gateway: Gateway, world: GatewayWorld) -> OwnCertificate | None:
    """Read the client certificate that a Gateway presents to Pods; None if it names none."""
    ref = gateway.spec.tls.backend.client_certificate_ref
    if ref is None:
        return None
    pair = read_certificate_ref(gateway, ref, world, "InvalidClientCertificateRef")
    if isinstance(pair, Verdict):
        return OwnCertificate(pair)
    file = f"client-{hashlib.sha256(pair.pem.encode()).hexdigest()[:32]}.pem"
    return OwnCertificate(yes("ResolvedRefs"), file, pair.pem)


_WELL_KNOWN = "System"


@dataclass(frozen=True, slots=True)
class TlsPolicyResult:
    """The result of a policy. Pools of its Services answer 500 unless both conditions are true."""

    policy: GatewayObject[wire.BackendTlsSpec]
    accepted: Verdict
    resolved: Verdict
    verification: Verification | None = None

    @property
    def verdict(self) -> Verdict:
        """The condition that decides whether the policy takes effect."""
        return self.resolved if not self.resolved.holds else self.accepted


@dataclass(slots=True)
class BackendTls:
    """All policies, by target. `files` are the CA files that the configuration names."""

    by_port: dict[tuple[ObjectName, str], TlsPolicyResult] = field(default_factory=dict)
    checked: dict[ObjectRef, TlsPolicyResult] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)

    def find_policy(self, service: ObjectName, port: BackendPort) -> TlsPolicyResult | None:
        return self.by_port.get((service, port.name)) or self.by_port.get((service, ""))


def read_backend_tls_policies(world: GatewayWorld, *, has_system: Callable[[], bool]) -> BackendTls:
    """Read all policies. `has_system` reports whether HAProxy finds the system's CA certificates."""
    made = BackendTls()
    for policy in world.list_objects(IngressKind.BACKEND_TLS_POLICY, wire.BackendTlsSpec):
        checked = _check_policy(policy, world, made.files, has_system=has_system)
        conflicts = False
        for key in list_targets(policy):
            conflicts |= made.by_port.setdefault(key, checked) is not checked
        if conflicts:
            text = "an older policy has the same Service and port"
            checked = TlsPolicyResult(policy, no("Conflicted", text), checked.resolved, checked.verification)
        made.checked[policy.kind, policy.name] = checked
    return made


def list_targets(policy: GatewayObject[wire.BackendTlsSpec]) -> Iterator[tuple[ObjectName, str]]:
    """Yield the Services that a policy targets, each with the name of a port, "" for all."""
    for ref in policy.spec.target_refs:
        if (ref.group, ref.kind) == ("", "Service"):
            yield ObjectName(policy.name.namespace, ref.name), ref.section_name or ""


def _check_policy(
    policy: GatewayObject[wire.BackendTlsSpec],
    world: GatewayWorld,
    files: dict[str, str],
    *,
    has_system: Callable[[], bool],
) -> TlsPolicyResult:
    validation = policy.spec.validation
    accepted, resolved = yes("Accepted"), yes("ResolvedRefs")
    host = validation.hostname
    if not is_host(host) or host.startswith("*"):
        return TlsPolicyResult(policy, no("Invalid", f"{host[:80]!r} is no host"), resolved)
    if any((each.type, each.hostname) != ("Hostname", host) for each in validation.subject_alt_names):
        text = "HAProxy verifies certificates by the hostname: subjectAltNames must be the hostname"
        return TlsPolicyResult(policy, no("Invalid", text), resolved)
    if validation.well_known is not None:
        accepted = _check_well_known(validation, has_system=has_system)
        return TlsPolicyResult(policy, accepted, resolved, Verification(host) if accepted.holds else None)
    text, resolved = read_authorities(validation, policy, world, "InvalidKind")
    if not text:
        return TlsPolicyResult(policy, no("NoValidCACertificate", resolved.message), resolved)
    file = name_authority_file(text)
    files[file] = text
    return TlsPolicyResult(policy, accepted, resolved, Verification(host, file))


def _check_well_known(validation: wire.TlsValidation, *, has_system: Callable[[], bool]) -> Verdict:
    others = validation.ca_certificate_refs or validation.cluster_trust_bundle_ref
    if validation.well_known != _WELL_KNOWN or others:
        return no("Invalid", "wellKnownCACertificates must be System, without references")
    if not has_system():
        text = "wellKnownCACertificates: HAProxy finds no CA certificates on this machine (Debian: ca-certificates)"
        return no("Invalid", text)
    return yes("Accepted")
