"""Writes a port range (`vipwire.io/port-range`): virtual servers of marks, and rules that set the mark. Pure.

Only the virtual server of a mark takes several ports; a real server with port 0 keeps the packet's port. An ipset
would need one element for each port, so each range has rules, in chains without other rules:

    mangle  KUBE-IPVS-RANGES       sets the mark, or that of clients on this node if they have a separate pool
            -LOCAL                 sets the mark of this node's pool for clients outside
            -SEGMENTS              limits the TCP segment size of direct return
    nat     KUBE-IPVS-RANGES       marks for masquerading, and accepts
            -HAIRPIN               masquerades Pods that reach themselves
    filter  KUBE-IPVS-RANGES       passes packets to served ports of kube-ipvs0
            -NO-ENDPOINTS          refuses packets to ranges without endpoints
    both    -FIREWALL              source ranges; both: filter, and mangle for local processes, as in `skeleton`
            -NO-LOCAL              drops packets without an endpoint on this node
"""

from collections.abc import Iterator
from typing import Final

from vipwire.model.net import Family
from vipwire.modes.ipvs.objects.names import RangeRule
from vipwire.modes.xtables.save import find_rule_target
from vipwire.modes.xtables.words import LOCAL_SOURCE, NEW, format_host, format_ports, match_service_port
from vipwire.plan.plan import Drop, Forward, FrontendKind, RangeFrontend, Reject

LOCAL_MARKS: Final = "KUBE-IPVS-RANGES-LOCAL"
MARKS: Final = "KUBE-IPVS-RANGES"
SEGMENTS: Final = "KUBE-IPVS-RANGES-SEGMENTS"
HAIRPIN: Final = "KUBE-IPVS-RANGES-HAIRPIN"
FIREWALL: Final = "KUBE-IPVS-RANGES-FIREWALL"
NO_LOCAL: Final = "KUBE-IPVS-RANGES-NO-LOCAL"
NO_ENDPOINTS: Final = "KUBE-IPVS-RANGES-NONE"
NOBODY: Final = "KUBE-IPVS-RANGES-REFUSE"
STRAYS: Final = "KUBE-IPVS-REFUSE"
_FILTERS: Final = ("mangle", "filter")
DYNAMIC: Final = frozenset(
    {
        *(("mangle", chain) for chain in (MARKS, LOCAL_MARKS, SEGMENTS, FIREWALL, NO_LOCAL)),
        *(("nat", chain) for chain in (MARKS, HAIRPIN)),
        *(("filter", chain) for chain in (MARKS, FIREWALL, NO_LOCAL, NO_ENDPOINTS)),
    }
)
"""The chains that hold `RangeRule`s."""
_LAST: Final = frozenset({"ACCEPT", "DROP", STRAYS})


def must_precede(words: str) -> bool:
    """Report whether a rule has to precede the rules that end the chain."""
    return find_rule_target(words) not in _LAST


def compute_maximum_segment(family: Family) -> int:
    """Return the TCP segment size for a link of 1500 bytes with two IP headers of this family."""
    return 1440 if family is Family.IPV4 else 1400


def build_mark_rule(wide: RangeFrontend, mark: int, *, local: bool = False) -> RangeRule:
    """Mark packets to a range; `local`: only those of clients outside."""
    words = _match_range(wide)
    return RangeRule("mangle", LOCAL_MARKS if local else MARKS, f"{words} -j MARK --set-xmark {mark:#x}/0xffffffff")


def build_segment_rule(wide: RangeFrontend, family: Family) -> RangeRule:
    """Limit the TCP segment size of connections with direct return."""
    key = wide.key
    ports = format_ports(key.first, key.last)
    words = f"-s {format_host(key.address)} -p tcp -m tcp --sport {ports} --tcp-flags SYN,RST SYN"
    return RangeRule("mangle", SEGMENTS, f"{words} -j TCPMSS --set-mss {compute_maximum_segment(family)}")


def build_nat_rules(wide: RangeFrontend) -> Iterator[RangeRule]:
    """Mark packets for masquerading, as KUBE-SERVICES does for a single port; then accept, which ends table nat."""
    frontend, here = wide.frontend, format_host(wide.key.address)
    if frontend.kind is FrontendKind.CLUSTER_IP:
        # A local process without a bound source has the VIP itself as its source.
        yield RangeRule("nat", MARKS, f"{_match_range(wide, source=f'-s {here}')} -j KUBE-MARK-MASQ")
        yield RangeRule("nat", MARKS, f"{_match_range(wide)} -j KUBE-CLUSTER-IP")
    elif frontend.short_circuit is None:
        yield RangeRule("nat", MARKS, f"{_match_range(wide)} -j KUBE-MARK-MASQ")
    else:
        yield RangeRule("nat", MARKS, f"{_match_range(wide, LOCAL_SOURCE)} -j KUBE-MARK-MASQ")
    yield RangeRule("nat", MARKS, f"{_match_range(wide)} -j ACCEPT")


def build_hairpin_rules(wide: RangeFrontend, forward: Forward) -> Iterator[RangeRule]:
    """Masquerade endpoints that reach themselves at the port of the endpoint."""
    for each in forward.pool:
        if wide.keeps_port(each):
            words = match_service_port(
                wide.key.protocol,
                format_ports(wide.key.first, wide.key.last),
                str(wide.frontend.port_name),
                address=each.address,
                source=f"-s {format_host(each.address)}",
            )
            yield RangeRule("nat", HAIRPIN, f"{words} -j MASQUERADE")


def build_filter_rules(wide: RangeFrontend, *, own: bool, bound: bool) -> Iterator[RangeRule]:
    """Pass, refuse or drop packets to a range.

    `bound`: the address is on kube-ipvs0, where other ports are refused. `own`: the address is the node's, where a
    range without endpoints leaves packets to local sockets.
    """
    frontend = wide.frontend
    if isinstance(frontend.action, Reject) and not own:
        yield RangeRule("filter", NO_ENDPOINTS, f"{_match_range(wide, NEW)} -j {NOBODY}")
    elif bound:
        yield RangeRule("filter", MARKS, f"{_match_range(wide)} -j RETURN")
    if isinstance(frontend.action, Drop):
        to = "DROP" if frontend.kind is FrontendKind.CLUSTER_IP else "KUBE-NO-LOCAL-ENDPOINTS"
        yield from (RangeRule(table, NO_LOCAL, f"{_match_range(wide, NEW)} -j {to}") for table in _FILTERS)
    if frontend.allowed_sources is None:
        return
    for table in _FILTERS:
        for prefix in frontend.allowed_sources:
            source = f"-s {prefix}" if prefix.length else ""
            yield RangeRule(table, FIREWALL, f"{_match_range(wide, source=source)} -j RETURN")
        yield RangeRule(table, FIREWALL, f"{_match_range(wide)} -j DROP")


def _match_range(wide: RangeFrontend, *matches: str, source: str = "") -> str:
    key = wide.key
    span = format_ports(key.first, key.last)
    return match_service_port(
        key.protocol, span, str(wide.frontend.port_name), *matches, address=key.address, source=source
    )
