"""Chooses the counters of the table and makes counts of Service ports of them. Pure.

Counts are kept by packets themselves, in sets that rules fill (`dynamic`), beside the elements that are the Services.
So a change of a Service, of an endpoint, of anything that vipwire writes resets nothing; there is nothing to compare
or to repair; a start on a programmed kernel finds the counts of before; and a sync costs what it cost without them.

    connections        where a first packet leaves (postrouting, or input where it stays): every connection comes by
                       once, its first packet only, and after the choice of its endpoint
    traffic, -replies  both ways of every packet of these connections, where it enters the node. Only if asked for
    refused-...        what is dropped or rejected, by reason, in the chain that does it

A key is a frontend's, as the client named it (which is also the original direction of connection tracking), and the
endpoint's address and port. Elements that nobody has met for a day go. Where a set is full, what is new is not
counted, and nothing else happens: an `update` that fails only ends its own rule.
"""

import enum
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from typing import NamedTuple, TypeVar

from vipwire.linux.netlink.nftables.counters import ElementCounter
from vipwire.model.names import ServicePortName
from vipwire.model.net import Address, Family, Protocol
from vipwire.modes.nftables.language import SetSpec
from vipwire.modes.nftables.table.names import SRCNAT, Chain, Hook, frontend_bytes
from vipwire.plan.plan import FrontendKey, RangeFrontend, ServicePlan
from vipwire.reconcile.counts import Count, Counts, EndpointName, Refusal


class CounterLevel(enum.IntEnum):
    """The level of counting: nothing; connections and refusals; or every packet besides."""

    NOTHING = 0
    CONNECTIONS = 1
    TRAFFIC = 2


SIZE = 1 << 18
"""So many pairs of a frontend and an endpoint at most are counted."""
_DAY, _HOUR = 86_400, 3_600
_REFUSED = {
    Refusal.NO_ENDPOINTS: "refused-no-endpoint",
    Refusal.NO_LOCAL_ENDPOINTS: "refused-no-local-endpoint",
    Refusal.SOURCE_RANGE: "refused-source",
    Refusal.NODE_PORT_SOURCE_RANGE: "refused-nodeport-source",
    Refusal.UNDEFINED_PORT: "refused-undefined-port",
    Refusal.UNALLOCATED_CLUSTER_IP: "refused-unallocated",
}
CONNECTIONS, TRAFFIC, REPLIES = "connections", "traffic", "traffic-replies"


def counting_sets(family: Family) -> Iterator[SetSpec]:
    """Declare the sets that count. They are declared in any case: without rules that fill them they stay empty."""
    ip = "ip" if family is Family.IPV4 else "ip6"
    address = "ipv4_addr" if family is Family.IPV4 else "ipv6_addr"
    pair = (address, "inet_proto", "inet_service", address, "inet_service")
    for name in (CONNECTIONS, TRAFFIC, REPLIES):
        yield _counting(name, pair)
    for reason, name in _REFUSED.items():
        yield _counting(name, _refused_key(ip, reason))


def _counting(name: str, key: tuple[str, ...]) -> SetSpec:
    flags = frozenset({"dynamic", "timeout"})
    return SetSpec(name, key, flags=flags, timeout_seconds=_DAY, gc_seconds=_HOUR, size=SIZE, counter=True)


def _refused_key(ip: str, reason: Refusal) -> tuple[str, ...]:
    """Choose what a refusal is counted by: never by what any client may choose at will, a port or a free address."""
    match reason:
        case Refusal.UNDEFINED_PORT:
            return (f"{ip} daddr",)
        case Refusal.UNALLOCATED_CLUSTER_IP:
            return ("meta l4proto",)
    return (f"{ip} daddr", "meta l4proto", "th dport")


def refusal(family: Family, reason: Refusal, counters: CounterLevel) -> tuple[str, Chain]:
    """Write the chain that counts and refuses, with its name.

    Counting is a rule of its own: one that fails to count must not fail to refuse.
    """
    verdict = "drop" if reason.is_drop else "goto reject-chain"
    ip = "ip" if family is Family.IPV4 else "ip6"
    count = f"update @{_REFUSED[reason]} {{ {' . '.join(_refused_key(ip, reason))} }}"
    return _REFUSED[reason], Chain((count, verdict) if counters else (verdict,))


def refused(reason: Refusal) -> str:
    """Name the chain of a reason."""
    return _REFUSED[reason]


_COUNT = "ct status dnat jump count-"


def connection_chains(family: Family, counters: CounterLevel) -> Iterator[tuple[str, Chain]]:
    """Write the chains that count a connection where its first packet leaves, or stays; see `COUNT_CONNECTION`."""
    if not counters:
        return
    yield "count-connection", Chain(tuple(_count(family, CONNECTIONS)))
    # What ends on this node passes here; if it began here too, it was counted on its way out: each is tried once.
    yield "nat-input", Chain((COUNT_CONNECTION,), Hook("nat", "input", SRCNAT))


COUNT_CONNECTION = f"{_COUNT}connection"
"""The rule that belongs in front of masquerading."""


def traffic_chains(family: Family, counters: CounterLevel) -> Iterator[tuple[str, Chain]]:
    """Write the chains that count every packet, once: behind DNAT, where it enters the node or starts on it."""
    if counters is not CounterLevel.TRAFFIC:
        return
    ways = (("original", "traffic", TRAFFIC), ("reply", "replies", REPLIES))
    for _, name, table in ways:
        yield f"count-{name}", Chain(tuple(_count(family, table)))
    rules = tuple(f"ct direction {way} {_COUNT}{name}" for way, name, _ in ways)
    # What a process sends to its own node leaves and enters: it is counted as it leaves.
    entering = tuple(f'iifname != "lo" {rule}' for rule in rules)
    yield "filter-prerouting-traffic", Chain(entering, Hook("filter", "prerouting", -90))
    yield "filter-output-traffic", Chain(rules, Hook("filter", "output", -90))


def counted_by(chains: Container[str]) -> CounterLevel:
    """Return what a table counts, by the names of its chains."""
    if "filter-prerouting-traffic" in chains:
        return CounterLevel.TRAFFIC
    return CounterLevel.CONNECTIONS if "count-connection" in chains else CounterLevel.NOTHING


def _count(family: Family, table: str) -> Iterator[str]:
    """Write the rules that count by what connection tracking knows: what the client named, and who answers.

    One for each protocol, or nft could not load them: what a port is, it wants to know of which protocol.
    """
    ip = "ip" if family is Family.IPV4 else "ip6"
    key = f"ct original {ip} daddr . meta l4proto . ct original proto-dst . ct reply {ip} saddr . ct reply proto-src"
    for protocol in Protocol:
        yield f"meta l4proto {protocol.label} update @{table} {{ {key} }}"


class PairCounter(NamedTuple):
    """A counted pair, its key taken apart."""

    name: ServicePortName
    address: Address
    port: int
    counted: ElementCounter


def counts(
    family: Family, plans: Iterable[ServicePlan], tables: Mapping[str, Iterable[ElementCounter]], *, endpoints: bool
) -> Counts:
    """Convert what the sets hold to counts; `tables` are their elements by the set's name."""
    names = _Names(family, plans)
    ports: dict[ServicePortName, Count] = {}
    by_endpoint: dict[EndpointName, Count] = {}
    for table, made in ((CONNECTIONS, _connections), (TRAFFIC, _traffic), (REPLIES, _replies)):
        of_ports: dict[ServicePortName, list[int]] = {}
        of_endpoints: dict[EndpointName, list[int]] = {}
        for name, address, port, counted in names.seen(tables.get(table, ())):
            _add(of_ports, name, counted)
            if endpoints:
                _add(of_endpoints, EndpointName(name, address, port), counted)
        _take(ports, of_ports, made)
        _take(by_endpoint, of_endpoints, made)
    return Counts(ports, by_endpoint, names.refusals(tables))


_Key = TypeVar("_Key")


def _add(sums: dict[_Key, list[int]], key: _Key, counted: ElementCounter) -> None:
    """Add packets and bytes: 100,000 pairs pass here at a scrape."""
    found = sums.get(key)
    if found is None:
        sums[key] = [counted.packets, counted.bytes]
    else:
        found[0] += counted.packets
        found[1] += counted.bytes


def _take(counts: dict[_Key, Count], sums: Mapping[_Key, list[int]], made: Callable[[int, int], Count]) -> None:
    for key, (packets, size) in sums.items():
        counts[key] = counts[key].plus(made(packets, size)) if key in counts else made(packets, size)


def _connections(packets: int, _size: int) -> Count:
    return Count(connections=packets)


def _traffic(packets: int, size: int) -> Count:
    return Count(packets=packets, bytes=size)


def _replies(packets: int, size: int) -> Count:
    return Count(reply_packets=packets, reply_bytes=size)


class _Names:
    """Whose a counted key is."""

    def __init__(self, family: Family, plans: Iterable[ServicePlan]) -> None:
        self._width = family.bits // 8
        self._names: dict[bytes, ServicePortName] = {}
        self._ranges: dict[bytes, list[RangeFrontend]] = {}
        for plan in plans:
            for frontend in plan.frontends:
                self._names[frontend_bytes(frontend.key)] = frontend.port_name
            for wide in plan.ranges:
                place = frontend_bytes(FrontendKey(wide.key.address, wide.key.protocol, 0))[: self._width + 4]
                self._ranges.setdefault(place, []).append(wide)

    def name(self, key: bytes) -> ServicePortName | None:
        """Name the Service port of a frontend's key, whose address may be the node's."""
        found = self._names.get(key) or self._names.get(key[self._width :])
        wide = self._range(key) if found is None and self._ranges else None
        return found if wide is None else wide.frontend.port_name

    def _range(self, key: bytes) -> RangeFrontend | None:
        """Find the range that a frontend's key lies in."""
        port = int.from_bytes(key[self._width + 4 : self._width + 6])
        found = self._ranges.get(key[: self._width + 4], ())
        return next((wide for wide in found if wide.key.first <= port <= wide.key.last), None)

    def _port(self, key: bytes, port: int) -> int:
        """Return the endpoint's port as planned; of an endpoint that keeps the packet's port, the Service's."""
        wide = self._range(key) if self._ranges and key not in self._names else None
        return wide.frontend.key.port if wide is not None and key[self._width + 4 :][:2] == port.to_bytes(2) else port

    def seen(self, counted: Iterable[ElementCounter]) -> Iterator[PairCounter]:
        """Split the keys of pairs; skip what belongs to none of these Services."""
        width, names, name = self._width, self._names, self.name
        middle, last = width + 8, 2 * width + 8
        for each in counted:
            key = each.key
            found = names.get(key[:middle]) or name(key[:middle])
            if found is not None:
                port = int.from_bytes(key[last : last + 2])
                port = self._port(key[:middle], port) if self._ranges else port
                yield PairCounter(found, Address(key[middle:last]), port, each)

    def refusals(
        self, tables: Mapping[str, Iterable[ElementCounter]]
    ) -> dict[tuple[Refusal, ServicePortName | None], int]:
        """Sum refusals by reason and Service port; a reason that has happened to nobody is absent."""
        found: dict[tuple[Refusal, ServicePortName | None], int] = {}
        for reason, table in _REFUSED.items():
            for each in tables.get(table, ()):
                name = self.name(each.key)
                if name is None and len(each.key) == self._width + 8:
                    continue  # of a Service that is gone, or that was not asked for
                found[reason, name] = found.get((reason, name), 0) + each.packets
        return found


COUNTING = frozenset({CONNECTIONS, TRAFFIC, REPLIES, *_REFUSED.values()})
"""The sets that packets fill."""
