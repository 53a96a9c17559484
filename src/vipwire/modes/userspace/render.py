"""From a Service's plan to fronts and rules. Pure.

Each frontend has a front for clients in general, and where the plan says that clients on this node reach other
endpoints (`short_circuit`) a second one for them. Which of them a client meets the rules decide:

    frontend               from outside               from Pods                  from this node
    VIP                    PORTALS-CONTAINER          PORTALS-POD, CONTAINER     PORTALS-HOST
    node port              the socket itself          NODEPORT-POD, the socket   NODEPORT-HOST, the socket
               of UDP      NODEPORT-CONTAINER         NODEPORT-POD, CONTAINER    NODEPORT-HOST, the socket

A node port is a real socket on every address that serves it. Where only some sources may come, the rules let these
through to a front of its own instead, and the filter drops the others: a relay could not, once it has accepted.
Rules lead datagrams from outside past that socket: IPVS, which takes what it still knows from ipvs mode before any
socket does, sees another port then. Nobody would masquerade such a flow, once connection tracking has forgotten it.
Without rules (`--userspace-bind`) there is one front for all, and its clients count as those of this node.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from vipwire.model.names import ServicePortName
from vipwire.model.net import Address, Family, Protocol
from vipwire.model.spread import Algorithm
from vipwire.modes.userspace import names
from vipwire.modes.userspace.entrance import Entrance, entrances
from vipwire.modes.userspace.limits import asks_in_vain
from vipwire.modes.userspace.names import FILTER, NAT, Front, Key, Rule, Value
from vipwire.modes.userspace.refusing import denials, other_ports, sctp_refusal, serving
from vipwire.modes.userspace.rule_words import named, packet, sources, translate
from vipwire.modes.userspace.settings import Bind, Choices
from vipwire.modes.userspace.skeleton import serves_loopback
from vipwire.modes.xtables.words import NEW
from vipwire.plan.affinity import Memory, memory_of, sticky_actions
from vipwire.plan.node import NodePlan
from vipwire.plan.plan import Forward, Frontend, ServicePlan
from vipwire.reconcile.backend import Rendered
from vipwire.relay.messages import Listener, Place, Share

_LOOPBACK: Final = {Family.IPV4: Address(b"\x7f\0\0\1"), Family.IPV6: Address(bytes(15) + b"\1")}
_ANYWHERE: Final = {Family.IPV4: Address(bytes(4)), Family.IPV6: Address(bytes(16))}


def render(node: NodePlan, choices: Choices, plan: ServicePlan) -> Rendered[Key, Value]:
    """Render one Service."""
    writer = _Writer(node, choices, plan)
    for entrance in entrances(plan):
        writer.entrance(entrance)
    if choices.bind is Bind.RULES:
        writer.objects.update((rule, 1) for rule in other_ports(plan))
    return Rendered(writer.objects)


@dataclass(frozen=True, slots=True)
class _NamedForward:
    """A front that rules lead to: its name and what it does."""

    name: str
    forward: Forward


def _group(memory: Memory) -> str:
    """Name the listeners that share what is remembered of a client."""
    owner = memory.owner
    port = f" {owner.port} {owner.protocol.label}" if isinstance(owner, ServicePortName) else ""
    return f"{owner.service if isinstance(owner, ServicePortName) else owner}{port} {memory.policy.value}"


class _Writer:
    """Writes one Service's objects."""

    def __init__(self, node: NodePlan, choices: Choices, plan: ServicePlan) -> None:
        self._node, self._choices, self._plan = node, choices, plan
        self._memories = frozenset(
            memory_of(frontend, action) for frontend in plan.frontends for action in sticky_actions(frontend)
        )
        self.objects: dict[Key, Value] = {}

    def rule(self, table: str, chain: str, words: str, front: str = "") -> None:
        """Add a rule to this Service's objects."""
        self.objects[Rule(table, chain, words, front)] = 1

    def _add(self, rules: Iterable[Rule]) -> None:
        self.objects.update((rule, 1) for rule in rules)

    def entrance(self, entrance: Entrance) -> None:
        """Write a frontend, at its port or at a range."""
        frontend = entrance.frontend
        relayed = frontend.key.protocol is not Protocol.SCTP
        if self._choices.bind is not Bind.RULES:
            if relayed and entrance.wide is None:
                self._without_rules(entrance)
            return
        if not relayed:
            self._add([sctp_refusal(entrance)])
            return
        if frontend.key.address is None:
            self._node_port(entrance)
        elif not asks_in_vain(self._node, entrance):
            self._portal(entrance)
        self._add(denials(self._node, self._plan, entrance))

    def _portal(self, entrance: Entrance) -> None:
        outside, here = self._sides(entrance)
        for side in filter(None, (outside, here)):
            self._front(side, entrance, (self._own_place(),))
        if here is not None:
            self._lead(names.PORTALS_POD, entrance, here)
        if outside is not None:
            self._lead(names.PORTALS_CONTAINER, entrance, outside)
        if (local := here or outside) is not None:
            self._lead(names.PORTALS_HOST, entrance, local)

    def _node_port(self, entrance: Entrance) -> None:
        frontend = entrance.frontend
        outside, here = self._sides(entrance)
        limited = frontend.allowed_sources is not None
        if here is not None:
            self._front(here, entrance, (self._own_place(),))
            self._lead(names.NODEPORT_POD, entrance, here)
            self._lead(names.NODEPORT_HOST, entrance, here)
        if outside is not None and limited:
            self._front(outside, entrance, (self._own_place(),))
            self._lead(names.NODEPORT_CONTAINER, entrance, outside)
            if here is None:
                self._lead(names.NODEPORT_HOST, entrance, outside)
        elif outside is not None:
            self._open_node_port(outside, entrance)
        if (kept := serving(frontend)) is not None:
            self._add([kept])

    def _open_node_port(self, side: _NamedForward, entrance: Entrance) -> None:
        """Listen at a node port itself, and let whoever comes there, or is led past it, through the filter."""
        key, note = entrance.frontend.key, str(entrance.frontend.port_name)
        places = tuple(Place(address, key.port) for address in self._node_port_addresses())
        words = f"{packet('', None, key.protocol, key.port, note)} {NEW}"
        if places and key.protocol is Protocol.UDP:
            places = (self._own_place(), *places)
            self._lead(names.NODEPORT_CONTAINER, entrance, side)
            words = named(key.protocol, key.port, note)
        self._front(side, entrance, places)
        self.rule(FILTER, names.NODEPORT_NON_LOCAL, f"{words} -j ACCEPT")

    def _lead(self, chain: str, entrance: Entrance, side: _NamedForward) -> None:
        """Lead packets for a frontend to a front, from those sources that may come."""
        frontend = entrance.frontend
        key = frontend.key
        for source in sources(frontend.allowed_sources):
            words = packet(source, key.address, key.protocol, entrance.dport, str(frontend.port_name))
            self.rule(NAT, chain, f"{words} {translate(self._node.address)}", side.name)

    def _without_rules(self, entrance: Entrance) -> None:
        frontend = entrance.frontend
        forward = frontend.short_circuit or frontend.action
        if isinstance(forward, Forward):
            self._front(_NamedForward(entrance.front(), forward), entrance, self._direct_places(frontend))

    def _direct_places(self, frontend: Frontend) -> tuple[Place, ...]:
        """Choose where clients reach a frontend themselves."""
        key, family = frontend.key, self._node.family
        if self._choices.bind is Bind.NONE:
            return (Place(_ANYWHERE[family], 0),)
        if key.address is not None:
            return (Place(key.address, key.port),)
        return tuple(Place(address, key.port) for address in self._node_port_addresses())

    def _sides(self, entrance: Entrance) -> tuple[_NamedForward | None, _NamedForward | None]:
        """Name the fronts: of clients in general, and of those on this node where they have one of their own."""
        action, circuit = entrance.frontend.action, entrance.frontend.short_circuit
        outside = _NamedForward(entrance.front(), action) if isinstance(action, Forward) else None
        here = _NamedForward(entrance.front(here=True), circuit) if circuit is not None else None
        return outside, here

    def _front(self, side: _NamedForward, entrance: Entrance, binds: tuple[Place, ...]) -> None:
        frontend = entrance.frontend
        forward, allowed, plan = side.forward, frontend.allowed_sources, self._plan
        if not binds:
            return
        own = memory_of(frontend, forward) if forward.affinity_seconds else None
        self.objects[Front(side.name)] = Listener(
            name=side.name,
            protocol=int(frontend.key.protocol),
            binds=binds,
            shares=tuple(
                Share(entrance.place(target), weight)
                for target, weight in zip(forward.pool, forward.weights, strict=True)
            ),
            algorithm=self._algorithm(forward),
            affinity=forward.affinity_seconds or 0,
            group=_group(own) if own is not None else "",
            sources=None if allowed is None else tuple((prefix.network, prefix.length) for prefix in allowed),
            proxy_protocol=plan.wishes.proxy_protocol,
            serving=entrance.serving(),
            beside=_group(own.other) if own is not None and own.other in self._memories else "",
            whole=forward.shared_affinity and own is not None,
            span=entrance.span,
        )

    def _algorithm(self, forward: Forward) -> str:
        """Choose the algorithm. A random choice, the plan's default, is made only where the Service asks for it."""
        if forward.spread.algorithm is not Algorithm.RANDOM:
            return str(forward.spread.algorithm.value)
        asked = self._plan.wishes.balancing
        return str((asked or Algorithm.ROUND_ROBIN).value)

    def _own_place(self) -> Place:
        """Choose where a front listens that rules lead to: any port of the node's address."""
        return Place(self._node.address or _ANYWHERE[self._node.family], 0)

    def _node_port_addresses(self) -> Iterator[Address]:
        """Choose the addresses on which node ports are sockets."""
        node = self._node
        if node.addresses or node.address is None:
            yield from self._plan.node_port_addresses
        else:
            yield node.address
        if serves_loopback(node, self._choices):
            yield _LOOPBACK[node.family]
