"""Chooses the frontends that the programs translate, for which clients, and to which endpoints. Pure.

The plan decides all policy. Programs translate a frontend for a client if a direct connection looks the same to the
endpoint as one by the rules of nftables mode:

    Pods           if the rules would keep the Pod's address, without masquerading
    the node       always, unless the socket is bound to another than the node's address
    no client      if a Service claims an endpoint's address and port; with source ranges, source-hash or round robin,
                   SCTP, refusals or drops (at connect() the socket has neither address nor port), or ejection; at an
                   address of this machine, where a server such as NodeLocal DNSCache may answer by NOTRACK rules

A node port is a frontend at each node port address. If a Service claims one of these addresses with that port, rules
serve it, because the answer depends on both Services and rendering sees one.

Rules remember addresses, programs network namespaces. So with session affinity programs serve only Pods, at Service
ports where they see all of a Pod's sockets.

A program leaves a Pod that may reach itself to the rules: it looks for a socket of the Pod that listens at the chosen
port, so pools with several ports are not for Pods. Any endpoint may be the asking Pod, because a slice need not name
its node.
"""

import hashlib
from collections.abc import Iterator
from typing import Final

from vipwire.model.names import ServicePortName
from vipwire.model.net import Family, Protocol
from vipwire.model.spread import EVENLY, Algorithm, fill_slots
from vipwire.modes.ebpf.layout import (
    FRONTENDS,
    HEAD,
    MEMBERS,
    Flag,
    Head,
    Ours,
    endpoint_size,
    endpoint_slot,
    frontend_key,
)
from vipwire.plan.plan import Forward, Frontend, FrontendKey, FrontendKind, Masquerade, ServicePlan

_SERVED: Final = frozenset({Protocol.TCP, Protocol.UDP})
_LARGEST_POOL: Final = 65534
"""The limit of nftables mode, so that both round shares alike."""
_OF_PODS: Final = Flag.POD | Flag.HAS_LOCAL
_FOR: Final = {
    Masquerade.NEVER: Flag.NODE | Flag.POD,
    Masquerade.UNLESS_POD: Flag.NODE | Flag.AS_NODE | Flag.POD,
    Masquerade.ALWAYS: Flag.NODE | Flag.AS_NODE,
}


def render_service(family: Family, plan: ServicePlan, remembered: frozenset[Protocol] = frozenset()) -> Ours:
    """Render one Service: only its own objects. `remembered`: protocols for which programs serve affinity."""
    objects: Ours = {}
    for frontend, action in _translated_frontends(plan):
        flags = _choose_frontend_flags(plan, frontend, action)
        if action.affinity_seconds is not None:
            if _is_remembered(plan, frontend.port_name, remembered):
                head = Head(
                    flags & _OF_PODS, action.affinity_seconds, _compute_port_number(frontend.port_name)
                ).packed
                for place in list_map_keys(plan, frontend.key):
                    _write_frontend(family, place, action, head, objects)
            continue
        if frontend.key.address is None and frontend.key.protocol is Protocol.UDP:
            flags |= Flag.LOOSE
        for place in list_map_keys(plan, frontend.key):
            _write_frontend(family, place, action, HEAD.pack(flags), objects)
    return objects


def list_map_keys(plan: ServicePlan, key: FrontendKey) -> tuple[bytes, ...]:
    """Return a frontend's keys in the maps: a node port at each address that serves it and that no Service claims."""
    address, protocol, port = key
    if address is not None:
        return (frontend_key(address, protocol, port),)
    serving, contested = plan.node_port_addresses, plan.contested
    return tuple(
        [frontend_key(each, protocol, port) for each in serving if key._replace(address=each) not in contested]
    )


def _translated_frontends(plan: ServicePlan) -> Iterator[tuple[Frontend, Forward]]:
    """Yield the frontends with one action for all clients of this node.

    Ejection stays with the rules, because it learns from connection tracking whether an endpoint answers.
    """
    for frontend in plan.frontends if plan.wishes.eject_after is None else ():
        action = frontend.short_circuit or frontend.action
        if (
            isinstance(action, Forward)
            and frontend.key.protocol in _SERVED
            and frontend.allowed_sources is None
            and frontend.key.address not in plan.own_addresses
            and action.spread.algorithm is Algorithm.RANDOM
            and not _conflicts_with_others(plan, frontend.key.protocol, action)
        ):
            yield frontend, action


def _conflicts_with_others(plan: ServicePlan, protocol: Protocol, action: Forward) -> bool:
    """Report whether a Service claims an endpoint's address and port: its rules would take the socket's packets."""
    return bool(plan.contested) and any(
        FrontendKey(target.address, protocol, target.port) in plan.contested for target in action.pool
    )


def _choose_frontend_flags(plan: ServicePlan, frontend: Frontend, action: Forward) -> Flag:
    flags = _FOR[action.masquerade]
    if frontend.short_circuit is not None and not _distinguishes_pods(plan):
        flags &= ~Flag.POD
    return flags | Flag.HAS_LOCAL if len({target.port for target in action.pool}) == 1 else flags & ~Flag.POD


def _distinguishes_pods(plan: ServicePlan) -> bool:
    """Report whether vipwire can tell Pods for certain; otherwise Pods count as clients outside (S42)."""
    return any(
        isinstance(each.action, Forward) and each.action.masquerade is Masquerade.UNLESS_POD
        for each in plan.frontends
        if each.kind is FrontendKind.CLUSTER_IP
    )


def _is_remembered(plan: ServicePlan, port: ServicePortName, remembered: frozenset[Protocol]) -> bool:
    """Report whether programs serve Pods at all frontends of a Service port, with the same endpoints (S73).

    Rules serve some UDP sockets at a node port, and a node port that a Service claims by address.
    """
    if port.protocol not in remembered:
        return False
    led = [
        (each, action)
        for each, action in _translated_frontends(plan)
        if each.port_name == port
        and Flag.POD in _choose_frontend_flags(plan, each, action)
        and not action.shared_affinity
    ]
    strangers = port.protocol is Protocol.UDP or plan.contested
    return (
        len(led) == sum(each.port_name == port for each in plan.frontends)
        and all(action.pool == led[0][1].pool for _, action in led)
        and not (strangers and any(each.key.address is None for each, _ in led))
    )


def _compute_port_number(port: ServicePortName) -> int:
    """Return the constant number of a Service port in the programs."""
    name = f"{port.service}:{port.port}/{port.protocol.label}"
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=5).digest())


def _write_frontend(family: Family, key: bytes, action: Forward, head: bytes, objects: Ours) -> None:
    targets = action.pool
    if action.spread != EVENLY or len(targets) > _LARGEST_POOL:
        targets = fill_slots(action.spread, targets, (), _LARGEST_POOL)
    dealt = [endpoint_slot(address, port) for address, port, _ in targets]
    objects[FRONTENDS, key] = head + b"".join(dealt)
    if key[-2] == Protocol.UDP or action.affinity_seconds is not None:
        size = endpoint_size(family)
        objects.update(((MEMBERS, key + each[:size]), b"") for each in set(dealt))
