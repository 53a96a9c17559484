"""Writes the constant part of iptables mode: the jumps from built-in chains, and chains that no Service changes.

    nat     PREROUTING, OUTPUT      ▶ KUBE-SERVICES ▶ a Service's chains; last rule ▶ KUBE-NODEPORTS
            POSTROUTING             ▶ KUBE-POSTROUTING     masquerade packets that KUBE-MARK-MASQ marked
    filter  INPUT, OUTPUT, FORWARD  ▶ KUBE-PROXY-FIREWALL  drop sources outside loadBalancerSourceRanges
            INPUT                   ▶ KUBE-NODEPORTS       accept health checks of load balancers
            INPUT, OUTPUT, FORWARD  ▶ KUBE-EXTERNAL-SERVICES   refuse external addresses without endpoints
            FORWARD, OUTPUT         ▶ KUBE-SERVICES            refuse ClusterIPs without endpoints
            FORWARD                 ▶ KUBE-FORWARD
            KUBE-SERVICES           ▶ KUBE-CLUSTER-IPS     refuse unserved ports, drop unused ClusterIPs
            KUBE-EXTERNAL-SERVICES  ▶ KUBE-RANGES          see `render`; in nat from the end of KUBE-SERVICES
            INPUT, OUTPUT           ▶ KUBE-FIREWALL        guards 127.0.0.0/8 while route_localnet is 1

kubelet owns KUBE-FIREWALL, too: one rule in it is vipwire's. The empty chain KUBE-PROXY-CANARY disappears from a
table when another program flushes the table.
"""

from collections.abc import Iterator
from typing import Final

from vipwire.model.net import Family, Prefix, Protocol
from vipwire.modes.iptables.rules import names
from vipwire.modes.iptables.rules.names import CHAIN, FILTER, JUMP, NAT, ROOT, TABLES, Key, Rules
from vipwire.modes.iptables.rules.settings import RuleSettings
from vipwire.modes.iptables.rules.words import count_packets
from vipwire.modes.xtables.words import (
    LOCAL_DESTINATION,
    LOOPBACK,
    NEW,
    compute_own_mask,
    format_host,
    format_prefix,
    join_rule,
    match_comment,
    match_pod_traffic,
    write_reject_target,
)
from vipwire.plan.node import NodePlan, PodPrefixes

_JUMPS: Final = (
    (
        FILTER,
        ("OUTPUT", "INPUT", "FORWARD"),
        names.EXTERNAL_SERVICES,
        NEW,
        "kubernetes externally-visible service portals",
    ),
    (FILTER, ("INPUT",), names.NODE_PORTS, "", "kubernetes health check service ports"),
    (FILTER, ("FORWARD", "OUTPUT"), names.SERVICES, NEW, "kubernetes service portals"),
    (FILTER, ("FORWARD",), names.FORWARD, "", "kubernetes forwarding rules"),
    (FILTER, ("INPUT", "OUTPUT", "FORWARD"), names.PROXY_FIREWALL, NEW, "kubernetes load balancer firewall"),
    (NAT, ("OUTPUT", "PREROUTING"), names.SERVICES, "", "kubernetes service portals"),
    (NAT, ("POSTROUTING",), names.POSTROUTING, "", "kubernetes postrouting rules"),
    (FILTER, ("INPUT", "OUTPUT"), names.FIREWALL, "", ""),
)
"""Each is inserted at the top of its chain, in this order, so the last one ends first.

kube-proxy lacks one: KUBE-EXTERNAL-SERVICES in OUTPUT, which refuses local processes like other clients.
"""

FIREWALL_RULE: Final = join_rule(
    f"! -s {LOOPBACK[Family.IPV4]} -d {LOOPBACK[Family.IPV4]}",
    match_comment("block incoming localnet connections"),
    "-m conntrack ! --ctstate RELATED,ESTABLISHED,DNAT -j DROP",
)
"""vipwire's only rule in KUBE-FIREWALL."""


def jump_keys() -> tuple[Key, ...]:
    """Return the keys of all of vipwire's rules in foreign chains, in the order of insertion."""
    firewall = Key(JUMP, FILTER, names.FIREWALL, FIREWALL_RULE)
    jumps = (
        Key(JUMP, table, source, join_rule(match, match_comment(note) if note else "", f"-j {target}"))
        for table, sources, target, match, note in _JUMPS
        for source in sources
    )
    return (firewall, *jumps)


def is_guard(key: Key) -> bool:
    return key.kind == JUMP and names.FIREWALL in (key.chain, str(key.detail).rpartition(" ")[2])


def node_objects(node: NodePlan, settings: RuleSettings) -> dict[Key, Rules]:
    settings = settings.on(node)
    objects: dict[Key, Rules] = {Key(CHAIN, table, names.CANARY): () for table in TABLES}
    objects.update((Key(ROOT, table, chain), ()) for table, chain in names.ROOTS)
    objects[Key(ROOT, FILTER, names.SERVICES)] = tuple(_send_to_cluster_ips(node))
    objects[Key(ROOT, FILTER, names.CLUSTER_IPS)] = tuple(
        # The Service may still come.
        join_rule(format_prefix(prefix), match_comment(names.UNALLOCATED), "-j DROP")
        for prefix in node.service_cidrs
    )
    objects[Key(CHAIN, FILTER, names.NO_SUCH_PORT)] = (
        f"-p tcp {write_reject_target(node.family, Protocol.TCP)}",
        write_reject_target(node.family, None),
    )
    objects[Key(ROOT, NAT, names.SERVICES)] = (*_write_node_ports(node, settings), *_send_to_ranges(node))
    objects[Key(ROOT, FILTER, names.EXTERNAL_SERVICES)] = tuple(_send_to_ranges(node))
    objects[Key(CHAIN, NAT, names.MARK_MASQ)] = (f"-j MARK --set-xmark {compute_own_mask(node.masquerade_mark)}",)
    objects[Key(CHAIN, NAT, names.POSTROUTING)] = _write_postrouting(node, settings)
    objects[Key(CHAIN, FILTER, names.FORWARD)] = _write_forward(node, settings)
    if needs_not_pod_chain(node):
        returns = (f"{pod} -j RETURN" for pod in match_pod_traffic(node.pod_traffic))
        objects[Key(CHAIN, NAT, names.NOT_POD_MASQ)] = (*returns, f"-j {names.MARK_MASQ}")
    for key in jump_keys():
        if settings.localhost_node_ports or not is_guard(key):
            objects[key] = (str(key.detail),)
    return objects


def _send_to_cluster_ips(node: NodePlan) -> Iterator[str]:
    """Send packets that still have a ClusterIP as destination to KUBE-CLUSTER-IPS.

    The nat table did not translate them. If the service CIDRs are known, only their packets pass this chain.
    """
    note = match_comment("kubernetes cluster IPs; NOTE: this must be the last rule in this chain")
    for prefix in node.service_cidrs:
        yield join_rule(format_prefix(prefix), note, f"-j {names.CLUSTER_IPS}")
    if not node.service_cidrs:
        yield f"{note} -j {names.CLUSTER_IPS}"


def _send_to_ranges(node: NodePlan) -> Iterator[str]:
    if node.port_ranges:
        yield f"{match_comment('kubernetes ranges of ports')} -j {names.RANGES}"


def needs_not_pod_chain(node: NodePlan) -> bool:
    """Report whether `not from a Pod` needs a chain: an iptables rule matches one source only."""
    return isinstance(node.pod_traffic, PodPrefixes) and len(node.pod_traffic.prefixes) > 1


def _write_postrouting(node: NodePlan, settings: RuleSettings) -> Rules:
    masquerade = "-j MASQUERADE --random-fully" if settings.random_fully else "-j MASQUERADE"
    return (
        f"-m mark ! --mark {compute_own_mask(node.masquerade_mark)} -j RETURN",
        # Clear the mark: a tunnel sends the packet again, which would masquerade it twice.
        f"-j MARK --set-xmark {node.masquerade_mark:#x}/0x0",
        join_rule(match_comment("kubernetes service traffic requiring SNAT"), masquerade),
    )


def _write_forward(node: NodePlan, settings: RuleSettings) -> Rules:
    invalid = join_rule(
        "-m conntrack --ctstate INVALID", count_packets(names.INVALID_COUNTER) if settings.counters else "", "-j DROP"
    )
    established = "-m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT"
    return (
        *((invalid,) if settings.drop_invalid else ()),
        join_rule(
            match_comment("kubernetes forwarding rules"),
            f"-m mark --mark {compute_own_mask(node.masquerade_mark)} -j ACCEPT",
        ),
        join_rule(match_comment("kubernetes forwarding conntrack rule"), established),
    )


def _write_node_ports(node: NodePlan, settings: RuleSettings) -> Iterator[str]:
    note = match_comment("kubernetes service nodeports; NOTE: this must be the last rule in this chain")
    jump = f"-j {names.NODE_PORTS}"
    loopback = LOOPBACK[node.family]
    for prefix in node.node_port_addresses:
        if prefix.length == 0:
            where = "" if settings.localhost_node_ports else f"! -d {loopback}"
            yield join_rule(where, note, LOCAL_DESTINATION, jump)
        elif prefix.network in loopback:
            if settings.localhost_node_ports:
                yield join_rule(f"-d {prefix}", note, jump)
        elif node.address is not None and prefix == Prefix.host(node.address):
            yield join_rule(f"-d {format_host(node.address)}", note, jump)
        else:
            yield join_rule(format_prefix(prefix), note, LOCAL_DESTINATION, jump)
