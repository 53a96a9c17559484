"""Reads the certificates that a listener names: Secrets that exist, are permitted, and have a valid pair. Pure."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from vipwire.model.names import ObjectName
from vipwire_l7.gateway.plan.kinds.grants import may_refer
from vipwire_l7.gateway.plan.kinds.objects import GatewayWorld, Item, Verdict, no, yes
from vipwire_l7.gateway.watch import rule_wire, wire
from vipwire_l7.plan.certificates import Pair
from vipwire_l7.plan.sites import Asker, Certificate, certificate_name

_BAD: Final = "InvalidCertificateRef"


def certify(
    owner: Item, tls: wire.ListenerTls | None, world: GatewayWorld
) -> tuple[Verdict, tuple[Certificate, ...]]:
    """Read the certificates of a listener of `owner`."""
    verdict, found = yes("ResolvedRefs"), []
    for ref in tls.certificate_refs if tls else ():
        pair = pair_of(owner, ref, world, _BAD)
        if isinstance(pair, Verdict):
            verdict = pair
            continue
        name = certificate_name(ObjectName(ref.namespace or owner.name.namespace, ref.name))
        asker = Asker(owner.kind.value, owner.name, "spec.listeners")
        found.append(Certificate(name, pair.pem, pair.names, (asker,), listed=False))
    if tls is None or not tls.certificate_refs:
        verdict = no(_BAD, "tls.certificateRefs names no certificate")
    return verdict, tuple(found)


def pair_of(owner: Item, ref: rule_wire.ObjectRef, world: GatewayWorld, bad: str) -> Pair | Verdict:
    """Read the certificate of a Secret. `bad` is the reason if the reference has none."""
    name = ObjectName(ref.namespace or owner.name.namespace, ref.name)
    if (ref.group, ref.kind) != ("", "Secret"):
        return no(bad, f"{ref.kind[:80]} {name}: a certificate must be in a Secret")
    if not may_refer(world, owner, "", "Secret", name):
        return no("RefNotPermitted", f"Secret {name}: no ReferenceGrant of {name.namespace} allows it")
    pair, reason = world.pair(name)
    return pair if pair is not None else no(bad, f"Secret {name}: {reason}")


def distinct(found: Iterable[Certificate]) -> tuple[Certificate, ...]:
    made: dict[str, Certificate] = {}
    for each in found:
        made.setdefault(each.name, replace(each, hosts=()))
    return tuple(made.values())
