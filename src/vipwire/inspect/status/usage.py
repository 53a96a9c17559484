"""Gives the reason why each endpoint of a Service port is used or not.

The pools of the plan hold the decision; this module explains it.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from vipwire.inspect.command.show import format_time
from vipwire.inspect.node.family_view import FamilyView
from vipwire.model.net import format_address
from vipwire.model.service import Service, ServicePort
from vipwire.plan.annotations import read_wishes
from vipwire.plan.ejection import EndpointKey
from vipwire.plan.frontends import build_ejection_test, leave_out_drained
from vipwire.plan.node import NodePlan
from vipwire.plan.plan import Target
from vipwire.plan.topology import Candidate, Endpoints, categorize, list_candidates
from vipwire.watched_objects.store import Store


class DrainedTarget(NamedTuple):
    """A drained endpoint. `why` is a clause for the user."""

    target: Target
    why: str


class _PortEndpoints(NamedTuple):
    """One port's endpoints of one family: all, those not drained, their pools, and the ends of ejections."""

    found: Sequence[Candidate]
    taken: Sequence[Candidate]
    pools: Endpoints
    ejected: Mapping[EndpointKey, float]


def _collect_endpoints(store: Store, side: FamilyView, service: Service, port: ServicePort) -> _PortEndpoints:
    found = list_candidates(service.port_name(port), side.family, store.view(service.name)[1], side.node.name)
    taken = leave_out_drained(found, read_wishes(service), side.node, service.name)
    until = side.list_ejected(service.name)
    pools = categorize(taken, side.node, build_ejection_test(frozenset(until), port.protocol))
    return _PortEndpoints(found, taken, pools, until)


def list_drained(store: Store, side: FamilyView, service: Service, port: ServicePort) -> list[DrainedTarget]:
    """Return a port's endpoints of one family that are drained, by `vipwire drain` or by weight 0."""
    found, taken, *_ = _collect_endpoints(store, side, service, port)
    return [DrainedTarget(each.target, _explain_drained(side, service, each)) for each in found if each not in taken]


def _explain_drained(side: FamilyView, service: Service, candidate: Candidate) -> str:
    told = side.node.drains(service.name, *candidate.target[:2])
    return "drained on this node by `vipwire drain`" if told else "drained: its weight is 0"


class EjectedTarget(NamedTuple):
    """An endpoint ejected until a time in seconds since the epoch. `spared`: used, as no other endpoint is left."""

    target: Target
    until: float
    spared: bool


def list_ejected(store: Store, side: FamilyView, service: Service, port: ServicePort) -> list[EjectedTarget]:
    found, _, pools, until = _collect_endpoints(store, side, service, port)
    used = {*pools.cluster, *pools.local}
    return [
        EjectedTarget(each.target, until[key], each.target in used)
        for each in found
        if (key := EndpointKey(port.protocol, each.target.address, each.target.port)) in until
    ]


def describe_endpoint_usages(
    store: Store, side: FamilyView, service: Service, port: ServicePort
) -> list[dict[str, Any]]:
    if service.name not in side.plans:
        return []
    found, taken, pools, until = _collect_endpoints(store, side, service, port)
    usages = [_build_usage_document(side, candidate, found, pools) for candidate in found]
    for candidate, usage in zip(found, usages, strict=True):
        key = EndpointKey(port.protocol, candidate.target.address, candidate.target.port)
        if candidate not in taken:
            usage["why"] = _explain_drained(side, service, candidate)
        elif key in until:
            usage["ejectedUntil"] = format_time(until[key])
            usage["why"] = explain_ejected(until[key], spared=bool(usage["forPolicies"]))
    return usages


def explain_ejected(until: float, *, spared: bool) -> str:
    """Return the reason why an ejected endpoint gets no connections, or does although ejected."""
    said = f"ejected until {format_time(until)}: the endpoint did not answer new connections"
    return f"{said}; still used, because no other endpoint is left" if spared else said


def _build_usage_document(
    side: FamilyView, candidate: Candidate, found: Sequence[Candidate], endpoints: Endpoints
) -> dict[str, Any]:
    target, endpoint = candidate.target, candidate.endpoint
    used = [policy for policy, pool in (("Cluster", endpoints.cluster), ("Local", endpoints.local)) if target in pool]
    return {
        "family": side.family.value,
        "address": format_address(target.address),
        "port": target.port,
        "node": endpoint.node,
        "local": target.local,
        "ready": endpoint.ready,
        "serving": endpoint.serving,
        "terminating": endpoint.terminating,
        "forPolicies": used,
        "why": explain_unused(candidate, found, side.node, used=bool(used), in_cluster="Cluster" in used),
    }


def explain_unused(
    candidate: Candidate, found: Sequence[Candidate], node: NodePlan, *, used: bool, in_cluster: bool
) -> str:
    endpoint = candidate.endpoint
    if endpoint.ready and in_cluster:
        return "ready" + _describe_hint(candidate, node)
    if endpoint.ready:
        hints = ", ".join(endpoint.nodes or endpoint.zones)
        place = f"node {node.name}" if endpoint.nodes else f"zone {node.zone}"
        for_local = "; used for the policy Local" if used else ""
        return f"for other zones or nodes: its hints say {hints}, this is {place}{for_local}"
    if used:
        return "terminating, but serving, and used because no endpoint is ready"
    if endpoint.terminating:
        some = any(other.endpoint.ready for other in found)
        return (
            "terminating, and other endpoints are ready"
            if some and endpoint.serving
            else "terminating, and no longer serving"
        )
    return "not ready"


def _describe_hint(candidate: Candidate, node: NodePlan) -> str:
    endpoint = candidate.endpoint
    if endpoint.nodes and node.name in endpoint.nodes:
        return f", and its hints say node {node.name}"
    if endpoint.zones and node.zone in endpoint.zones:
        return f", and its hints say zone {node.zone}"
    return ""
