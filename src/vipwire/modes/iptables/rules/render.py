"""Renders a Service's plan to its chains and its entries in the dispatch chains. Pure.

    KUBE-SERVICES ─ cluster IP ────────────────────────────────▶ KUBE-SVC (policy Cluster) or KUBE-SVL (Local)
                  ─ external IP ───────────────▶ KUBE-EXT ─────▶ KUBE-SVC or KUBE-SVL ─▶ KUBE-SEP: DNAT
                  ─ load balancer IP ▶ KUBE-FW ▶ KUBE-EXT
    KUBE-NODEPORTS ────────────────────────────▶ KUBE-EXT

A frontend without endpoints has its entry in the filter table, which refuses or drops.

A port range (`vipwire.io/port-range`) has separate chains and entries:

    nat     KUBE-SERVICES           ▶ KUBE-RANGES ▶ the chains of a range, like those of a port
    filter  KUBE-EXTERNAL-SERVICES  ▶ KUBE-RANGES     refuse without endpoints, drop other sources
            KUBE-CLUSTER-IPS                          refuse at ClusterIPs, before the other ports

A node port's packets go to the endpoint's port, but a range keeps the packet's port if the endpoint's equals the
Service's: then DNAT has no port. KUBE-RANGES comes last, so a single port precedes a range. Its tree branches on
addresses and protocols only.

All frontends of a port lead to the same chains: one for each traffic policy, and one for each endpoint.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import ClassVar, NamedTuple

from vipwire.model.names import ServicePortName
from vipwire.model.net import Address, Family, Prefix, Protocol, format_address
from vipwire.model.service import TrafficPolicy
from vipwire.modes.iptables.rules import names
from vipwire.modes.iptables.rules.choice import list_choices
from vipwire.modes.iptables.rules.frontend_code import ANY_PORT, encode_frontend
from vipwire.modes.iptables.rules.names import CHAIN, ENTRY, FILTER, NAT, Key, Rules, endpoint_chains, port_chains
from vipwire.modes.iptables.rules.settings import RuleSettings
from vipwire.modes.iptables.rules.skeleton import needs_not_pod_chain
from vipwire.modes.iptables.rules.words import count_packets, match_seen, remember
from vipwire.modes.xtables.words import (
    LOCAL_DESTINATION,
    LOCAL_SOURCE,
    LOOPBACK,
    UNTRANSLATED,
    format_host,
    format_ports,
    join_rule,
    match_comment,
    match_pod_traffic,
    match_service_port,
    write_reject_target,
)
from vipwire.plan.node import NodePlan, PodPrefixes
from vipwire.plan.plan import (
    Drop,
    Forward,
    Frontend,
    FrontendKey,
    FrontendKind,
    Masquerade,
    RangeFrontend,
    ServicePlan,
    Target,
)
from vipwire.reconcile.backend import Rendered


class EndpointWords(NamedTuple):
    """An endpoint in words: its address, with its port, its chain, and a comment with a space behind.

    With very many endpoints the comment is empty, as in kube-proxy.
    """

    address: str
    text: str
    chain: str
    note: str


class PortWriter:
    """Writes the objects of one Service port. `WIDE`: of its port range."""

    WIDE: ClassVar = False

    def __init__(
        self, node: NodePlan, settings: RuleSettings, name: ServicePortName, frontends: Iterable[Frontend]
    ) -> None:
        self._node, self._settings, self._name = node, settings, name
        self._family, self._text, self._label = node.family, str(name), name.protocol.label
        self._note = "" if node.crowded else f"{match_comment(self._text)} "
        self._chains = port_chains(name, wide=self.WIDE)
        self._endpoint_chain = endpoint_chains(name, wide=self.WIDE)
        self._frontends = tuple(frontends)
        self._external = next((f for f in self._frontends if f.kind is not FrontendKind.CLUSTER_IP), None)
        self._ends: dict[Target, EndpointWords] = {}

    def write_objects(self) -> Iterator[tuple[Key, Rules]]:
        forwards: dict[TrafficPolicy, Forward] = {}
        for frontend in self._frontends:
            yield from self._write_entries(frontend)
            for action in (frontend.action, frontend.short_circuit):
                if isinstance(action, Forward):
                    forwards[action.policy] = action
        for policy, forward in forwards.items():
            yield Key(CHAIN, NAT, self._choose_policy_chain(policy)), tuple(self._write_choice_rules(policy, forward))
            yield from self._write_endpoint_chains(forward)
        if self._external is not None and leads_to_endpoint(self._external):
            yield Key(CHAIN, NAT, self._chains.external), tuple(self._write_mark_rules(self._external))
            guarded: dict[str, list[Frontend]] = {}
            for frontend in self._frontends:
                if frontend.allowed_sources is not None:
                    guarded.setdefault(self._write_firewall_rule(frontend), []).append(frontend)
            for chain, frontends in guarded.items():
                yield Key(CHAIN, NAT, chain), tuple(self._write_admission_rules(frontends))

    def _choose_policy_chain(self, policy: TrafficPolicy) -> str:
        return self._chains.local if policy is TrafficPolicy.LOCAL else self._chains.cluster

    def _write_entries(self, frontend: Frontend) -> Iterator[tuple[Key, Rules]]:
        code = encode_frontend(self._family, frontend.key)
        if leads_to_endpoint(frontend):
            if frontend.kind is FrontendKind.NODE_PORT:
                yield Key(ENTRY, NAT, names.NODE_PORTS, code), tuple(self._write_node_port_rules(frontend))
            else:
                yield Key(ENTRY, NAT, names.SERVICES, code), (self._write_frontend_rule(frontend),)
        if refused := self._write_refusal(frontend):
            root = names.SERVICES if frontend.kind is FrontendKind.CLUSTER_IP else names.EXTERNAL_SERVICES
            yield Key(ENTRY, FILTER, root, code), refused
        if guarded := self._write_source_guard(frontend):
            yield Key(ENTRY, FILTER, names.PROXY_FIREWALL, code), guarded

    def _match_frontend(self, frontend: Frontend, note: str, *matches: str) -> str:
        key = frontend.key
        return match_service_port(key.protocol, key.port, note, *matches, address=key.address)

    def _write_frontend_rule(self, frontend: Frontend) -> str:
        return join_rule(
            self._match_frontend(frontend, f"{self._text} {frontend.kind.value}"),
            f"-j {self._choose_chain(frontend)}",
        )

    def _choose_chain(self, frontend: Frontend) -> str:
        if frontend.kind is not FrontendKind.CLUSTER_IP:
            return self._chains.external if frontend.allowed_sources is None else self._write_firewall_rule(frontend)
        local = isinstance(frontend.action, Forward) and frontend.action.policy is TrafficPolicy.LOCAL
        return self._chains.local if local else self._chains.cluster

    def _write_firewall_rule(self, frontend: Frontend) -> str:
        """Name the chain that checks source ranges: node ports have others than load balancer IPs."""
        chains = self._chains
        return chains.node_port_firewall if frontend.kind is FrontendKind.NODE_PORT else chains.firewall

    def _write_node_port_rules(self, frontend: Frontend) -> Iterator[str]:
        words, jump = self._match_frontend(frontend, self._text), f"-j {self._choose_chain(frontend)}"
        if self._settings.localhost_node_ports and self._settings.counters:
            label = frontend.key.protocol.label
            yield join_rule(
                f"-d {LOOPBACK[self._family]} -p {label}",
                match_comment(self._text),
                f"-m {label} --dport {frontend.key.port}",
                count_packets(names.LOCALHOST_COUNTER),
                jump,
            )
        yield join_rule(words, jump)

    def _write_refusal(self, frontend: Frontend) -> Rules:
        """Refuse or drop packets to a frontend without endpoints; drop other sources.

        Packets that DNAT sent to an endpoint with this address and port pass.
        """
        action = frontend.action
        if isinstance(action, Forward):
            return ()
        note = f"{self._text} {action.reason.value}"
        local = (LOCAL_DESTINATION,) if frontend.kind is FrontendKind.NODE_PORT else ()
        external = () if frontend.kind is FrontendKind.CLUSTER_IP else (UNTRANSLATED,)
        words = self._match_frontend(frontend, note, *local, *external)
        if isinstance(action, Drop):
            return (join_rule(words, "-j DROP"),)
        verdict = write_reject_target(self._family, frontend.key.protocol)
        if frontend.allowed_sources is None or leads_to_endpoint(frontend):
            return (join_rule(words, verdict),)
        admitted = dict.fromkeys(frontend.allowed_sources)
        return (*(join_rule(f"-s {prefix}", words, verdict) for prefix in admitted), self._write_drop_rule(frontend))

    def _write_source_guard(self, frontend: Frontend) -> Rules:
        guarded = frontend.allowed_sources is not None and leads_to_endpoint(frontend)
        return (self._write_drop_rule(frontend),) if guarded else ()

    def _write_drop_rule(self, frontend: Frontend) -> str:
        """Drop packets of other sources, except those that DNAT sent to an endpoint with this address and port."""
        note = f"{self._text} traffic not accepted by {self._write_firewall_rule(frontend)}"
        local = (LOCAL_DESTINATION,) if frontend.kind is FrontendKind.NODE_PORT else ()
        return join_rule(self._match_frontend(frontend, note, *local, UNTRANSLATED), "-j DROP")

    def _write_choice_rules(self, policy: TrafficPolicy, forward: Forward) -> Iterator[str]:
        """Choose one endpoint: the remembered one, else by chance."""
        for frontend in self._frontends:
            action = frontend.action
            if frontend.kind is FrontendKind.CLUSTER_IP and isinstance(action, Forward) and action.policy is policy:
                yield from self._mark_cluster_ip(frontend, action.masquerade)
        if forward.affinity_seconds is not None and self._settings.affinity:
            for end in map(self._build_endpoint_words, forward.pool):
                known = match_seen(self._family, self._name_recent_list(forward, end), forward.affinity_seconds)
                yield f"{end.note}{known} -j {end.chain}"
        for match, target in list_choices(self._family, forward, hashes=self._settings.source_hash):
            end = self._build_endpoint_words(target)
            yield f"{end.note}{match} -j {end.chain}" if match else f"{end.note}-j {end.chain}"

    def _name_recent_list(self, forward: Forward, end: "EndpointWords") -> str:
        """Name the list of an endpoint's clients: kube-proxy's, or one for all ports of the Service."""
        if forward.shared_affinity:
            return names.name_shared_recent_list(self._name.service, end.address)
        return end.chain

    def _build_endpoint_words(self, target: Target) -> "EndpointWords":
        end = self._ends.get(target)
        if end is None:
            address = format_address(target.address)
            text = f"{address}:{target.port}" if self._family is Family.IPV4 else f"[{address}]:{target.port}"
            note = "" if self._node.crowded else f"{match_comment(f'{self._text} -> {text}')} "
            end = self._ends[target] = EndpointWords(address, text, self._endpoint_chain(text), note)
        return end

    def _mark_cluster_ip(self, frontend: Frontend, masquerade: Masquerade) -> Iterator[str]:
        words = self._match_frontend(frontend, f"{self._text} {frontend.kind.value}")
        jump = f"-j {names.MARK_MASQ}"
        if masquerade is Masquerade.ALWAYS:
            yield join_rule(words, jump)
        elif masquerade is Masquerade.UNLESS_POD:
            if needs_not_pod_chain(self._node):
                yield join_rule(words, f"-j {names.NOT_POD_MASQ}")
            for pod in () if needs_not_pod_chain(self._node) else match_pod_traffic(self._node.pod_traffic):
                yield join_rule(
                    _match_not_pod(pod, words, by_source=isinstance(self._node.pod_traffic, PodPrefixes)), jump
                )

    def _write_endpoint_chains(self, forward: Forward) -> Iterator[tuple[Key, Rules]]:
        note, label, bits = self._note, self._label, self._family.bits
        sticky = forward.affinity_seconds is not None and self._settings.affinity
        for target in forward.pool:
            end = self._build_endpoint_words(target)
            memory = f"{remember(self._family, self._name_recent_list(forward, end))} " if sticky else ""
            yield (
                Key(CHAIN, NAT, end.chain),
                (
                    f"-s {end.address}/{bits} {note}-j {names.MARK_MASQ}",
                    f"-p {label} {note}{memory}-m {label} -j DNAT --to-destination {end.text}",
                ),
            )

    def _write_mark_rules(self, frontend: Frontend) -> Iterator[str]:
        """Write KUBE-EXT, the entrance for external traffic."""
        to = f"traffic for {self._text} external destinations"
        action, inside = frontend.action, frontend.short_circuit
        if isinstance(action, Forward) and action.masquerade is Masquerade.ALWAYS:
            yield join_rule(match_comment(f"masquerade {to}"), f"-j {names.MARK_MASQ}")
        if inside is not None:
            jump = f"-j {self._choose_policy_chain(inside.policy)}"
            for pod in match_pod_traffic(self._node.pod_traffic):
                yield join_rule(pod, match_comment(f"pod {to}"), jump)
            yield join_rule(match_comment(f"masquerade LOCAL {to}"), LOCAL_SOURCE, f"-j {names.MARK_MASQ}")
            yield join_rule(match_comment(f"route LOCAL {to}"), LOCAL_SOURCE, jump)
        if isinstance(action, Forward):
            yield f"-j {self._choose_policy_chain(action.policy)}"

    def _write_admission_rules(self, frontends: Sequence[Frontend]) -> Iterator[str]:
        """Write KUBE-FW, which lets allowed sources in.

        Other packets keep their destination, and the filter table drops them.
        """
        allowed: dict[Prefix, None] = {}
        for frontend in frontends:
            allowed.update(dict.fromkeys(frontend.allowed_sources or ()))
        note = match_comment(f"{self._text} {frontends[0].kind.value}")
        for prefix in allowed:
            yield join_rule(f"-s {prefix}", note, f"-j {self._chains.external}")
        yield match_comment(f"other traffic to {self._text} will be dropped by {names.PROXY_FIREWALL}")


def leads_to_endpoint(frontend: Frontend) -> bool:
    """Report whether a frontend leads any client to an endpoint."""
    return isinstance(frontend.action, Forward) or frontend.short_circuit is not None


def _match_not_pod(pod: str, words: str, *, by_source: bool) -> str:
    """Negate the match of a Pod, at its place among the other words."""
    if by_source:
        return f"! {pod} {words}"
    where, behind, rest = words.partition(" -p ")
    return f"{where} ! {pod}{behind}{rest}"


class RangeWriter(PortWriter):
    """Writes the objects of a Service port's range, at all its addresses."""

    WIDE: ClassVar = True

    def __init__(self, node: NodePlan, settings: RuleSettings, ranges: Sequence[RangeFrontend]) -> None:
        super().__init__(node, settings, ranges[0].frontend.port_name, [each.frontend for each in ranges])
        self._range = ranges[0]

    def write_refusals(self) -> Iterator[tuple[Address, Rules]]:
        for frontend in self._frontends:
            if frontend.kind is FrontendKind.CLUSTER_IP and frontend.key.address is not None:
                yield frontend.key.address, self._write_refusal(frontend)

    def _write_entries(self, frontend: Frontend) -> Iterator[tuple[Key, Rules]]:
        code = encode_frontend(
            self._family, FrontendKey(frontend.key.address, frontend.key.protocol, self._range.key.first)
        )
        if leads_to_endpoint(frontend):
            yield Key(ENTRY, NAT, names.RANGES, code), (self._write_frontend_rule(frontend),)
        left = (*self._write_source_guard(frontend), *self._write_refusal(frontend))
        if left and frontend.kind is not FrontendKind.CLUSTER_IP:
            yield Key(ENTRY, FILTER, names.RANGES, code), left

    def _match_frontend(self, frontend: Frontend, note: str, *matches: str) -> str:
        wide = self._range.key
        return match_service_port(
            wide.protocol, format_ports(wide.first, wide.last), note, *matches, address=frontend.key.address
        )

    def _build_endpoint_words(self, target: Target) -> EndpointWords:
        end = super()._build_endpoint_words(target)
        return end._replace(text=format_address(target.address)) if self._range.keeps_port(target) else end


def render_service(node: NodePlan, settings: RuleSettings, plan: ServicePlan) -> Rendered[Key, Rules]:
    own: dict[Key, Rules] = {}
    settings = settings.on(node)
    by_port: dict[ServicePortName, list[Frontend]] = {}
    for frontend in plan.frontends:
        by_port.setdefault(frontend.port_name, []).append(frontend)
    for name, frontends in by_port.items():
        own.update(PortWriter(node, settings, name, frontends).write_objects())
    ranges: dict[ServicePortName, list[RangeFrontend]] = {}
    for each in plan.ranges:
        ranges.setdefault(each.frontend.port_name, []).append(each)
    refused: dict[Address, Rules] = {}
    for wide in ranges.values():
        writer = RangeWriter(node, settings, wide)
        own.update(writer.write_objects())
        for address, rules in writer.write_refusals():
            refused[address] = (*refused.get(address, ()), *rules)
    own.update(_render_cluster_ips(node.family, plan, refused))
    if plan.health_check is not None:
        own.update(_render_health_check(node.family, plan.health_check.port, by_port))
    return Rendered(own)


def _render_cluster_ips(
    family: Family, plan: ServicePlan, refused: Mapping[Address, Rules]
) -> Iterator[tuple[Key, Rules]]:
    """Refuse packets to a ClusterIP that no port of the Service has translated.

    `refused`, the refusals of port ranges, come first: they state the reason.
    """
    note = match_comment(f"{plan.name} has no such port")
    for address in plan.cluster_ips:
        code = encode_frontend(family, FrontendKey(address, *ANY_PORT))
        others = f"-d {format_host(address)} {note} -j {names.NO_SUCH_PORT}"
        yield Key(ENTRY, FILTER, names.CLUSTER_IPS, code), (*refused.get(address, ()), others)


def _render_health_check(family: Family, port: int, served: Iterable[ServicePortName]) -> Iterator[tuple[Key, Rules]]:
    """Accept health checks of load balancers: one rule for each port of the Service, as in kube-proxy."""
    accepts = tuple(
        join_rule(match_service_port(Protocol.TCP, port, f"{name} health check node port"), "-j ACCEPT")
        for name in served
    )
    if accepts:
        code = encode_frontend(family, FrontendKey(None, Protocol.TCP, port))
        yield Key(ENTRY, FILTER, names.NODE_PORTS, code), accepts
