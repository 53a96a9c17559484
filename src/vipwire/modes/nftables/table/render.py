"""Renders a Service's plan to elements of the table. Pure, and deterministic.

Slots follow the sorted order of the pool, so a new process finds the old one's elements. A change from N to N+1
endpoints moves the elements behind the new one: its cost depends on that Service alone.
"""

from collections.abc import Iterable
from functools import lru_cache
from typing import Final, TypeAlias

from vipwire.model.names import ObjectName
from vipwire.model.net import Family
from vipwire.model.service import TrafficPolicy
from vipwire.model.spread import EVENLY, Algorithm
from vipwire.model.spread import fill_slots as spread_slots
from vipwire.modes.nftables.table.names import (
    CHAIN,
    LARGEST_POOL,
    SET,
    AffinitySet,
    Block,
    Class,
    CommentedElement,
    Goto,
    IntervalElement,
    Object,
    ObjectKey,
    Space,
    add_comment,
    encode_connection,
    encode_frontend,
    encode_identities,
    encode_target,
    handle_bytes,
    ordered_bytes,
    port_bytes,
)
from vipwire.modes.nftables.table.pools import (
    build_affinity_lookup_chain,
    build_affinity_set,
    build_affinity_update_chain,
    build_class_chain,
    build_dealing_chain,
)
from vipwire.modes.nftables.table.skeleton import HOOKED, NODE_PORT_RANGES, RANGE_ADDRESSES, RANGE_ALLOWED, RANGES
from vipwire.plan.plan import (
    Drop,
    Forward,
    Frontend,
    FrontendKey,
    FrontendKind,
    Pool,
    RangeFrontend,
    Reject,
    ServicePlan,
    Target,
    choose_memory,
    list_sticky_actions,
)
from vipwire.reconcile.backend import Rendered

Objects: TypeAlias = dict[ObjectKey, Object]


def render_service(family: Family, plan: ServicePlan, *, blocks: bool = False) -> Rendered[ObjectKey, Object]:
    """Render a Service: an object for each slot of a pool, or for all slots (`blocks`)."""
    writer = _BlockWriter if blocks else _Writer
    own: Objects = {}
    shared: Objects = {}
    for address in plan.cluster_ips:
        own["cluster-ips", address] = add_comment(b"", plan.name)
    memories = _Memories(plan)
    for frontend in plan.frontends:
        writer(family, frontend, memories, own, shared).write()
    for wide in plan.ranges:
        _RangeWriter(family, wide, memories, own, shared).write()
    return Rendered(own, shared)


class _Memories:
    """The affinity map of each frontend of a Service: its port's, or the Service's for all ports."""

    def __init__(self, plan: ServicePlan) -> None:
        self._policies: dict[str, set[TrafficPolicy]] = {}
        for frontend in plan.frontends:
            for action in list_sticky_actions(frontend):
                policies = self._policies.setdefault(_name_affinity_owner(frontend, action), set())
                policies.add(action.policy)
                if frontend.short_circuit is not None:  # even while no endpoint on this node answers
                    policies.add(TrafficPolicy.LOCAL)

    def of(self, frontend: Frontend, action: Forward) -> AffinitySet:
        owner = _name_affinity_owner(frontend, action)
        return AffinitySet(owner, action.policy is TrafficPolicy.LOCAL, len(self._policies[owner]) > 1)


def _name_affinity_owner(frontend: Frontend, action: Forward) -> str:
    owner = choose_memory(frontend, action).owner
    return str(owner) if isinstance(owner, ObjectName) else f"{owner.service}/{owner.protocol.label}/{owner.port}"


_FEW: Final = 64
_ENDPOINTS = {space: f"{space.value}-endpoints" for space in Space}
_ALLOWED = {Space.SERVICE: RANGES, Space.NODE_PORT: NODE_PORT_RANGES, Space.RANGE: RANGE_ALLOWED}


class _Writer:
    """Writes one frontend's objects."""

    def __init__(
        self, family: Family, frontend: Frontend, memories: _Memories, own: Objects, shared: Objects
    ) -> None:
        self._family, self._frontend, self._own, self._shared = family, frontend, own, shared
        self._memories = memories
        node_port = frontend.kind is FrontendKind.NODE_PORT
        self._space = Space.NODE_PORT if node_port else Space.SERVICE
        self._ips = "nodeports" if node_port else "ips"
        self._checks = "nodeports" if node_port else "services"
        self._key = self._last = encode_frontend(frontend.key)
        self._note = add_comment(b"", frontend.port_name)

    def write(self) -> None:
        own, key, frontend = self._own, self._key, self._frontend
        if frontend.short_circuit is not None:
            own[f"local-policy-{self._ips}", key] = self._note
            self._write_forward(frontend.short_circuit, f"service-{self._ips}", local=False)
        match frontend.action:
            case Forward():
                local = frontend.short_circuit is not None
                self._write_forward(frontend.action, f"{'local' if local else 'service'}-{self._ips}", local=local)
            case Reject():
                own[f"no-endpoint-{self._checks}", key] = self._note
            case Drop():
                own[f"no-local-endpoint-{self._checks}", key] = self._note
        if frontend.allowed_sources is not None:
            own[f"firewall-{self._ips}", key] = self._note
            ranges = _ALLOWED[self._space]
            for prefix in frontend.allowed_sources:
                own[ranges, key + prefix.network] = IntervalElement(self._last + prefix.last, "")

    def _write_forward(self, action: Forward, classes: str, *, local: bool) -> None:
        targets = action.pool
        # A single target needs no table: Maglev's would have 16,381 elements.
        if len(targets) > 1 and (action.spread != EVENLY or len(targets) > LARGEST_POOL):
            names = [encode_target(target) for target in targets]
            targets = spread_slots(action.spread, targets, names, LARGEST_POOL)
        kind = Class(self._space, local, action.affinity_seconds is not None, action.spread.algorithm, len(targets))
        handle, objects = _build_class(self._family, kind)
        self._own[classes, self._key] = CommentedElement(handle, self._note.comment)
        self._shared.update(objects)
        if kind.algorithm is Algorithm.ROUND_ROBIN:
            self._write_round_robin(kind)
        self._record_hairpins(action.pool)
        self._fill_slots(kind, targets, action)

    def _record_hairpins(self, pool: Pool) -> None:
        protocol = self._frontend.key.protocol
        for target in pool:
            self._shared["hairpin-connections", encode_connection(target.address, target, protocol)] = b""

    def _fill_slots(self, kind: Class, targets: Pool, action: Forward) -> None:
        if action.affinity_seconds is None:
            key, own, endpoints = self._key, self._own, _ENDPOINTS[self._space]
            for slot, target in zip(_encode_slot_keys(kind.first_slot, len(targets)), targets, strict=True):
                own[endpoints, key + slot] = encode_target(target)
        else:
            slots = range(kind.first_slot, kind.first_slot + len(targets))
            self._write_affinity(kind, action, zip(slots, targets, strict=True), action.affinity_seconds)

    def _write_round_robin(self, kind: Class) -> None:
        name = self._frontend.port_name
        # With the size: by a Local policy, two pools of one Service port can have the same kind of frontend.
        chain = f"{kind.chain}-{kind.size}-{name.service}/{name.protocol.label}/{name.port}"
        self._shared[CHAIN, chain.encode()] = build_dealing_chain(self._family, kind)
        self._own[f"{kind.prefix}-turns", self._key] = Goto(chain)

    def _write_affinity(
        self, kind: Class, action: Forward, slots: Iterable[tuple[int, Target]], seconds: int
    ) -> None:
        key, own, pool = self._key, self._own, kind.prefix
        numbered = dict(
            zip(action.pool, encode_identities(action.pool, by_address=action.shared_affinity), strict=True)
        )
        for slot, target in slots:
            own[f"{pool}-affinity-slots", key + handle_bytes(slot)] = numbered[target]
        for target, number in numbered.items():
            own[f"{pool}-affinity-endpoints", key + number] = encode_target(target)
        memory = self._memories.of(self._frontend, action)
        remember, remembered = memory.name_update_chain(pool, seconds), memory.name_lookup_chain(pool, seconds)
        own[f"{pool}-affinity-remember", key] = Goto(remember)
        own[f"{pool}-affinity-remembered", key] = Goto(remembered)
        shared, family = self._shared, self._family
        shared[CHAIN, remember.encode()] = build_affinity_update_chain(family, kind.space, pool, seconds, memory)
        shared[CHAIN, remembered.encode()] = build_affinity_lookup_chain(family, pool, seconds, memory)
        for name in (memory.map, memory.other_policy_map) if memory.both else (memory.map,):
            shared[SET, name.encode()] = build_affinity_set(family, name)


class _BlockWriter(_Writer):
    """Writes the slots of a pool as one object."""

    def _fill_slots(self, kind: Class, targets: Pool, action: Forward) -> None:
        if action.affinity_seconds is not None:
            super()._fill_slots(kind, targets, action)
            return
        port = targets[0].port
        if [target.port for target in targets].count(port) == len(targets):
            rest = port_bytes(port)
            data = rest.join([target.address for target in targets]) + rest
        else:
            data = b"".join(map(encode_target, targets))
        self._own[_ENDPOINTS[self._space], self._key + handle_bytes(kind.first_slot)] = Block(data, len(targets))


class _RangeWriter(_Writer):
    """Writes a port range: the same objects in interval sets. Ranges have no affinity; see `plan.ranges`."""

    def __init__(
        self, family: Family, wide: RangeFrontend, memories: _Memories, own: Objects, shared: Objects
    ) -> None:
        super().__init__(family, wide.frontend, memories, {}, shared)
        self._wide, self._widened = wide, own
        self._space, self._ips, self._checks = Space.RANGE, "ranges", "ranges"
        first = FrontendKey(wide.key.address, wide.key.protocol, wide.key.first)
        self._key, self._last = encode_frontend(first), encode_frontend(first._replace(port=wide.key.last))

    def write(self) -> None:
        super().write()
        self._shared.update(HOOKED)
        for (name, key), value in self._own.items():
            self._widened[name, key] = self._extend_to_range(key, value)

    def _extend_to_range(self, key: bytes, value: Object) -> Object:
        last = self._last + key[len(self._key) :]
        match value:
            case CommentedElement(data, comment):
                return IntervalElement(last, comment, data)
            case Goto(chain):
                return IntervalElement(last, "", b"", chain)
            case bytes(data):
                return IntervalElement(last, "", data)
        return value

    def _fill_slots(self, kind: Class, targets: Pool, action: Forward) -> None:
        del action
        for slot, target in enumerate(targets, kind.first_slot):
            key = self._key + ordered_bytes(slot)
            if self._wide.keeps_port(target):
                self._own[RANGE_ADDRESSES, key] = target.address
            else:
                self._own["range-endpoints", key] = encode_target(target)

    def _record_hairpins(self, pool: Pool) -> None:
        protocol = bytes((self._frontend.key.protocol, 0, 0, 0))
        for target in pool:
            self._shared["hairpin-pods", target.address * 2 + protocol] = b""


def _encode_slot_keys(first: int, count: int) -> Iterable[bytes]:
    """Pack slot numbers; those of usual pools come from a cache."""
    return _encode_cached_slot_keys(first, count) if count <= _FEW else map(handle_bytes, range(first, first + count))


@lru_cache(maxsize=2 * _FEW)
def _encode_cached_slot_keys(first: int, count: int) -> tuple[bytes, ...]:
    return tuple(map(handle_bytes, range(first, first + count)))


@lru_cache(maxsize=4096)
def _build_class(family: Family, kind: Class) -> tuple[bytes, tuple[tuple[ObjectKey, Object], ...]]:
    handle = kind.handle
    return handle, (
        ((CHAIN, kind.chain.encode()), build_class_chain(family, kind)),
        (("spread", handle), Goto(kind.chain)),
    )
