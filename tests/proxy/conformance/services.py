"""The tests' Services: each has every kind of frontend, in both families, at unique addresses.

A Service "web" with one port has a ClusterIP, an external IP, a load balancer IP and a node port, which `at` returns;
tests state only what they depend on.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import pytest

from vipwire.model.net import Family
from vipwire.plan.plan import FrontendKind
from vipwire_lab.cluster import manifests
from vipwire_lab.cluster.manifests import Backend, Manifest, Port
from vipwire_lab.cluster.outcome import Target
from vipwire_lab.namespaces.topology import Node, Pod, Topology

HTTP = Port(80)
CLUSTER_IP, EXTERNAL_IP, LOAD_BALANCER, NODE_PORT = FrontendKind
EXTERNAL = (EXTERNAL_IP, LOAD_BALANCER, NODE_PORT)
"""The frontends of the external traffic policy."""
FRONTENDS = pytest.mark.parametrize("kind", list(FrontendKind), ids=lambda kind: kind.value)

_NET = {
    (CLUSTER_IP, Family.IPV4): "10.96.{}.{}",
    (EXTERNAL_IP, Family.IPV4): "198.18.{}.{}",
    (LOAD_BALANCER, Family.IPV4): "198.19.{}.{}",
    (CLUSTER_IP, Family.IPV6): "fd00:10:96::{:x}{:02x}",
    (EXTERNAL_IP, Family.IPV6): "2001:db8:e:{:x}::{:x}",
    (LOAD_BALANCER, Family.IPV6): "2001:db8:1b:{:x}::{:x}",
}
Hosts = Iterable[Pod | Node | Backend]


@dataclass(frozen=True, slots=True)
class LabService:
    """A test's Service. `number` (1 to 1200) determines its addresses; `node` is the node of its node port."""

    topology: Topology
    name: str
    number: int
    ports: tuple[Port, ...] = (HTTP,)
    node: str = "node-1"

    def address(self, kind: FrontendKind, family: Family) -> str:
        """Return a frontend's address; for a node port the node's primary one."""
        if kind is NODE_PORT:
            (node,) = (node for node in self.topology.nodes if node.name == self.node)
            return next(each for each in node.addresses if (":" in each) is (family is Family.IPV6))
        high, low = divmod(self.number, 200)
        return _NET[kind, family].format(high + 1, low + 1)

    def node_port(self, index: int = 0) -> int:
        """Return the node port of a port: below those that tests or the kernel choose."""
        return self.ports[index].node_port or 14000 + self.number * 13 + index

    def at(self, kind: FrontendKind, family: Family, index: int = 0) -> Target:
        """Return the target of a frontend of one of its ports."""
        port = self.ports[index]
        number = self.node_port(index) if kind is NODE_PORT else port.port
        return Target(self.address(kind, family), number, port.protocol)

    def vip(self, family: Family, index: int = 0) -> Target:
        return self.at(CLUSTER_IP, family, index)

    def service(self, families: Iterable[Family] = tuple(Family), **spec: Any) -> Manifest:
        """Make the Service object. `spec` replaces fields; None removes one."""
        families = tuple(families)
        fields = {
            "type": "LoadBalancer",
            "externalIPs": [self.address(EXTERNAL_IP, family) for family in families],
        } | spec
        cluster_ips = [self.address(CLUSTER_IP, family) for family in families]
        made = manifests.build_service(self.name, cluster_ips, self.ports, **fields)
        made["spec"] = {name: value for name, value in made["spec"].items() if value is not None}
        if made["spec"]["type"] in ("NodePort", "LoadBalancer"):
            for index, port in enumerate(made["spec"]["ports"]):
                port.setdefault("nodePort", self.node_port(index))
        return made | manifests.build_load_balancer_status(
            *(self.address(LOAD_BALANCER, family) for family in families)
        )

    def slices(self, hosts: Hosts) -> list[Manifest]:
        return manifests.build_endpoint_slices(self.topology, self.name, hosts, self.ports)

    def objects(self, hosts: Hosts, families: Iterable[Family] = tuple(Family), **spec: Any) -> list[Manifest]:
        return [self.service(families, **spec), *self.slices(hosts)]
