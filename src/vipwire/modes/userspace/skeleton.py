"""Writes the constant part of userspace mode: its chains, and the jumps to them.

    nat     PREROUTING ▶ KUBE-PORTALS-CONTAINER ▶ (Pods) KUBE-PORTALS-POD
            OUTPUT     ▶ KUBE-PORTALS-HOST
            PREROUTING ▶ KUBE-NODEPORT-CONTAINER ▶ (Pods) KUBE-NODEPORT-POD      for node port addresses
            OUTPUT     ▶ KUBE-NODEPORT-HOST
    filter  INPUT      ▶ KUBE-NODEPORT-NON-LOCAL    accept packets to node ports
            INPUT      ▶ KUBE-NODEPORT-FILTER       node ports that refuse or drop
            INPUT, FORWARD, OUTPUT ▶ KUBE-PORTALS-FILTER ▶ KUBE-PORTALS-DROP, KUBE-PORTALS-REJECT, else drop packets
                                     to a ServiceCIDR: DNAT has changed the address of served ones
                                     ▶ KUBE-PORTALS-OWN  addresses of this node: return for served node ports, else
                                       ▶ KUBE-PORTALS-OWN-DENY

Only the order of `first` rules before others matters.
"""

from collections.abc import Iterator

from vipwire.model.net import Family, Protocol
from vipwire.modes.userspace import names
from vipwire.modes.userspace.names import CHAINS, FILTER, NAT, NO_SUCH_SERVICE, Key, Rule, Rules, Value
from vipwire.modes.userspace.settings import Bind, Choices
from vipwire.modes.xtables.save import ChainName
from vipwire.modes.xtables.words import (
    LOCAL_DESTINATION,
    LOOPBACK,
    NEW,
    format_prefix,
    join_rule,
    match_comment,
    match_pod_traffic,
    write_reject_target,
)
from vipwire.plan.node import NodePlan

_PORTALS_NOTE = "handle ClusterIPs; NOTE: this must be before the NodePort rules"
_NODEPORT_NOTE = "handle service NodePorts; NOTE: this must be the last rule in the chain"
_NON_LOCAL_NOTE = "Ensure that non-local NodePort traffic can flow"
_FILTER_NOTE = "kubernetes service portals that answer nobody"


def build_node_objects(node: NodePlan, choices: Choices) -> dict[Key, Value]:
    if choices.bind is not Bind.RULES:
        return {}
    fixed = {names.REFUSE: _build_refusals(node.family), names.PORTALS_FILTER: _build_portal_filter(node)}
    objects: dict[Key, Value] = {
        ChainName(table, chain): fixed.get(chain) for table, chains in CHAINS.items() for chain in chains
    }
    objects.update((rule, 1) for rule in _build_jumps(node, loopback=serves_loopback(node, choices)))
    objects[Rule(FILTER, names.PORTALS_OWN, f"-j {names.PORTALS_OWN_DENY}")] = 1
    for pods in match_pod_traffic(node.pod_traffic):
        objects[Rule(NAT, names.PORTALS_CONTAINER, f"{pods} -j {names.PORTALS_POD}", first=True)] = 1
        objects[Rule(NAT, names.NODEPORT_CONTAINER, f"{pods} -j {names.NODEPORT_POD}", first=True)] = 1
    return objects


def _build_jumps(node: NodePlan, *, loopback: bool) -> Iterator[Rule]:
    portals, filtering = match_comment(_PORTALS_NOTE), match_comment(_FILTER_NOTE)
    yield Rule(NAT, "PREROUTING", f"{portals} -j {names.PORTALS_CONTAINER}", first=True)
    yield Rule(NAT, "OUTPUT", f"{portals} -j {names.PORTALS_HOST}", first=True)
    yield Rule(FILTER, "INPUT", f"{match_comment(_NON_LOCAL_NOTE)} -j {names.NODEPORT_NON_LOCAL}", first=True)
    for chain in ("INPUT", "FORWARD", "OUTPUT"):
        yield Rule(FILTER, chain, f"{NEW} {filtering} -j {names.PORTALS_FILTER}", first=True)
    ports = match_comment(_NODEPORT_NOTE)
    for prefix in node.node_port_addresses:
        where = format_prefix(prefix) if loopback or prefix.length else f"! -d {LOOPBACK[node.family]}"
        yield Rule(NAT, "PREROUTING", join_rule(where, LOCAL_DESTINATION, ports, f"-j {names.NODEPORT_CONTAINER}"))
        yield Rule(NAT, "OUTPUT", join_rule(where, LOCAL_DESTINATION, ports, f"-j {names.NODEPORT_HOST}"))
        yield Rule(
            FILTER, "INPUT", join_rule(where, NEW, LOCAL_DESTINATION, f"-j {names.NODEPORT_FILTER}"), first=True
        )


def _build_refusals(family: Family) -> Rules:
    """Refuse clients of a Service without endpoints: TCP by a reset, which fails connect() at once."""
    return tuple(
        f"-p {each.label} {write_reject_target(family, each)}" for each in (Protocol.TCP, Protocol.UDP, Protocol.SCTP)
    )


def _build_portal_filter(node: NodePlan) -> Rules:
    rest = (f"{format_prefix(prefix)} {match_comment(NO_SUCH_SERVICE)} -j DROP" for prefix in node.service_cidrs)
    own = f"{LOCAL_DESTINATION} -j {names.PORTALS_OWN}"
    return (f"-j {names.PORTALS_DROP}", f"-j {names.PORTALS_REJECT}", own, *rest)


def serves_loopback(node: NodePlan, choices: Choices) -> bool:
    """Report whether loopback addresses serve node ports: unless nodePortAddresses excludes them."""
    loopback = LOOPBACK[node.family]
    return choices.localhost_node_ports and any(
        loopback.network in prefix or prefix.network in loopback for prefix in node.node_port_addresses
    )
