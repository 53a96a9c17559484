"""The kinds of ipvs mode's objects and their names, which are kube-proxy's where kube-proxy has the same object.

    VirtualServer   -> Scheduling       a VIP, a node port on one address, or a mark
    RealServer      -> Forwarding
    Vip             -> None             an address on kube-ipvs0
    MarkRule        -> None             a routing rule for packets with a mark
    Route           -> None             a local route in the routing table of marks
    Receiver        -> Method           a Pod that accepts packets to a VIP
    Ipset           -> IpsetSpec        None for a set of another type or family
    Entry           -> mark             an element of a set; 0 without a mark
    ChainName       -> rules            as iptables-save prints them; of a built-in chain only the jumps to vipwire's
    RangeRule       -> how often        a rule of a port range, in a chain without other rules

vipwire owns the virtual servers that an element of its sets names. So elements come before virtual servers and go
after them, and vipwire never touches any other virtual server.
"""

import enum
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple, TypeAlias

from vipwire.linux.netlink.ipset import IpsetEntry, IpsetSpec, SetType
from vipwire.linux.netlink.ipvs import Forwarding, Method, RealServer, Scheduling, VirtualServer
from vipwire.model.net import Address, Family, Prefix, Protocol, format_address, format_endpoint
from vipwire.modes.xtables.save import ChainName

DEVICE: Final = "kube-ipvs0"
TUNNELS: Final = {Family.IPV4: "vipwire-tunnel4", Family.IPV6: "vipwire-tunnel6"}
"""The tunnel devices in Pods, one for each family, because one kind of tunnel carries one family."""
ROUTE_TABLE: Final = 78
"""The routing table for marked packets; kube-router uses the same number."""
RULE_PRIORITY: Final = 32764
BESIDE: Final = {Family.IPV4: "KUBE-REPLACEMENT", Family.IPV6: "KUBE-6-REPLACEMENT"}
"""The name of a set that is about to replace another."""


class Vip(NamedTuple):
    """An address on kube-ipvs0, which brings packets to IPVS."""

    address: Address


class MarkRule(NamedTuple):
    """A routing rule: packets with this mark use ROUTE_TABLE first."""

    mark: int


class VipRoute(NamedTuple):
    """A local route of ROUTE_TABLE: brings packets for an address that this node does not have to IPVS.

    The field `table` keeps it different from a `Vip`, because tuples with equal fields are equal.
    """

    address: Address
    table: int = ROUTE_TABLE


class Receiver(NamedTuple):
    """A local Pod that accepts packets for a VIP; see `direct_return`."""

    pod: Address
    vip: Address


class Ipset(NamedTuple):
    """An ipset."""

    set: str


class SetEntry(NamedTuple):
    """An element of an ipset."""

    set: str
    element: IpsetEntry


class RangeRule(NamedTuple):
    """A rule, in the words of iptables-save without `-A CHAIN`.

    Its target decides its place in the chain; see `must_precede`. `stray`: the kernel has the rule at a wrong place.
    """

    table: str
    chain: str
    words: str
    stray: bool = False


Rules: TypeAlias = tuple[str, ...]
ObjectKey: TypeAlias = (
    VirtualServer | RealServer | Vip | MarkRule | VipRoute | Receiver | Ipset | SetEntry | ChainName | RangeRule
)
Object: TypeAlias = Scheduling | Forwarding | Method | IpsetSpec | Rules | int | None


class Set(enum.Enum):
    """The ipsets; the value is the IPv4 name. kube-proxy lacks the last nine."""

    LOOP_BACK = "KUBE-LOOP-BACK"
    CLUSTER_IP = "KUBE-CLUSTER-IP"
    EXTERNAL_IP = "KUBE-EXTERNAL-IP"
    EXTERNAL_IP_LOCAL = "KUBE-EXTERNAL-IP-LOCAL"
    LOAD_BALANCER = "KUBE-LOAD-BALANCER"
    LOAD_BALANCER_LOCAL = "KUBE-LOAD-BALANCER-LOCAL"
    LOAD_BALANCER_FW = "KUBE-LOAD-BALANCER-FW"
    SOURCE_CIDR = "KUBE-LOAD-BALANCER-SOURCE-CIDR"
    SOURCE_IP = "KUBE-LOAD-BALANCER-SOURCE-IP"
    NODE_PORT_TCP = "KUBE-NODE-PORT-TCP"
    NODE_PORT_LOCAL_TCP = "KUBE-NODE-PORT-LOCAL-TCP"
    NODE_PORT_UDP = "KUBE-NODE-PORT-UDP"
    NODE_PORT_LOCAL_UDP = "KUBE-NODE-PORT-LOCAL-UDP"
    NODE_PORT_SCTP = "KUBE-NODE-PORT-SCTP-HASH"
    NODE_PORT_LOCAL_SCTP = "KUBE-NODE-PORT-LOCAL-SCTP-HASH"
    HEALTH_CHECK = "KUBE-HEALTH-CHECK-NODE-PORT"
    IPVS_IPS = "KUBE-IPVS-IPS"
    LOCAL_POOL = "KUBE-LOCAL-POOL"
    LOCAL_POOL_NODE = "KUBE-LOCAL-POOL-NODE"
    NO_LOCAL_ENDPOINTS = "KUBE-NO-LOCAL-ENDPOINTS"
    NO_ENDPOINTS = "KUBE-NO-ENDPOINTS"
    ROUTED = "KUBE-ROUTED"
    NODE_NO_ENDPOINTS = "KUBE-NODE-NO-ENDPOINTS"
    DIRECT_RETURN = "KUBE-DIRECT-RETURN"
    RANGES = "KUBE-RANGES"
    RANGES_LOCAL = "KUBE-RANGES-LOCAL"


_TYPES: Final = {
    Set.LOOP_BACK: SetType.ADDRESS_PORT_ADDRESS,
    Set.SOURCE_CIDR: SetType.ADDRESS_PORT_PREFIX,
    Set.SOURCE_IP: SetType.ADDRESS_PORT_ADDRESS,
    Set.NODE_PORT_TCP: SetType.PORT,
    Set.NODE_PORT_LOCAL_TCP: SetType.PORT,
    Set.NODE_PORT_UDP: SetType.PORT,
    Set.NODE_PORT_LOCAL_UDP: SetType.PORT,
    Set.HEALTH_CHECK: SetType.PORT,
    Set.IPVS_IPS: SetType.ADDRESS,
}


def set_name(family: Family, which: Set) -> str:
    """Return the name of a family's set: `KUBE-6-…` for IPv6, cut to the kernel's limit as kube-proxy cuts it."""
    name = which.value
    return name if family is Family.IPV4 else f"KUBE-6-{name.removeprefix('KUBE-')}"[:31]


def set_spec(which: Set) -> IpsetSpec:
    return IpsetSpec(_TYPES.get(which, SetType.ADDRESS_PORT), which in MARKING)


MARKING: Final = frozenset({Set.LOCAL_POOL, Set.LOCAL_POOL_NODE, Set.DIRECT_RETURN, Set.RANGES, Set.RANGES_LOCAL})
"""The sets whose elements carry the mark of a virtual server.

For the last two the rules set the mark, because no set holds port ranges; their elements only mark a virtual server
as vipwire's.
"""

OWNING: Final = (
    Set.CLUSTER_IP,
    Set.EXTERNAL_IP,
    Set.EXTERNAL_IP_LOCAL,
    Set.LOAD_BALANCER,
    Set.NODE_PORT_TCP,
    Set.NODE_PORT_LOCAL_TCP,
    Set.NODE_PORT_UDP,
    Set.NODE_PORT_LOCAL_UDP,
    Set.NODE_PORT_SCTP,
    Set.NODE_PORT_LOCAL_SCTP,
    Set.ROUTED,
)
"""The sets whose elements mark a virtual server as vipwire's."""

PORT_PROTOCOLS: Final = {
    Set.NODE_PORT_TCP: 6,
    Set.NODE_PORT_LOCAL_TCP: 6,
    Set.NODE_PORT_UDP: 17,
    Set.NODE_PORT_LOCAL_UDP: 17,
}
"""The protocol of each set that holds only ports."""


def owning_entries(family: Family, keys: Iterable[ObjectKey]) -> Iterator[tuple[Set, IpsetEntry]]:
    """Yield the set elements that mark a virtual server of this family as vipwire's."""
    owning = {set_name(family, which): which for which in OWNING}
    for key in keys:
        if isinstance(key, SetEntry) and (which := owning.get(key.set)) is not None:
            yield which, key.element


def describe_object(key: ObjectKey) -> str:
    if isinstance(key, VirtualServer | RealServer):
        return describe_server(key)
    if isinstance(key, Ipset | SetEntry | ChainName | RangeRule):
        return _describe_rules(key)
    match key:
        case Vip(address):
            return f"VIP {format_address(address)}"
        case MarkRule(mark):
            return f"ip rule fwmark {mark:#x}"
        case VipRoute(address, table):
            return f"ip route local {format_address(address)} table {table}"
        case Receiver(pod, vip):
            return f"{format_address(vip)} in the Pod {format_address(pod)}"


def _describe_rules(key: Ipset | SetEntry | ChainName | RangeRule) -> str:
    match key:
        case Ipset(name):
            return f"ipset {name}"
        case SetEntry(name, element):
            return f"ipset {name} {describe_element(element)}"
        case ChainName(table, chain):
            return f"iptables -t {table} chain {chain}"
        case RangeRule(table, chain, words):
            return f"iptables -t {table} -A {chain} {words}"


def describe_server(key: VirtualServer | RealServer) -> str:
    if isinstance(key, RealServer):
        return f"{describe_server(key.server)} -> {format_endpoint(key.address, key.port)}"
    if key.mark:
        return f"FWM {key.mark}"
    return f"{Protocol(key.protocol).name} {format_endpoint(key.address, key.port)}"


def describe_element(element: IpsetEntry) -> str:
    parts = [format_address(element.address)] if element.address else []
    if element.port:
        label = f"{Protocol(element.protocol).label}:" if element.protocol else ""
        parts.append(f"{label}{element.port}")
    if isinstance(element.other, Prefix):
        parts.append(str(element.other))
    elif element.other is not None:
        parts.append(format_address(element.other))
    return ",".join(parts)
