"""Ranges of ports (`vipwire.io/port-range`) as chains and entries of their own. Pure.

    nat     KUBE-SERVICES           ▶ KUBE-RANGES ▶ the chains of a range, as those of a port
    filter  KUBE-EXTERNAL-SERVICES  ▶ KUBE-RANGES     refuse or drop what nobody answers, or who may not enter
            KUBE-CLUSTER-IPS                          refuse at ClusterIPs, before its other ports are refused

A range has chains beside those of its port, because what reaches a node port goes to the port of an endpoint, and
what reaches the range keeps its own where the endpoint's is the Service's: there DNAT is given no port.

KUBE-RANGES comes after everything else: a port counts before a range. Its tree branches at addresses and protocols
alone, and the ranges of one address follow each other.
"""

from collections.abc import Iterator, Sequence
from typing import ClassVar

from vipwire.model.net import Address, format_address
from vipwire.modes.iptables.rules import names
from vipwire.modes.iptables.rules.frontend_code import encode
from vipwire.modes.iptables.rules.names import ENTRY, FILTER, NAT, Key, Rules
from vipwire.modes.iptables.rules.port import End, PortWriter, reachable
from vipwire.modes.iptables.rules.settings import Settings
from vipwire.modes.xtables.words import ports, served
from vipwire.plan.node import NodePlan
from vipwire.plan.plan import Frontend, FrontendKey, FrontendKind, RangeFrontend, Target


class RangeWriter(PortWriter):
    """Writes the objects of a Service port's range, at all its addresses."""

    WIDE: ClassVar = True

    def __init__(self, node: NodePlan, settings: Settings, ranges: Sequence[RangeFrontend]) -> None:
        super().__init__(node, settings, ranges[0].frontend.port_name, [each.frontend for each in ranges])
        self._range = ranges[0]

    def refused(self) -> Iterator[tuple[Address, Rules]]:
        """Refuse at ClusterIPs that nobody answers: rules for the entry of each in KUBE-CLUSTER-IPS."""
        for frontend in self._frontends:
            if frontend.kind is FrontendKind.CLUSTER_IP and frontend.key.address is not None:
                yield frontend.key.address, self._refused(frontend)

    def _entries(self, frontend: Frontend) -> Iterator[tuple[Key, Rules]]:
        code = encode(self._family, FrontendKey(frontend.key.address, frontend.key.protocol, self._range.key.first))
        if reachable(frontend):
            yield Key(ENTRY, NAT, names.RANGES, code), (self._taken(frontend),)
        left = (*self._guarded(frontend), *self._refused(frontend))
        if left and frontend.kind is not FrontendKind.CLUSTER_IP:
            yield Key(ENTRY, FILTER, names.RANGES, code), left

    def _served(self, frontend: Frontend, note: str, *matches: str) -> str:
        wide = self._range.key
        return served(wide.protocol, ports(wide.first, wide.last), note, *matches, address=frontend.key.address)

    def _end(self, target: Target) -> End:
        end = super()._end(target)
        return end._replace(text=format_address(target.address)) if self._range.keeps_port(target) else end
