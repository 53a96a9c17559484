"""Renders a Service's plan to fronts and rules. Pure.

Each frontend has a front for clients in general, and a second one for clients on this node if these reach other
endpoints (`short_circuit`). The rules choose between them:

    frontend               from outside               from Pods                  from this node
    VIP                    PORTALS-CONTAINER          PORTALS-POD, CONTAINER     PORTALS-HOST
    node port              the socket itself          NODEPORT-POD, the socket   NODEPORT-HOST, the socket
               of UDP      NODEPORT-CONTAINER         NODEPORT-POD, CONTAINER    NODEPORT-HOST, the socket

A node port is a real socket on every node port address. With source ranges, rules lead allowed sources to a separate
front and the filter drops the others, because a relay cannot refuse an accepted connection. Rules lead remote
datagrams past the socket: IPVS, left from ipvs mode, takes packets for a known port before a socket does, without
masquerading. Without rules (`--userspace-bind`) one front serves all, with the endpoints of clients on this node.

The filter refuses or drops other packets:

    frontend     allowed sources         other sources
    forwards     already translated      dropped
    refuses      refused                 dropped
    drops        dropped                 dropped

An address of this node may be a Service's and serve other Services' node ports. There, refusals follow the rules of
served node ports.
"""

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from vipwire.model.names import ServicePortName
from vipwire.model.net import Address, Family, Protocol
from vipwire.model.spread import Algorithm
from vipwire.modes.userspace import names
from vipwire.modes.userspace.entrance import Entrance, is_never_answered, list_entrances
from vipwire.modes.userspace.names import (
    FILTER,
    NAT,
    NO_SUCH_PORT,
    OTHER_SOURCES,
    Front,
    Key,
    Rule,
    Value,
    list_source_matches,
    match_named_port,
    write_redirect,
)
from vipwire.modes.userspace.settings import Bind, Choices
from vipwire.modes.userspace.skeleton import serves_loopback
from vipwire.modes.xtables.words import NEW, match_comment, match_destination, match_service_port
from vipwire.plan.node import NodePlan
from vipwire.plan.plan import Drop, Forward, Frontend, Memory, Reject, ServicePlan, choose_memory, list_sticky_actions
from vipwire.reconcile.backend import Rendered
from vipwire.relay.messages import Listener, Share, SocketAddress

_LOOPBACK: Final = {Family.IPV4: Address(b"\x7f\0\0\1"), Family.IPV6: Address(bytes(15) + b"\1")}
_ANYWHERE: Final = {Family.IPV4: Address(bytes(4)), Family.IPV6: Address(bytes(16))}


def render_service(node: NodePlan, choices: Choices, plan: ServicePlan) -> Rendered[Key, Value]:
    writer = _Writer(node, choices, plan)
    for entrance in list_entrances(plan):
        writer.write_entrance(entrance)
    if choices.bind is Bind.RULES:
        writer.objects.update((rule, 1) for rule in refuse_other_ports(plan))
    return Rendered(writer.objects)


class _NamedForward(NamedTuple):
    """A front that rules lead to: its name and its listener."""

    name: str
    forward: Forward


def _name_memory_group(memory: Memory) -> str:
    """Name the group of listeners that share client affinity."""
    owner = memory.owner
    port = f" {owner.port} {owner.protocol.label}" if isinstance(owner, ServicePortName) else ""
    return f"{owner.service if isinstance(owner, ServicePortName) else owner}{port} {memory.policy.value}"


class _Writer:
    """Writes one Service's objects."""

    def __init__(self, node: NodePlan, choices: Choices, plan: ServicePlan) -> None:
        self._node, self._choices, self._plan = node, choices, plan
        self._memories = frozenset(
            choose_memory(frontend, action) for frontend in plan.frontends for action in list_sticky_actions(frontend)
        )
        self.objects: dict[Key, Value] = {}

    def add_rule(self, table: str, chain: str, words: str, front: str = "") -> None:
        self.objects[Rule(table, chain, words, front)] = 1

    def _write_rules(self, rules: Iterable[Rule]) -> None:
        self.objects.update((rule, 1) for rule in rules)

    def write_entrance(self, entrance: Entrance) -> None:
        frontend = entrance.frontend
        relayed = frontend.key.protocol is not Protocol.SCTP
        if self._choices.bind is not Bind.RULES:
            if relayed and entrance.wide is None:
                self._write_without_rules(entrance)
            return
        if not relayed:
            self._write_rules([write_sctp_refusal(entrance)])
            return
        if frontend.key.address is None:
            self._write_node_port(entrance)
        elif not is_never_answered(self._node, entrance):
            self._write_portal(entrance)
        self._write_rules(write_denials(self._node, self._plan, entrance))

    def _write_portal(self, entrance: Entrance) -> None:
        outside, here = self._split_sides(entrance)
        for side in filter(None, (outside, here)):
            self._write_listener(side, entrance, (self._choose_front_address(),))
        if here is not None:
            self._write_redirect(names.PORTALS_POD, entrance, here)
        if outside is not None:
            self._write_redirect(names.PORTALS_CONTAINER, entrance, outside)
        if (local := here or outside) is not None:
            self._write_redirect(names.PORTALS_HOST, entrance, local)

    def _write_node_port(self, entrance: Entrance) -> None:
        frontend = entrance.frontend
        outside, here = self._split_sides(entrance)
        limited = frontend.allowed_sources is not None
        if here is not None:
            self._write_listener(here, entrance, (self._choose_front_address(),))
            self._write_redirect(names.NODEPORT_POD, entrance, here)
            self._write_redirect(names.NODEPORT_HOST, entrance, here)
        if outside is not None and limited:
            self._write_listener(outside, entrance, (self._choose_front_address(),))
            self._write_redirect(names.NODEPORT_CONTAINER, entrance, outside)
            if here is None:
                self._write_redirect(names.NODEPORT_HOST, entrance, outside)
        elif outside is not None:
            self._open_node_port(outside, entrance)
        if (kept := pass_node_port(frontend)) is not None:
            self._write_rules([kept])

    def _open_node_port(self, side: _NamedForward, entrance: Entrance) -> None:
        """Listen at a node port itself, and accept in the filter packets to the socket or its front."""
        key, note = entrance.frontend.key, str(entrance.frontend.port_name)
        places = tuple(SocketAddress(address, key.port) for address in self._node_port_addresses())
        words = f"{match_service_port(key.protocol, key.port, note)} {NEW}"
        if places and key.protocol is Protocol.UDP:
            places = (self._choose_front_address(), *places)
            self._write_redirect(names.NODEPORT_CONTAINER, entrance, side)
            words = match_named_port(key.protocol, key.port, note)
        self._write_listener(side, entrance, places)
        self.add_rule(FILTER, names.NODEPORT_NON_LOCAL, f"{words} -j ACCEPT")

    def _write_redirect(self, chain: str, entrance: Entrance, side: _NamedForward) -> None:
        """Lead packets for a frontend from allowed sources to a front."""
        frontend = entrance.frontend
        key = frontend.key
        for source in list_source_matches(frontend.allowed_sources):
            note = str(frontend.port_name)
            words = match_service_port(key.protocol, entrance.dport, note, address=key.address, source=source)
            self.add_rule(NAT, chain, f"{words} {write_redirect(self._node.address)}", side.name)

    def _write_without_rules(self, entrance: Entrance) -> None:
        frontend = entrance.frontend
        forward = frontend.short_circuit or frontend.action
        if isinstance(forward, Forward):
            self._write_listener(
                _NamedForward(entrance.name_front(), forward), entrance, self._list_direct_places(frontend)
            )

    def _list_direct_places(self, frontend: Frontend) -> tuple[SocketAddress, ...]:
        key, family = frontend.key, self._node.family
        if self._choices.bind is Bind.NONE:
            return (SocketAddress(_ANYWHERE[family], 0),)
        if key.address is not None:
            return (SocketAddress(key.address, key.port),)
        return tuple(SocketAddress(address, key.port) for address in self._node_port_addresses())

    def _split_sides(self, entrance: Entrance) -> tuple[_NamedForward | None, _NamedForward | None]:
        """Return the fronts: of clients in general, and the separate one of clients on this node."""
        action, circuit = entrance.frontend.action, entrance.frontend.short_circuit
        outside = _NamedForward(entrance.name_front(), action) if isinstance(action, Forward) else None
        here = _NamedForward(entrance.name_front(here=True), circuit) if circuit is not None else None
        return outside, here

    def _write_listener(self, side: _NamedForward, entrance: Entrance, binds: tuple[SocketAddress, ...]) -> None:
        frontend = entrance.frontend
        forward, allowed, plan = side.forward, frontend.allowed_sources, self._plan
        if not binds:
            return
        own = choose_memory(frontend, forward) if forward.affinity_seconds else None
        self.objects[Front(side.name)] = Listener(
            name=side.name,
            protocol=int(frontend.key.protocol),
            binds=binds,
            shares=tuple(
                Share(entrance.find_place(target), weight)
                for target, weight in zip(forward.pool, forward.weights, strict=True)
            ),
            algorithm=self._choose_algorithm(forward),
            affinity=forward.affinity_seconds or 0,
            group=_name_memory_group(own) if own is not None else "",
            sources=None if allowed is None else tuple((prefix.network, prefix.length) for prefix in allowed),
            proxy_protocol=plan.wishes.proxy_protocol,
            serving=entrance.list_serving_places(),
            beside=_name_memory_group(own.other) if own is not None and own.other in self._memories else "",
            whole=forward.shared_affinity and own is not None,
            span=entrance.span,
        )

    def _choose_algorithm(self, forward: Forward) -> str:
        """Choose the algorithm: random, the plan's default, only if the Service asks for it."""
        if forward.spread.algorithm is not Algorithm.RANDOM:
            return str(forward.spread.algorithm.value)
        asked = self._plan.wishes.balancing
        return str((asked or Algorithm.ROUND_ROBIN).value)

    def _choose_front_address(self) -> SocketAddress:
        """Return the address of a front that rules lead to: any port of the node's address."""
        return SocketAddress(self._node.address or _ANYWHERE[self._node.family], 0)

    def _node_port_addresses(self) -> Iterator[Address]:
        node = self._node
        if node.addresses or node.address is None:
            yield from self._plan.node_port_addresses
        else:
            yield node.address
        if serves_loopback(node, self._choices):
            yield _LOOPBACK[node.family]


_SCTP = "SCTP is not relayed"


def write_denials(node: NodePlan, plan: ServicePlan, entrance: Entrance) -> Iterator[Rule]:
    """Refuse or drop packets without DNAT and packets of other sources."""
    frontend = entrance.frontend
    dropping, rejecting = _choose_refusal_chains(node, plan, frontend)
    limited = frontend.allowed_sources is not None
    match frontend.action:
        case Reject(reason) if limited:
            for source in list_source_matches(frontend.allowed_sources):
                yield _build_rule(entrance, dropping, reason.value, f"-j {names.REFUSE}", source)._replace(first=True)
        case Reject(reason):
            yield _build_rule(entrance, rejecting, reason.value, f"-j {names.REFUSE}")
        case Drop(reason):
            yield _build_rule(entrance, dropping, reason.value, "-j DROP")
    if limited and not isinstance(frontend.action, Drop):
        yield _build_rule(entrance, dropping, f"{OTHER_SOURCES} to the {frontend.kind.value}", "-j DROP")


def write_sctp_refusal(entrance: Entrance) -> Rule:
    """Refuse SCTP, which no relay can carry."""
    chain = names.NODEPORT_FILTER if entrance.frontend.key.address is None else names.PORTALS_REJECT
    return _build_rule(entrance, chain, _SCTP, f"-j {names.REFUSE}")


def refuse_other_ports(plan: ServicePlan) -> Iterator[Rule]:
    for address in plan.cluster_ips:
        note = match_comment(f"{plan.name} {NO_SUCH_PORT}")
        yield Rule(FILTER, names.PORTALS_REJECT, f"{match_destination(address)} {note} -j {names.REFUSE}")


def pass_node_port(frontend: Frontend) -> Rule | None:
    """Pass a served node port before refusals at this node's addresses; None for other frontends."""
    if frontend.key.address is not None or not (frontend.short_circuit or isinstance(frontend.action, Forward)):
        return None
    words = match_service_port(frontend.key.protocol, frontend.key.port, str(frontend.port_name))
    return Rule(FILTER, names.PORTALS_OWN, f"{words} -j RETURN", first=True)


def _choose_refusal_chains(node: NodePlan, plan: ServicePlan, frontend: Frontend) -> tuple[str, str]:
    address = frontend.key.address
    if address is None:
        return names.NODEPORT_FILTER, names.NODEPORT_FILTER
    serves = any(address in prefix for prefix in node.node_port_addresses)
    if address in plan.own_addresses and serves and isinstance(frontend.action, Reject):
        return names.PORTALS_OWN_DENY, names.PORTALS_OWN_DENY
    return names.PORTALS_DROP, names.PORTALS_REJECT


def _build_rule(entrance: Entrance, chain: str, why: str, verdict: str, source: str = "") -> Rule:
    key, port_name = entrance.frontend.key, entrance.frontend.port_name
    words = match_service_port(key.protocol, entrance.dport, f"{port_name} {why}", address=key.address, source=source)
    return Rule(FILTER, chain, f"{words} {verdict}")
