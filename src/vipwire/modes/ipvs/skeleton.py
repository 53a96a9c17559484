"""Writes the constant part of ipvs mode: the sets, and the chains with rules that no Service changes.

    mangle  OUTPUT       ▶ KUBE-PROXY-FIREWALL   as in filter, for local processes: IPVS precedes filter OUTPUT
                         ▶ KUBE-NO-ENDPOINTS     counts packets that IPVS will refuse
            both         ▶ KUBE-ROUTED           marks packets to frontends at foreign addresses
            INPUT        ▶ KUBE-LOCAL-POOL       marks packets of clients outside for this node's pool
            both         ▶ KUBE-IPVS-RANGES      marks packets to port ranges; see `ranges`
    nat     PREROUTING, OUTPUT ▶ KUBE-SERVICES   marks for masquerading, by sets
            POSTROUTING  ▶ KUBE-POSTROUTING
    filter  INPUT        ▶ KUBE-PROXY-FIREWALL   source ranges, no local endpoints
                         ▶ KUBE-NODE-PORT        health checks
                         ▶ KUBE-IPVS-FILTER      rejects unserved ports of VIPs, and the host's own
            FORWARD      ▶ KUBE-FORWARD, KUBE-PROXY-FIREWALL
            all three    ▶ KUBE-NO-ENDPOINTS     rejects packets to frontends without endpoints

A packet to a VIP passes mangle, nat PREROUTING, filter INPUT, IPVS, mangle and nat OUTPUT, POSTROUTING. A local
process's packet passes mangle OUTPUT, nat OUTPUT, IPVS, both again with the endpoint's address, POSTROUTING.

Rules have the words of iptables-save, so that vipwire can compare them.
"""

from collections.abc import Iterable
from typing import Final

from vipwire.model.net import Protocol
from vipwire.modes.ipvs.marks import choose_routing_mark
from vipwire.modes.ipvs.objects import ranges
from vipwire.modes.ipvs.objects.names import Ipset, Object, ObjectKey, RangeRule, Rules, Set, set_name, set_spec
from vipwire.modes.xtables.save import ChainName
from vipwire.modes.xtables.words import (
    ANSWERING,
    ASKING,
    LOCAL_DESTINATION,
    LOCAL_SOURCE,
    LOOPBACK,
    NEW,
    compute_own_mask,
    match_comment,
    match_pod_traffic,
    write_reject_target,
)
from vipwire.plan.node import NodePlan

KUBE_PROXYS: Final = frozenset({ChainName("filter", "KUBE-IPVS-OUT-FILTER")})
"""A chain of kube-proxy's ipvs mode that vipwire lacks: frontends with source ranges.

vipwire removes it and its jump.
"""


def build_node_objects(node: NodePlan) -> dict[ObjectKey, Object]:
    objects: dict[ObjectKey, Object] = {Ipset(set_name(node.family, which)): set_spec(which) for which in Set}
    objects.update((ChainName(*chain), ()) for chain in ranges.DYNAMIC)
    objects[RangeRule("filter", ranges.MARKS, f"-j {ranges.STRAYS}")] = 1
    rules = _Rules(node)
    tables = {"mangle": rules.write_mangle(), "nat": rules.write_nat(), "filter": rules.write_filter()}
    for table, chains in tables.items():
        for chain, lines in chains.items():
            objects[ChainName(table, chain)] = tuple(lines)
    return objects


class _Rules:
    """Writes the rules of one family."""

    def __init__(self, node: NodePlan) -> None:
        self._node = node
        self._mark = compute_own_mask(node.masquerade_mark)
        self._routing = choose_routing_mark(node.masquerade_mark)
        self._pods = match_pod_traffic(node.pod_traffic)
        self._segment = ranges.compute_maximum_segment(node.family)

    def write_mangle(self) -> dict[str, Iterable[str]]:
        """Write the chains of table mangle.

        KUBE-DIRECT-RETURN limits the segment size that a client sees, so that its packets fit into the tunnel.
        """
        routed = _write_jump_for_requests("kubernetes addresses of no node", "KUBE-ROUTED")
        direct = _write_jump("kubernetes direct server return", "KUBE-DIRECT-RETURN")  # untracked on the Pod's node
        wide = _write_jump_for_requests("kubernetes port ranges", ranges.MARKS)
        answers = f"-p tcp {self._match_set(Set.DIRECT_RETURN, 'src,src')}"
        others = f"-m set ! --match-set {self._set_name(Set.NODE_NO_ENDPOINTS)} dst,dst"
        return {
            "PREROUTING": [routed, direct, wide],
            "INPUT": [_write_jump_for_requests("kubernetes external traffic policy Local", "KUBE-LOCAL-POOL")],
            "FORWARD": [_write_jump("kubernetes direct server return", "KUBE-DIRECT-SEGMENTS")],
            "OUTPUT": [
                _write_jump("kube-proxy firewall rules", "KUBE-PROXY-FIREWALL"),
                f"{LOCAL_SOURCE} {routed}",
                direct,
                wide,
                _write_jump("kubernetes no endpoints", "KUBE-NO-ENDPOINTS"),
            ],
            # Only counts: IPVS itself refuses local connections without endpoints, silently.
            "KUBE-NO-ENDPOINTS": [f"-p tcp {NEW} {self._match_set(Set.NO_ENDPOINTS)} -j RETURN"],
            "KUBE-ROUTED": [
                # IPVS has sent the packet already: the endpoint's address may be another frontend's.
                f"-m mark --mark {self._routing:#x}/{0xFFFFFFFF ^ self._node.masquerade_mark:#x} -j RETURN",
                # The forward hook rejects the packet: an ICMP error of INPUT could not come from the VIP.
                f"{NEW} {self._match_set(Set.NO_ENDPOINTS)} -j RETURN",
                f"{self._match_set(Set.ROUTED)} -j MARK --set-xmark {self._routing:#x}/0xffffffff",
            ],
            "KUBE-DIRECT-RETURN": [
                f"{ANSWERING} {LOCAL_DESTINATION} -j RETURN",  # an answer to this node's own connection
                f"{self._match_set(Set.NODE_NO_ENDPOINTS)} -j RETURN",  # to node ports, or to local sockets
                f"-j SET --map-set {self._set_name(Set.DIRECT_RETURN)} dst,dst --map-mark",
            ],
            "KUBE-DIRECT-SEGMENTS": [
                f"{answers} -m tcp --tcp-flags SYN,RST SYN -j TCPMSS --set-mss {self._segment}",
                f"-j {ranges.SEGMENTS}",
            ],
            "KUBE-LOCAL-POOL": [
                *(f"{pod} -j RETURN" for pod in self._pods),
                f"{LOCAL_SOURCE} -j RETURN",
                f"{others} -j SET --map-set {self._set_name(Set.LOCAL_POOL_NODE)} dst,dst --map-mark",
                # At an address of the node, node ports come last.
                f"{others} {self._match_set(Set.DIRECT_RETURN)} -j RETURN",
                f"-j SET --map-set {self._set_name(Set.LOCAL_POOL)} dst,dst --map-mark",
                f"-j {ranges.LOCAL_MARKS}",
            ],
            **self._write_firewall(),
        }

    def write_nat(self) -> dict[str, Iterable[str]]:
        portals = _write_jump("kubernetes service portals", "KUBE-SERVICES")
        return {
            "PREROUTING": [portals],
            "OUTPUT": [portals],
            "POSTROUTING": [_write_jump("kubernetes postrouting rules", "KUBE-POSTROUTING")],
            "KUBE-MARK-MASQ": [f"-j MARK --set-xmark {self._mark}"],
            "KUBE-SERVICES": self._write_services(),
            "KUBE-CLUSTER-IP": self._write_cluster_ip(),
            "KUBE-LOAD-BALANCER": [
                f"{self._match_set(Set.LOAD_BALANCER_LOCAL)} {LOCAL_SOURCE} -j KUBE-MARK-MASQ",
                match_comment("Kubernetes service load balancer ip + port with externalTrafficPolicy=local")
                + f" {self._match_set(Set.LOAD_BALANCER_LOCAL)} -j RETURN",
                "-j KUBE-MARK-MASQ",
            ],
            "KUBE-NODE-PORT": self._write_node_port(),
            "KUBE-POSTROUTING": [
                match_comment("Kubernetes endpoints dst ip:port, source ip for solving hairpin purpose")
                + f" {self._match_set(Set.LOOP_BACK, 'dst,dst,src')} -j MASQUERADE",
                f"-j {ranges.HAIRPIN}",
                f"-m mark ! --mark {self._mark} -j RETURN",
                f"-j MARK --set-xmark {self._node.masquerade_mark:#x}/0x0",
                match_comment("kubernetes service traffic requiring SNAT") + " -j MASQUERADE --random-fully",
            ],
        }

    def write_filter(self) -> dict[str, Iterable[str]]:
        firewall = _write_jump("kube-proxy firewall rules", "KUBE-PROXY-FIREWALL")
        nobody = _write_jump("kubernetes no endpoints", "KUBE-NO-ENDPOINTS")
        return {
            "INPUT": [
                firewall,
                nobody,
                _write_jump("kubernetes health check rules", "KUBE-NODE-PORT"),
                _write_jump("kubernetes ipvs access filter", "KUBE-IPVS-FILTER"),
            ],
            "FORWARD": [firewall, nobody, _write_jump("kubernetes forwarding rules", "KUBE-FORWARD")],
            "OUTPUT": [nobody],
            "KUBE-NO-ENDPOINTS": self._reject_without_endpoints(),
            "KUBE-NODE-PORT": [
                match_comment("Kubernetes health check node port")
                + f" {self._match_set(Set.HEALTH_CHECK, 'dst')} -j ACCEPT"
            ],
            "KUBE-IPVS-FILTER": self._protect_host_ports(),
            ranges.NOBODY: self._write_refusal(),
            ranges.STRAYS: self._write_refusal(),
            "KUBE-FORWARD": [
                match_comment("kubernetes forwarding rules") + f" -m mark --mark {self._mark} -j ACCEPT",
                match_comment("kubernetes forwarding conntrack rule")
                + " -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT",
            ],
            **self._write_firewall(),
        }

    def _write_firewall(self) -> dict[str, Iterable[str]]:
        return {
            "KUBE-PROXY-FIREWALL": [
                match_comment("Kubernetes service load balancer ip + port for load balancer with sourceRange")
                + f" {self._match_set(Set.LOAD_BALANCER_FW)} -j KUBE-SOURCE-RANGES-FIREWALL",
                f"-j {ranges.FIREWALL}",
                f"{NEW} {self._match_set(Set.NO_LOCAL_ENDPOINTS)} -j KUBE-NO-LOCAL-ENDPOINTS",
                f"-j {ranges.NO_LOCAL}",
                *self._write_strays(),
            ],
            "KUBE-SOURCE-RANGES-FIREWALL": [
                f"{self._match_set(Set.SOURCE_CIDR, 'dst,dst,src')} -j RETURN",
                f"{self._match_set(Set.SOURCE_IP, 'dst,dst,src')} -j RETURN",
                "-j DROP",
            ],
            "KUBE-NO-LOCAL-ENDPOINTS": [
                match_comment("internalTrafficPolicy Local") + f" {self._match_set(Set.CLUSTER_IP)} -j DROP",
                *(f"{pod} -j RETURN" for pod in self._pods),
                f"{LOCAL_SOURCE} -j RETURN",
                "-j DROP",
            ],
        }

    def _write_strays(self) -> Rules:
        """Drop packets to a ServiceCIDR address that no Service has."""
        cidrs, ips = self._node.service_cidrs, self._set_name(Set.IPVS_IPS)
        served = (f"{self._match_set(which)} -j RETURN" for which in (Set.ROUTED, Set.NO_ENDPOINTS) if cidrs)
        return (*served, *(f"-d {cidr} -m set ! --match-set {ips} dst -j DROP" for cidr in cidrs))

    def _write_services(self) -> Rules:
        cluster = self._match_set(Set.CLUSTER_IP)
        balancer, external = self._match_set(Set.LOAD_BALANCER), self._match_set(Set.EXTERNAL_IP)
        local = self._match_set(Set.EXTERNAL_IP_LOCAL)
        return (
            f"-s {LOOPBACK[self._node.family]} -j RETURN",
            match_comment("Kubernetes service lb portal") + f" {balancer} -j KUBE-LOAD-BALANCER",
            match_comment("Kubernetes service cluster ip + port for masquerade purpose")
            + f" {cluster} -j KUBE-CLUSTER-IP",
            match_comment("Kubernetes service external ip + port for masquerade and filter purpose")
            + f" {external} -j KUBE-MARK-MASQ",
            f"{local} {LOCAL_SOURCE} -j KUBE-MARK-MASQ",
            *(f"{match} -j ACCEPT" for match in (cluster, balancer, external, local)),
            f"-j {ranges.MARKS}",
            f"{LOCAL_DESTINATION} -j KUBE-NODE-PORT",
        )

    def _write_cluster_ip(self) -> Rules:
        """Mark packets to ClusterIPs that come from no Pod.

        A local process without a bound source has the VIP itself as its source.
        """
        if self._node.masquerade_all:
            return ("-j KUBE-MARK-MASQ",)
        own = f"{self._match_set(Set.CLUSTER_IP, 'src,dst')} -j KUBE-MARK-MASQ"
        if self._node.pod_traffic is None:
            return (own,)
        return (own, *(f"{pod} -j RETURN" for pod in self._pods), "-j KUBE-MARK-MASQ")

    def _write_node_port(self) -> Rules:
        rules: list[str] = []
        for protocol, everyone, local, where in (
            ("tcp", Set.NODE_PORT_TCP, Set.NODE_PORT_LOCAL_TCP, "dst"),
            ("udp", Set.NODE_PORT_UDP, Set.NODE_PORT_LOCAL_UDP, "dst"),
            ("sctp", Set.NODE_PORT_SCTP, Set.NODE_PORT_LOCAL_SCTP, "dst,dst"),
        ):
            kept = f"-p {protocol} {self._match_set(local, where)}"
            rules += (
                f"{kept} {LOCAL_SOURCE} -j KUBE-MARK-MASQ",
                f"{kept} -j RETURN",
                f"-p {protocol} {self._match_set(everyone, where)} -j KUBE-MARK-MASQ",
            )
        return tuple(rules)

    def _protect_host_ports(self) -> Rules:
        """Protect the host's own ports at the VIPs; reject ports that no Service serves."""
        passes = (Set.LOAD_BALANCER, Set.CLUSTER_IP, Set.EXTERNAL_IP, Set.EXTERNAL_IP_LOCAL, Set.DIRECT_RETURN)
        others = f"{NEW} {self._match_set(Set.IPVS_IPS, 'dst')}"
        return (
            *(f"{self._match_set(which)} -j RETURN" for which in passes),
            f"{self._match_set(Set.HEALTH_CHECK, 'dst')} -j RETURN",
            f"{others} -j {ranges.MARKS}",
        )

    def _reject_without_endpoints(self) -> Rules:
        """Reject packets to frontends without endpoints, in INPUT and in FORWARD."""
        reset, unreachable = (write_reject_target(self._node.family, protocol) for protocol in (Protocol.TCP, None))
        nobody = f"{NEW} {self._match_set(Set.NO_ENDPOINTS)}"
        return (
            # A reset reaches a client inside connect(); Linux ignores an ICMP error at that point.
            f"-p tcp {nobody} {reset}",
            f"{nobody} {unreachable}",
            f"-j {ranges.NO_ENDPOINTS}",
        )

    def _write_refusal(self) -> Rules:
        reset, unreachable = (write_reject_target(self._node.family, protocol) for protocol in (Protocol.TCP, None))
        return (f"-p tcp {reset}", unreachable)

    def _set_name(self, which: Set) -> str:
        return set_name(self._node.family, which)

    def _match_set(self, which: Set, where: str = "dst,dst") -> str:
        return f"-m set --match-set {self._set_name(which)} {where}"


def _write_jump_for_requests(note: str, target: str) -> str:
    """Jump with packets of the connection's original direction.

    IPVS would take answers to a host for a client's packets.
    """
    return f"{ASKING} {_write_jump(note, target)}"


def _write_jump(note: str, target: str) -> str:
    return f"{match_comment(note)} -j {target}"
