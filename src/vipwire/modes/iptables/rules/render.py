"""From a Service's plan to its chains and its entries in the dispatch chains. Pure.

    KUBE-SERVICES ─ cluster IP ────────────────────────────────▶ KUBE-SVC (policy Cluster) or KUBE-SVL (Local)
                  ─ external IP ───────────────▶ KUBE-EXT ─────▶ KUBE-SVC or KUBE-SVL ─▶ KUBE-SEP: DNAT
                  ─ load balancer IP ▶ KUBE-FW ▶ KUBE-EXT
    KUBE-NODEPORTS ────────────────────────────▶ KUBE-EXT

A frontend that nobody answers has its entry in the filter table instead: refused or dropped.
"""

from collections.abc import Iterable, Iterator, Mapping

from vipwire.model.names import ServicePortName
from vipwire.model.net import Address, Family, Protocol
from vipwire.modes.iptables.rules import names
from vipwire.modes.iptables.rules.frontend_code import ANY_PORT, encode
from vipwire.modes.iptables.rules.names import ENTRY, FILTER, Key, Rules
from vipwire.modes.iptables.rules.port import PortWriter
from vipwire.modes.iptables.rules.ranges import RangeWriter
from vipwire.modes.iptables.rules.settings import Settings
from vipwire.modes.xtables.words import comment, host, rule, served
from vipwire.plan.node import NodePlan
from vipwire.plan.plan import Frontend, FrontendKey, RangeFrontend, ServicePlan
from vipwire.reconcile.backend import Rendered


def render(node: NodePlan, settings: Settings, plan: ServicePlan) -> Rendered[Key, Rules]:
    """Render one Service."""
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
    """Group the ranges of one Service by port: a group has the same ports at several addresses."""
    ports: dict[ServicePortName, list[RangeFrontend]] = {}
    for each in ranges:
        ports.setdefault(each.frontend.port_name, []).append(each)
    return ports.values()


def _cluster_ips(family: Family, plan: ServicePlan, refused: Mapping[Address, Rules]) -> Iterator[tuple[Key, Rules]]:
    """Refuse whatever reaches the filter table with a ClusterIP of the Service: no port of it has taken that.

    `refused` come first: they say why nobody answers at a range of ports.
    """
    note = comment(f"{plan.name} has no such port")
    for address in plan.cluster_ips:
        code = encode(family, FrontendKey(address, *ANY_PORT))
        others = f"-d {host(address)} {note} -j {names.NO_SUCH_PORT}"
        yield Key(ENTRY, FILTER, names.CLUSTER_IPS, code), (*refused.get(address, ()), others)


def _health_check(family: Family, port: int, ports: Iterable[ServicePortName]) -> Iterator[tuple[Key, Rules]]:
    """Accept what the load balancer asks: one rule for each port of the Service, as kube-proxy has it."""
    accepts = tuple(rule(served(Protocol.TCP, port, f"{name} health check node port"), "-j ACCEPT") for name in ports)
    if accepts:
        code = encode(family, FrontendKey(None, Protocol.TCP, port))
        yield Key(ENTRY, FILTER, names.NODE_PORTS, code), accepts
