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

from collections.abc import Container, Iterable, Iterator, Mapping

from vipwire.config.sections import CounterLevel
from vipwire.linux.netlink.nftables.elements import ElementCounter
from vipwire.model.names import ServicePortName
from vipwire.model.net import Address, Family, Protocol
from vipwire.modes.nftables.language import SetSpec
from vipwire.modes.nftables.table.names import SRCNAT, Chain, Hook, frontend_bytes
from vipwire.plan.plan import FrontendKey, RangeFrontend, ServicePlan
from vipwire.reconcile.counts import Counts, EndpointName, Measure, Refusal

SIZE = 1 << 18
"""The most pairs of a frontend and an endpoint that are counted."""
_DAY, _HOUR = 86_400, 3_600
CONNECTIONS = "connections"
_PAIRS = {
    CONNECTIONS: (Measure.CONNECTIONS, None),
    "traffic": (Measure.PACKETS, Measure.BYTES),
    "traffic-replies": (Measure.REPLY_PACKETS, Measure.REPLY_BYTES),
}
"""The sets whose elements are pairs, with what their packets and bytes are."""
_REFUSED = {
    Refusal.NO_ENDPOINTS: "refused-no-endpoint",
    Refusal.NO_LOCAL_ENDPOINTS: "refused-no-local-endpoint",
    Refusal.SOURCE_RANGE: "refused-source",
    Refusal.NODE_PORT_SOURCE_RANGE: "refused-nodeport-source",
    Refusal.UNDEFINED_PORT: "refused-undefined-port",
    Refusal.UNALLOCATED_CLUSTER_IP: "refused-unallocated",
}
COUNTING = frozenset({*_PAIRS, *_REFUSED.values()})
"""The sets that packets fill."""


def counting_sets(family: Family) -> Iterator[SetSpec]:
    """Declare the sets that count. They are declared in any case: without rules that fill them they stay empty."""
    ip = "ip" if family is Family.IPV4 else "ip6"
    address = "ipv4_addr" if family is Family.IPV4 else "ipv6_addr"
    pair = (address, "inet_proto", "inet_service", address, "inet_service")
    for name in _PAIRS:
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
    ways = (("original", "traffic", "traffic"), ("reply", "replies", "traffic-replies"))
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


def counts(
    family: Family, plans: Iterable[ServicePlan], tables: Mapping[str, Iterable[ElementCounter]], *, endpoints: bool
) -> Counts:
    """Convert the sets' elements to counts; `tables` has them by the set's name."""
    found, ports = Counts(endpoints=endpoints), _Ports(family, plans)
    for table, (packets, size) in _PAIRS.items():
        for element in tables.get(table, ()):
            endpoint = ports.endpoint(element.key)
            if endpoint is not None:
                found.add_endpoint(packets, endpoint, element.packets)
                if size is not None:
                    found.add_endpoint(size, endpoint, element.bytes)
    for reason, table in _REFUSED.items():
        for element in tables.get(table, ()):
            port = ports.find(element.key)
            of_a_frontend = len(element.key) == ports.frontend_size
            if port is not None or not of_a_frontend:  # else the Service is gone, or not asked for
                found.add(reason, port, element.packets)
    return found


class _Ports:
    """Finds the Service port and the endpoint that a key names."""

    def __init__(self, family: Family, plans: Iterable[ServicePlan]) -> None:
        self._width = family.bits // 8
        self.frontend_size = self._width + 8
        self._names: dict[bytes, ServicePortName] = {}
        self._ranges: dict[bytes, list[RangeFrontend]] = {}
        for plan in plans:
            for frontend in plan.frontends:
                self._names[frontend_bytes(frontend.key)] = frontend.port_name
            for wide in plan.ranges:
                place = frontend_bytes(FrontendKey(wide.key.address, wide.key.protocol, 0))[: self._width + 4]
                self._ranges.setdefault(place, []).append(wide)

    def find(self, frontend: bytes) -> ServicePortName | None:
        """Find the Service port of a frontend's key, whose address may be the node's."""
        found = self._names.get(frontend) or self._names.get(frontend[self._width :])
        wide = self._range(frontend) if found is None and self._ranges else None
        return found if wide is None else wide.frontend.port_name

    def _range(self, frontend: bytes) -> RangeFrontend | None:
        port = int.from_bytes(frontend[self._width + 4 : self._width + 6])
        found = self._ranges.get(frontend[: self._width + 4], ())
        return next((wide for wide in found if wide.key.first <= port <= wide.key.last), None)

    def endpoint(self, pair: bytes) -> EndpointName | None:
        """Find the endpoint of a pair's key; None if the frontend is of none of these Services.

        100,000 pairs pass here at a scrape.
        """
        frontend, last = pair[: self.frontend_size], self.frontend_size + self._width
        name = self._names.get(frontend) or self.find(frontend)
        if name is None:
            return None
        port = int.from_bytes(pair[last : last + 2])
        wide = self._range(frontend) if self._ranges and frontend not in self._names else None
        if wide is not None and frontend[self._width + 4 :][:2] == port.to_bytes(2):
            port = wide.frontend.key.port  # this endpoint keeps the packet's port: it is known by the Service's
        return EndpointName(name, Address(pair[self.frontend_size : last]), port)
