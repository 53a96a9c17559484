"""Decides how HAProxy verifies endpoints' certificates: BackendTLSPolicies, by Service and port. Pure.

Of several policies for one port, the one that names the port wins, then the oldest. The others get a condition.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from vipwire.model.names import ObjectName
from vipwire_l7.gateway.plan.kinds.hostnames import is_hostname
from vipwire_l7.gateway.plan.kinds.objects import GatewayWorld, Verdict, no, yes
from vipwire_l7.gateway.plan.tls.authorities import authorities_of, file_of
from vipwire_l7.gateway.watch import wire
from vipwire_l7.plan.policy import Verification
from vipwire_l7.watch.objects import BackendPort, Declared, IngressKind
from vipwire_l7.watch.snapshot import ObjectRef

_WELL_KNOWN = "System"


@dataclass(frozen=True, slots=True)
class Checked:
    """The result of a policy. Pools of its Services answer 500 unless both conditions are true."""

    policy: Declared[wire.BackendTlsSpec]
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

    by_port: dict[tuple[ObjectName, str], Checked] = field(default_factory=dict)
    checked: dict[ObjectRef, Checked] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)

    def policy_for(self, service: ObjectName, port: BackendPort) -> Checked | None:
        return self.by_port.get((service, port.name)) or self.by_port.get((service, ""))


def backend_tls_of(world: GatewayWorld, *, has_system: Callable[[], bool]) -> BackendTls:
    """Read all policies. `has_system` reports whether HAProxy finds the system's CA certificates."""
    made = BackendTls()
    for policy in world.all(IngressKind.BACKEND_TLS_POLICY, wire.BackendTlsSpec):
        checked = _check_policy(policy, world, made.files, has_system=has_system)
        conflicts = False
        for key in targets_of(policy):
            conflicts |= made.by_port.setdefault(key, checked) is not checked
        if conflicts:
            text = "an older policy has the same Service and port"
            checked = Checked(policy, no("Conflicted", text), checked.resolved, checked.verification)
        made.checked[policy.kind, policy.name] = checked
    return made


def targets_of(policy: Declared[wire.BackendTlsSpec]) -> Iterator[tuple[ObjectName, str]]:
    """Yield the Services that a policy targets, each with the name of a port, "" for all."""
    for ref in policy.spec.target_refs:
        if (ref.group, ref.kind) == ("", "Service"):
            yield ObjectName(policy.name.namespace, ref.name), ref.section_name or ""


def _check_policy(
    policy: Declared[wire.BackendTlsSpec],
    world: GatewayWorld,
    files: dict[str, str],
    *,
    has_system: Callable[[], bool],
) -> Checked:
    validation = policy.spec.validation
    accepted, resolved = yes("Accepted"), yes("ResolvedRefs")
    host = validation.hostname
    if not is_hostname(host) or host.startswith("*"):
        return Checked(policy, no("Invalid", f"{host[:80]!r} is no host"), resolved)
    if any((each.type, each.hostname) != ("Hostname", host) for each in validation.subject_alt_names):
        text = "HAProxy verifies certificates by the hostname: subjectAltNames must be the hostname"
        return Checked(policy, no("Invalid", text), resolved)
    if validation.well_known is not None:
        accepted = _check_well_known(validation, has_system=has_system)
        return Checked(policy, accepted, resolved, Verification(host) if accepted.holds else None)
    text, resolved = authorities_of(validation, policy, world, "InvalidKind")
    if not text:
        return Checked(policy, no("NoValidCACertificate", resolved.message), resolved)
    file = file_of(text)
    files[file] = text
    return Checked(policy, accepted, resolved, Verification(host, file))


def _check_well_known(validation: wire.TlsValidation, *, has_system: Callable[[], bool]) -> Verdict:
    """Check a policy that names the system's CA certificates."""
    others = validation.ca_certificate_refs or validation.cluster_trust_bundle_ref
    if validation.well_known != _WELL_KNOWN or others:
        return no("Invalid", "wellKnownCACertificates must be System, without references")
    if not has_system():
        text = "wellKnownCACertificates: HAProxy finds no CA certificates on this machine (Debian: ca-certificates)"
        return no("Invalid", text)
    return yes("Accepted")
