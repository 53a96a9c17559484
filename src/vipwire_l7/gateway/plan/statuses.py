"""Writes statuses as JSON, without transition times: these depend on the status before. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Final

from vipwire_l7.gateway.plan.attach import Parent
from vipwire_l7.gateway.plan.features import FEATURES
from vipwire_l7.gateway.plan.kinds.objects import Gateway, ListenerSet, RouteObject, Verdict, no, yes
from vipwire_l7.gateway.plan.listeners import Listener, ListenerKey
from vipwire_l7.gateway.plan.policies import PolicyResult
from vipwire_l7.gateway.plan.tls import TlsPolicyResult
from vipwire_l7.gateway.watch import wire
from vipwire_l7.watch.objects import GatewayObject, Json

_NOT_ACCEPTED: Final = ("UnsupportedAddress", "InvalidParameters")
_SENTENCES: Final = {
    "Accepted": "accepted",
    "Programmed": "programmed in HAProxy",
    "ResolvedRefs": "all references resolved",
    "NoConflicts": "no conflicts",
}
_MOST_ANCESTORS: Final = 16
_LONGEST: Final = 4096
"""The maximum length of a message: an API server accepts at most 32,768 characters."""


def write_condition(kind: str, verdict: Verdict, generation: int) -> Json:
    return {
        "type": kind,
        "status": "True" if verdict.holds else "False",
        "reason": verdict.reason,
        "message": verdict.message[:_LONGEST] or _SENTENCES.get(verdict.reason, ""),
        "observedGeneration": generation,
    }


def _write_conditions(generation: int, **verdicts: Verdict) -> list[Json]:
    return [write_condition(kind, verdict, generation) for kind, verdict in verdicts.items()]


def write_class_status(item: GatewayObject[wire.GatewayClassSpec], features: Iterable[str] = FEATURES) -> Json:
    accepted = yes("Accepted")
    if item.spec.parameters_ref is not None:
        accepted = no("InvalidParameters", "this controller does not support parameters")
    return {
        "conditions": _write_conditions(item.generation, Accepted=accepted, SupportedVersion=yes("SupportedVersion")),
        "supportedFeatures": [{"name": name} for name in sorted(features)],
    }


def write_gateway_status(
    gateway: Gateway,
    listeners: Sequence[Listener],
    counts: Mapping[ListenerKey, int],
    address: Verdict,
    reached: Sequence[str],
) -> Json:
    """Write the status of a Gateway. `counts` has attached routes by listener, `reached` its addresses."""
    own = [each for each in listeners if each.owner is gateway]
    sets = {each.owner.name for each in listeners if each.owner is not gateway and each.serves}
    accepted, programmed = _judge_listeners(listeners)
    is_refused = address.reason in _NOT_ACCEPTED
    if not address.holds:
        accepted = address if is_refused else accepted
        programmed = no("Invalid", address.message) if is_refused else address
    return {
        "addresses": [_write_address(text) for text in reached],
        "attachedListenerSets": 0 if is_refused else len(sets),
        "conditions": _write_conditions(gateway.generation, Accepted=accepted, Programmed=programmed),
        "listeners": [write_listener_status(each, counts, address) for each in own],
    }


def write_tls_conditions(gateway: Gateway, listeners: Iterable[Listener], certificate: Verdict | None) -> list[Json]:
    """Write a Gateway's conditions about client certificates, and about its own certificate if it names one."""
    made = []
    if certificate is not None:
        made.append(write_condition("ResolvedRefs", certificate, gateway.generation))
    if any(each.clients is not None and each.clients.optional for each in listeners):
        text = "clients without a valid certificate may connect"
        insecure = yes("ConfigurationChanged", text)
        made.append(write_condition("InsecureFrontendValidationMode", insecure, gateway.generation))
    return made


def write_set_status(
    item: ListenerSet, own: Sequence[Listener], counts: Mapping[ListenerKey, int], address: Verdict, *, let_in: bool
) -> Json:
    """Write the status of a ListenerSet. `own` are its listeners, `address` is its Gateway's address condition."""
    accepted, programmed = _judge_listeners(own)
    if not let_in:
        accepted = programmed = no("NotAllowed", "the Gateway does not allow ListenerSets from this namespace")
    elif address.reason in _NOT_ACCEPTED:
        accepted, programmed = no("ParentNotAccepted", address.message), no("ParentNotProgrammed", address.message)
    elif not address.holds:
        programmed = no("ParentNotProgrammed", address.message)
    elif not programmed.holds:
        programmed = no("ListenersNotValid", programmed.message)
    return {
        "conditions": _write_conditions(item.generation, Accepted=accepted, Programmed=programmed),
        "listeners": [write_listener_status(each, counts, address) for each in own],
    }


def _judge_listeners(listeners: Sequence[Listener]) -> tuple[Verdict, Verdict]:
    served = [each for each in listeners if each.serves]
    names = ", ".join(each.spec.name for each in listeners if not each.serves or not each.resolved.holds)
    text = f"invalid listeners: {names}" if names else ""
    if listeners and not served:
        return no("ListenersNotValid", text), no("Invalid", text)
    if names:
        return yes("ListenersNotValid", text), yes("Programmed")
    return yes("Accepted"), yes("Programmed")


def _write_address(text: str) -> Json:
    is_address = ":" in text or text.replace(".", "").isdigit()
    return {"type": "IPAddress" if is_address else "Hostname", "value": text}


def write_listener_status(listener: Listener, counts: Mapping[ListenerKey, int], address: Verdict) -> Json:
    """Write the status of a listener. `address` is the address condition of its Gateway."""
    accepted, programmed = listener.accepted, listener.programmed
    if listener.conflict.holds:
        # A ListenerSet's listener conflicts with an older one and gives the reason. Of a Gateway's conflicting
        # listeners none is served.
        reason = "Invalid" if listener.owner is listener.gateway else listener.conflict.reason
        accepted = no(reason, listener.conflict.message)
        programmed = no(reason, programmed.message)
    elif programmed.holds and not address.holds:
        programmed = no("Pending", address.message)
    overlap = yes("OverlappingHostnames", f"hostnames overlap with {', '.join(listener.overlaps)}")
    overlapping = {"OverlappingTLSConfig": overlap} if listener.overlaps else {}
    return {
        "name": listener.spec.name,
        "supportedKinds": [{"group": wire.GROUP, "kind": kind.value} for kind in listener.kinds],
        "attachedRoutes": counts.get(listener.key, 0),
        "conditions": _write_conditions(
            listener.owner.generation,
            Accepted=accepted,
            Programmed=programmed,
            ResolvedRefs=listener.resolved,
            Conflicted=listener.conflict,
            **overlapping,
        ),
    }


def write_parent_status(
    route: RouteObject, parent: Parent, controller: str, resolved: Verdict, failed: Sequence[str]
) -> Json:
    """Write one of vipwire's entries of a route's `status.parents`. `failed` has a message for each rule left out."""
    accepted, said = parent.accepted, "; ".join(failed)[:1000]
    partly = {}
    if failed and accepted.holds:
        if len(failed) == len(route.spec.rules):
            accepted = no("UnsupportedValue", said)
        else:
            partly = {"PartiallyInvalid": yes("UnsupportedValue", f"Dropped Rule: {said}")}
    conditions = _write_conditions(route.generation, Accepted=accepted, ResolvedRefs=resolved, **partly)
    return {"parentRef": _write_parent_ref(parent.ref), "controllerName": controller, "conditions": conditions}


def _write_parent_ref(ref: wire.ParentRef) -> Json:
    optional = {"namespace": ref.namespace, "sectionName": ref.section_name, "port": ref.port}
    found = {key: value for key, value in optional.items() if value is not None}
    return {"group": ref.group, "kind": ref.kind, "name": ref.name} | found


def write_tls_policy_status(checked: TlsPolicyResult, gateways: Iterable[Gateway], controller: str) -> Json:
    """Write the status of a BackendTLSPolicy: an entry for each Gateway whose routes use it."""
    conditions = _write_conditions(
        checked.policy.generation, Accepted=checked.accepted, ResolvedRefs=checked.resolved
    )
    refs = (
        {"group": wire.GROUP, "kind": "Gateway", "namespace": each.name.namespace, "name": each.name.name}
        for each in gateways
    )
    return _write_ancestors(controller, ((ref, conditions) for ref in refs))


def write_own_policy_status(judged: PolicyResult, controller: str) -> Json:
    """Write the status of a TrafficPolicy or BackendPolicy: an entry for each of its targets."""
    found = []
    for target, verdict in judged.targets.items():
        place = {"group": target.group, "kind": target.kind, "namespace": judged.policy.name.namespace}
        section = {"sectionName": target.section} if target.section else {}
        ref = {**place, "name": target.name, **section}
        found.append((ref, _write_conditions(judged.policy.generation, Accepted=verdict)))
    return _write_ancestors(controller, found)


def _write_ancestors(controller: str, found: Iterable[tuple[Json, list[Json]]]) -> Json:
    return {
        "ancestors": [
            {"ancestorRef": ref, "controllerName": controller, "conditions": conditions}
            for ref, conditions in islice(found, _MOST_ANCESTORS)
        ]
    }
