"""From a Service's plan to the elements of the table. Pure, and the same plan always gives the same elements.

Slots are dealt in the order of the pool (sorted), so that a new process finds what the old one left. A change of N
endpoints to N+1 moves the elements behind the new one: what a Service's change costs depends on that Service alone.
"""

from collections.abc import Iterator
from functools import lru_cache
from typing import TypeAlias

from vipwire.backends.nftables.names import (
    CHAIN,
    LARGEST_POOL,
    Class,
    Noted,
    Object,
    ObjectKey,
    Space,
    Until,
    Verdict,
    connection_bytes,
    frontend_bytes,
    handle_bytes,
    identities,
    noted,
    target_bytes,
)
from vipwire.backends.nftables.skeleton import class_chain, remember_chain
from vipwire.model.net import Family
from vipwire.plan.plan import Drop, Forward, Frontend, FrontendKind, Reject, ServicePlan
from vipwire.reconcile.backend import Rendered

Objects: TypeAlias = dict[ObjectKey, Object]


def render(family: Family, plan: ServicePlan) -> Rendered[ObjectKey, Object]:
    """Render one Service."""
    own: Objects = {}
    shared: Objects = {}
    for address in plan.cluster_ips:
        own["cluster-ips", address] = noted(b"", plan.name)
    for frontend in plan.frontends:
        _Writer(family, frontend, own, shared).write()
    return Rendered(own, shared)


class _Writer:
    """Writes one frontend's objects."""

    def __init__(self, family: Family, frontend: Frontend, own: Objects, shared: Objects) -> None:
        self._family, self._frontend, self._own, self._shared = family, frontend, own, shared
        node_port = frontend.kind is FrontendKind.NODE_PORT
        self._space = Space.NODE_PORT if node_port else Space.SERVICE
        self._ips = "nodeports" if node_port else "ips"
        self._checks = "nodeports" if node_port else "services"
        self._key = frontend_bytes(frontend.key)
        self._note = noted(b"", frontend.port_name)

    def write(self) -> None:
        """Write the frontend."""
        own, key, frontend = self._own, self._key, self._frontend
        if frontend.short_circuit is not None:
            own[f"local-policy-{self._ips}", key] = self._note
            self._forward(frontend.short_circuit, f"service-{self._ips}", local=False)
        match frontend.action:
            case Forward():
                local = frontend.short_circuit is not None
                self._forward(frontend.action, f"{'local' if local else 'service'}-{self._ips}", local=local)
            case Reject():
                own[f"no-endpoint-{self._checks}", key] = self._note
            case Drop():
                own[f"no-local-endpoint-{self._checks}", key] = self._note
        if frontend.allowed_sources is not None:
            own["firewall-ips", key] = self._note
            for prefix in frontend.allowed_sources:
                own["firewall-allowed", key + prefix.network] = Until(key + prefix.last, "")

    def _forward(self, action: Forward, classes: str, *, local: bool) -> None:
        pool = action.pool[:LARGEST_POOL]
        affinity = action.affinity_seconds
        kind = Class(self._space, local, affinity is not None, len(pool))
        self._own[classes, self._key] = Noted(kind.handle, self._note.comment)
        self._shared.update(_class_objects(kind))
        protocol = self._frontend.key.protocol
        for target in pool:
            if target.local:
                self._shared["hairpin-connections", connection_bytes(target.address, target, protocol)] = b""
        space, key, own = self._space.value, self._key, self._own
        slots = range(kind.first_slot, kind.first_slot + len(pool))
        if affinity is None:
            endpoints = f"{space}-endpoints"
            for slot, target in zip(slots, pool, strict=True):
                own[endpoints, key + handle_bytes(slot)] = target_bytes(target)
            return
        for slot, target, number in zip(slots, pool, identities(pool, local=local), strict=True):
            own[f"{space}-affinity-slots", key + handle_bytes(slot)] = number
            own[f"{space}-affinity-endpoints", key + number] = target_bytes(target)
        own[f"{space}-affinity-timeouts", key] = Verdict(_remember(self._space, affinity))
        self._shared.update(_remember_objects(self._family, self._space, affinity))


def _remember(space: Space, seconds: int) -> str:
    return f"{space.value}-remember-{seconds}"


@lru_cache(maxsize=4096)
def _class_objects(kind: Class) -> tuple[tuple[ObjectKey, Object], ...]:
    return (
        ((CHAIN, kind.chain.encode()), class_chain(kind)),
        (("spread", kind.handle), Verdict(kind.chain)),
    )


@lru_cache(maxsize=4096)
def _remember_objects(family: Family, space: Space, seconds: int) -> tuple[tuple[ObjectKey, Object], ...]:
    return (((CHAIN, _remember(space, seconds).encode()), remember_chain(family, space, seconds)),)


def chains(objects: Objects) -> Iterator[tuple[str, Object]]:
    """Yield the chains among some objects, by name."""
    return ((key[1].decode(), value) for key, value in objects.items() if key[0] == CHAIN)
