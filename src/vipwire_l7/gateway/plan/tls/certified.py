"""Reads the certificates that a listener names: Secrets that exist, are permitted, and have a valid pair. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from vipwire.model.names import ObjectName
from vipwire_l7.gateway.plan.kinds.grants import may_refer
from vipwire_l7.gateway.plan.kinds.objects import GatewayWorld, Item, Verdict, no, yes
from vipwire_l7.gateway.watch import wire
from vipwire_l7.plan.sites import Asker, Certificate, certificate_name


@dataclass(frozen=True, slots=True)
class Certified:
    """The certificates of a listener."""

    certificates: tuple[Certificate, ...] = ()


NO_CERTIFICATES = Certified()


def certify(owner: Item, tls: wire.ListenerTls | None, world: GatewayWorld) -> tuple[Verdict, Certified]:
    """Read the certificates of a listener of `owner`."""
    verdict = yes("ResolvedRefs")
    found = []
    for ref in tls.certificate_refs if tls else ():
        name = ObjectName(ref.namespace or owner.name.namespace, ref.name)
        if (ref.group, ref.kind) != ("", "Secret"):
            verdict = _bad(f"{ref.kind} {name}: a certificate is in a Secret")
            continue
        if not may_refer(world, owner, "", "Secret", name):
            verdict = no("RefNotPermitted", f"Secret {name}: no ReferenceGrant of {name.namespace} allows it")
            continue
        pair, reason = world.pair(name)
        if pair is None:
            verdict = _bad(f"Secret {name}: {reason}")
            continue
        asker = Asker(owner.kind.value, owner.name, "spec.listeners")
        found.append(Certificate(certificate_name(name), pair.pem, pair.names, (asker,), listed=False))
    if tls is None or not tls.certificate_refs:
        verdict = _bad("tls.certificateRefs names no certificate")
    return verdict, Certified(tuple(found))


def distinct(found: Iterable[Certified]) -> tuple[Certificate, ...]:
    """Return the distinct certificates."""
    made: dict[str, Certificate] = {}
    for certified in found:
        for each in certified.certificates:
            made.setdefault(each.name, replace(each, hosts=()))
    return tuple(made.values())


def _bad(message: str) -> Verdict:
    return no("InvalidCertificateRef", message)
