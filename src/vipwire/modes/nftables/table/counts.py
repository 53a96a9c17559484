"""Chooses the table's counters and converts them to counts of Service ports. Pure.

Rules count into dynamic sets beside the Services' elements. So no change of a Service resets a count, counts survive
a restart of vipwire, and counting costs a sync nothing.

    connections        at postrouting, or at input for this node: only the first packet of a connection passes, once,
                       after the choice of its endpoint
    traffic, -replies  every packet of these connections, where it enters the node; only on request
    refused-...        dropped or rejected packets, by reason, in the chain that refuses them

A key is the frontend's address and port as the client sent them, and the endpoint's address and port. Elements expire
a day after their last packet. If a set is full, new pairs are not counted: a failed `update` ends only its own rule.
"""

from collections.abc import Container, Iterable, Iterator, Mapping

from vipwire.config.sections import CounterLevel
from vipwire.linux.netlink.nftables.elements import ElementCounter
from vipwire.model.names import ServicePortName
from vipwire.model.net import Address, Family, Protocol
from vipwire.modes.nftables.language import SetSpec
from vipwire.modes.nftables.table.names import SRCNAT, Chain, Hook, encode_frontend
from vipwire.plan.plan import FrontendKey, RangeFrontend, ServicePlan
from vipwire.reconcile.counts import Counts, EndpointName, Measure, Refusal

SIZE = 1 << 18
"""The limit of counted pairs of a frontend and an endpoint."""
_DAY, _HOUR = 86_400, 3_600
CONNECTIONS = "connections"
_PAIRS = {
    CONNECTIONS: (Measure.CONNECTIONS, None),
    "traffic": (Measure.PACKETS, Measure.BYTES),
    "traffic-replies": (Measure.REPLY_PACKETS, Measure.REPLY_BYTES),
}
"""The sets of pairs, with the measures of their packets and bytes."""
_REFUSED = {
    Refusal.NO_ENDPOINTS: "refused-no-endpoint",
    Refusal.NO_LOCAL_ENDPOINTS: "refused-no-local-endpoint",
    Refusal.SOURCE_RANGE: "refused-source",
    Refusal.NODE_PORT_SOURCE_RANGE: "refused-nodeport-source",
    Refusal.UNDEFINED_PORT: "refused-undefined-port",
    Refusal.UNALLOCATED_CLUSTER_IP: "refused-unallocated",
}
COUNTING = frozenset({*_PAIRS, *_REFUSED.values()})
"""The sets that rules fill with counts."""


def list_counting_sets(family: Family) -> Iterator[SetSpec]:
    """Declare the sets for counts. All are declared always; without rules that fill them they stay empty."""
    ip = "ip" if family is Family.IPV4 else "ip6"
    address = "ipv4_addr" if family is Family.IPV4 else "ipv6_addr"
    pair = (address, "inet_proto", "inet_service", address, "inet_service")
    for name in _PAIRS:
        yield _build_counting_set(name, pair)
    for reason, name in _REFUSED.items():
        yield _build_counting_set(name, _choose_refused_key(ip, reason))


def _build_counting_set(name: str, key: tuple[str, ...]) -> SetSpec:
    flags = frozenset({"dynamic", "timeout"})
    return SetSpec(name, key, flags=flags, timeout_seconds=_DAY, gc_seconds=_HOUR, size=SIZE, counter=True)


def _choose_refused_key(ip: str, reason: Refusal) -> tuple[str, ...]:
    """Return the key that counts a refusal: no part that clients choose freely, such as a port or a free address."""
    match reason:
        case Refusal.UNDEFINED_PORT:
            return (f"{ip} daddr",)
        case Refusal.UNALLOCATED_CLUSTER_IP:
            return ("meta l4proto",)
    return (f"{ip} daddr", "meta l4proto", "th dport")


def build_refusal_chain(family: Family, reason: Refusal, counters: CounterLevel) -> tuple[str, Chain]:
    """Write the chain that counts and refuses, with its name.

    Counting is a separate rule, because a full set must not prevent the refusal.
    """
    verdict = "drop" if reason.is_drop else "goto reject-chain"
    ip = "ip" if family is Family.IPV4 else "ip6"
    count = f"update @{_REFUSED[reason]} {{ {' . '.join(_choose_refused_key(ip, reason))} }}"
    return _REFUSED[reason], Chain((count, verdict) if counters else (verdict,))


def name_refused_set(reason: Refusal) -> str:
    return _REFUSED[reason]


_COUNT = "ct status dnat jump count-"


def build_connection_chains(family: Family, counters: CounterLevel) -> Iterator[tuple[str, Chain]]:
    """Write the chains that count a connection at its first packet's output, or input on this node."""
    if not counters:
        return
    yield "count-connection", Chain(tuple(_write_counting_rules(family, CONNECTIONS)))
    # A connection that ends here passes this hook; one that also began here was counted at output, so the kernel
    # tries each once.
    yield "nat-input", Chain((COUNT_CONNECTION,), Hook("nat", "input", SRCNAT))


COUNT_CONNECTION = f"{_COUNT}connection"
"""The counting rule that stands before masquerading."""


def build_traffic_chains(family: Family, counters: CounterLevel) -> Iterator[tuple[str, Chain]]:
    """Write the chains that count every packet once: behind DNAT, at prerouting or output."""
    if counters is not CounterLevel.TRAFFIC:
        return
    ways = (("original", "traffic", "traffic"), ("reply", "replies", "traffic-replies"))
    for _, name, table in ways:
        yield f"count-{name}", Chain(tuple(_write_counting_rules(family, table)))
    rules = tuple(f"ct direction {way} {_COUNT}{name}" for way, name, _ in ways)
    # A local process's packet to this node passes output and prerouting: count it at output.
    entering = tuple(f'iifname != "lo" {rule}' for rule in rules)
    yield "filter-prerouting-traffic", Chain(entering, Hook("filter", "prerouting", -90))
    yield "filter-output-traffic", Chain(rules, Hook("filter", "output", -90))


def counted_by(chains: Container[str]) -> CounterLevel:
    if "filter-prerouting-traffic" in chains:
        return CounterLevel.TRAFFIC
    return CounterLevel.CONNECTIONS if "count-connection" in chains else CounterLevel.NOTHING


def _write_counting_rules(family: Family, table: str) -> Iterator[str]:
    """Write the counting rules, with connection tracking's original destination and the replying endpoint.

    One rule for each protocol, because nft needs the protocol to load a port.
    """
    ip = "ip" if family is Family.IPV4 else "ip6"
    key = f"ct original {ip} daddr . meta l4proto . ct original proto-dst . ct reply {ip} saddr . ct reply proto-src"
    for protocol in Protocol:
        yield f"meta l4proto {protocol.label} update @{table} {{ {key} }}"


def count_by_service(
    family: Family, plans: Iterable[ServicePlan], tables: Mapping[str, Iterable[ElementCounter]], *, endpoints: bool
) -> Counts:
    """Convert elements to counts; `tables` maps each set's name to its elements."""
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
    """Finds the Service port and the endpoint of a key."""

    def __init__(self, family: Family, plans: Iterable[ServicePlan]) -> None:
        self._width = family.bits // 8
        self.frontend_size = self._width + 8
        self._names: dict[bytes, ServicePortName] = {}
        self._ranges: dict[bytes, list[RangeFrontend]] = {}
        for plan in plans:
            for frontend in plan.frontends:
                self._names[encode_frontend(frontend.key)] = frontend.port_name
            for wide in plan.ranges:
                place = encode_frontend(FrontendKey(wide.key.address, wide.key.protocol, 0))[: self._width + 4]
                self._ranges.setdefault(place, []).append(wide)

    def find(self, frontend: bytes) -> ServicePortName | None:
        """Return the Service port of a frontend's key, whose address may be the node's."""
        found = self._names.get(frontend) or self._names.get(frontend[self._width :])
        wide = self._find_range(frontend) if found is None and self._ranges else None
        return found if wide is None else wide.frontend.port_name

    def _find_range(self, frontend: bytes) -> RangeFrontend | None:
        port = int.from_bytes(frontend[self._width + 4 : self._width + 6])
        found = self._ranges.get(frontend[: self._width + 4], ())
        return next((wide for wide in found if wide.key.first <= port <= wide.key.last), None)

    def endpoint(self, pair: bytes) -> EndpointName | None:
        """Return the endpoint of a pair's key; None if these Services lack the frontend.

        A scrape can call this for 100,000 pairs.
        """
        frontend, last = pair[: self.frontend_size], self.frontend_size + self._width
        name = self._names.get(frontend) or self.find(frontend)
        if name is None:
            return None
        port = int.from_bytes(pair[last : last + 2])
        wide = self._find_range(frontend) if self._ranges and frontend not in self._names else None
        if wide is not None and frontend[self._width + 4 :][:2] == port.to_bytes(2):
            port = wide.frontend.key.port  # this endpoint keeps the packet's port: its name has the Service's port
        return EndpointName(name, Address(pair[self.frontend_size : last]), port)
