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
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import ClassVar

from vipwire.model.names import ServicePortName
from vipwire.model.net import Address, Family, Protocol, format_address
from vipwire.modes.iptables.rules import names
from vipwire.modes.iptables.rules.frontend_code import ANY_PORT, encode
from vipwire.modes.iptables.rules.names import ENTRY, FILTER, NAT, Key, Rules
from vipwire.modes.iptables.rules.port import EndpointWords, PortWriter, leads_to_endpoint
from vipwire.modes.iptables.rules.settings import RuleSettings
from vipwire.modes.xtables.words import comment, host, match_service_port, ports, rule
from vipwire.plan.node import NodePlan
from vipwire.plan.plan import Frontend, FrontendKey, FrontendKind, RangeFrontend, ServicePlan, Target
from vipwire.reconcile.backend import Rendered


class RangeWriter(PortWriter):
    """Writes the objects of a Service port's range, at all its addresses."""

    WIDE: ClassVar = True

    def __init__(self, node: NodePlan, settings: RuleSettings, ranges: Sequence[RangeFrontend]) -> None:
        super().__init__(node, settings, ranges[0].frontend.port_name, [each.frontend for each in ranges])
        self._range = ranges[0]

    def refused(self) -> Iterator[tuple[Address, Rules]]:
        for frontend in self._frontends:
            if frontend.kind is FrontendKind.CLUSTER_IP and frontend.key.address is not None:
                yield frontend.key.address, self._refused(frontend)

    def _entries(self, frontend: Frontend) -> Iterator[tuple[Key, Rules]]:
        code = encode(self._family, FrontendKey(frontend.key.address, frontend.key.protocol, self._range.key.first))
        if leads_to_endpoint(frontend):
            yield Key(ENTRY, NAT, names.RANGES, code), (self._taken(frontend),)
        left = (*self._guard_sources(frontend), *self._refused(frontend))
        if left and frontend.kind is not FrontendKind.CLUSTER_IP:
            yield Key(ENTRY, FILTER, names.RANGES, code), left

    def _match_frontend(self, frontend: Frontend, note: str, *matches: str) -> str:
        wide = self._range.key
        return match_service_port(
            wide.protocol, ports(wide.first, wide.last), note, *matches, address=frontend.key.address
        )

    def _end(self, target: Target) -> EndpointWords:
        end = super()._end(target)
        return end._replace(text=format_address(target.address)) if self._range.keeps_port(target) else end


def render(node: NodePlan, settings: RuleSettings, plan: ServicePlan) -> Rendered[Key, Rules]:
    own: dict[Key, Rules] = {}
    settings = settings.on(node)
    ports: dict[ServicePortName, list[Frontend]] = {}
    for frontend in plan.frontends:
        ports.setdefault(frontend.port_name, []).append(frontend)
    for name, frontends in ports.items():
        own.update(PortWriter(node, settings, name, frontends).objects())
    refused: dict[Address, Rules] = {}
    for ranges in _by_port(plan.ranges):
        writer = RangeWriter(node, settings, ranges)
        own.update(writer.objects())
        for address, rules in writer.refused():
            refused[address] = (*refused.get(address, ()), *rules)
    own.update(_cluster_ips(node.family, plan, refused))
    if plan.health_check is not None:
        own.update(_health_check(node.family, plan.health_check.port, ports))
    return Rendered(own)


def _by_port(ranges: Iterable[RangeFrontend]) -> Iterable[list[RangeFrontend]]:
    ports: dict[ServicePortName, list[RangeFrontend]] = {}
    for each in ranges:
        ports.setdefault(each.frontend.port_name, []).append(each)
    return ports.values()


def _cluster_ips(family: Family, plan: ServicePlan, refused: Mapping[Address, Rules]) -> Iterator[tuple[Key, Rules]]:
    """Refuse packets to a ClusterIP that no port of the Service has translated.

    `refused`, the refusals of port ranges, come first: they state the reason.
    """
    note = comment(f"{plan.name} has no such port")
    for address in plan.cluster_ips:
        code = encode(family, FrontendKey(address, *ANY_PORT))
        others = f"-d {host(address)} {note} -j {names.NO_SUCH_PORT}"
        yield Key(ENTRY, FILTER, names.CLUSTER_IPS, code), (*refused.get(address, ()), others)


def _health_check(family: Family, port: int, ports: Iterable[ServicePortName]) -> Iterator[tuple[Key, Rules]]:
    """Accept health checks of load balancers: one rule for each port of the Service, as in kube-proxy."""
    accepts = tuple(
        rule(match_service_port(Protocol.TCP, port, f"{name} health check node port"), "-j ACCEPT") for name in ports
    )
    if accepts:
        code = encode(family, FrontendKey(None, Protocol.TCP, port))
        yield Key(ENTRY, FILTER, names.NODE_PORTS, code), accepts
