"""The part of a plan that belongs to no Service: this node, its configuration, how it recognises its Pods.

A change here changes the plan of every Service, and is rare.
"""

from typing import TypeAlias

from vipwire.model.names import ObjectName
from vipwire.model.net import Address, Family, Prefix
from vipwire.model.node import Drain
from vipwire.model.value import Value


class PodPrefixes(Value, frozen=True):
    """Traffic is from a Pod if its source is in one of these prefixes (ClusterCIDR, NodeCIDR)."""

    prefixes: tuple[Prefix, ...]


class PodBridge(Value, frozen=True):
    """Traffic is from a Pod of this node if it arrives on this interface (BridgeInterface)."""

    interface: str


class PodInterfaces(Value, frozen=True):
    """Traffic is from a Pod of this node if its interface's name starts with this (InterfaceNamePrefix)."""

    prefix: str


PodTraffic: TypeAlias = PodPrefixes | PodBridge | PodInterfaces
"""How vipwire recognises Pod traffic. None: it cannot."""


class NodePlan(Value, frozen=True):
    """The plan of this node for one family.

    `address` is the node's primary address, None without one of this family. Addresses of the node serve node ports
    if they lie in `node_port_addresses`. `service_cidrs` are the ranges of ClusterIPs, empty if unknown.
    `external_ips` is the feature gate AllowServiceExternalIPs (KEP-5707). `addresses` are the machine's own, without
    loopback and VIPs, for modes that name each; else empty. `drained` endpoints get no new connections from this
    node. `port_ranges`: the mode serves port ranges. `crowded`: with so many endpoints the mode writes less about
    each. `api_servers` are the addresses and TCP ports of the API server, with None for an address of this machine:
    that of a node port. `hosts` are addresses of Nodes and the API server. `direct`: the mode lets sockets of this
    node connect to an endpoint's own address.
    """

    family: Family
    name: str = ""
    zone: str = ""
    address: Address | None = None
    pod_traffic: PodTraffic | None = None
    masquerade_all: bool = False
    masquerade_bit: int = 14
    node_port_addresses: tuple[Prefix, ...] = ()
    service_cidrs: tuple[Prefix, ...] = ()
    external_ips: bool = True
    addresses: tuple[Address, ...] = ()
    port_ranges: bool = False
    crowded: bool = False
    drained: frozenset[Drain] = frozenset()
    api_servers: frozenset[tuple[Address | None, int]] = frozenset()
    hosts: frozenset[Address] = frozenset()
    direct: bool = False

    def leads_to_host(self, address: Address) -> bool:
        """Report whether a host has, or may have, the address that a Service names as its ClusterIP."""
        cidrs = self.service_cidrs
        return address in self.hosts or (bool(cidrs) and not any(address in prefix for prefix in cidrs))

    @property
    def masquerade_mark(self) -> int:
        """The packet mark that requests masquerading."""
        return 1 << self.masquerade_bit

    def drains(self, service: ObjectName, address: Address, port: int) -> bool:
        return any(drain.covers(service, address, port) for drain in self.drained)
