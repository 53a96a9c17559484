"""The topology of a lab: nodes, Pods on them, and clients outside; validated on creation.

The default is the smallest cluster that shows every rule of a Service: two nodes (the proxy runs on the first), local
and remote Pods, and a client with two addresses, of which a source range can admit one.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from ipaddress import ip_address, ip_network

from vipwire_lab.namespaces.errors import LabError

UNDERLAY = "underlay"
"""The host that represents the network between the nodes: it only routes."""

SERVICE_CIDRS = ("10.96.0.0/16", "fd00:10:96::/112")

_NAME = re.compile(r"[a-z]([a-z0-9-]{0,13}[a-z0-9])?")


@dataclass(frozen=True, slots=True)
class Node:
    """A machine of the cluster. Its first IPv4 and first IPv6 address are its primary ones."""

    name: str
    addresses: tuple[str, ...]
    pod_cidrs: tuple[str, ...]
    zone: str = "zone-a"


@dataclass(frozen=True, slots=True)
class Pod:
    """A Pod and the ports on which it answers, each over TCP, UDP and SCTP."""

    name: str
    node: str
    addresses: tuple[str, ...]
    ports: tuple[int, ...] = (80, 8080)


@dataclass(frozen=True, slots=True)
class Client:
    """A machine outside the cluster. Its packets to unknown addresses, such as VIPs, go to `gateway`."""

    name: str
    addresses: tuple[str, ...]
    gateway: str = "node-1"


@dataclass(frozen=True, slots=True)
class Topology:
    """All hosts of a lab. Raises LabError for contradictory names and addresses."""

    nodes: tuple[Node, ...]
    pods: tuple[Pod, ...]
    clients: tuple[Client, ...]
    lan: tuple[str, ...] = ()
    """Hosts that are also on one Ethernet, with an interface lan0 each, at the addresses of `lan_addresses`."""

    def __post_init__(self) -> None:
        _check_names([host.name for host in self.list_hosts()])
        _check_addresses(self)
        names = {node.name for node in self.nodes}
        for pod in self.pods:
            _must_be_node(f"pod {pod.name}: node", pod.node, names)
        for client in self.clients:
            _must_be_node(f"client {client.name}: gateway", client.gateway, names)

    def list_hosts(self) -> Iterator[Node | Pod | Client]:
        """Yield every host with addresses: nodes, Pods, clients."""
        yield from self.nodes
        yield from self.pods
        yield from self.clients

    def host_names(self) -> tuple[str, ...]:
        """Return the names of the lab's namespaces, the underlay's first."""
        return (UNDERLAY, *(host.name for host in self.list_hosts()))

    def lan_addresses(self, host: str) -> tuple[str, ...]:
        """Return a host's addresses on the Ethernet, with prefix lengths."""
        number = self.lan.index(host) + 1
        return f"10.0.0.{number}/24", f"fd00:10::{number:x}/64"

    def node_of(self, host: str) -> str:
        """Return a host's node: a Pod's node, the node itself, "" outside."""
        for pod in self.pods:
            if pod.name == host:
                return pod.node
        return host if any(node.name == host for node in self.nodes) else ""


def make_node(number: int, zone: str = "") -> Node:
    """Build the node of that number (1 to 250), with primary and secondary addresses of both families."""
    return Node(
        name=f"node-{number}",
        addresses=(
            f"192.168.0.{number}",
            f"192.168.1.{number}",
            f"fd00:192:168::{number}",
            f"fd00:192:168:1::{number}",
        ),
        pod_cidrs=(f"10.244.{number}.0/24", f"fd00:10:244:{number}::/64"),
        zone=zone or ("zone-a" if number == 1 else "zone-b"),
    )


def make_pod(node: int, number: int, ports: tuple[int, ...] = (80, 8080)) -> Pod:
    """Build a node's Pod of that number (1 to 26): the first on node-1 is pod-1a, 10.244.1.11, fd00:10:244:1::11."""
    return Pod(
        name=f"pod-{node}{chr(ord('a') + number - 1)}",
        node=f"node-{node}",
        addresses=(f"10.244.{node}.{10 + number}", f"fd00:10:244:{node}::{10 + number}"),
        ports=ports,
    )


def make_topology(
    pods: tuple[int, ...] = (3, 2), ports: tuple[int, ...] = (80, 8080), *, lan: bool = False
) -> Topology:
    """Build a cluster with so many Pods on each node, and one client outside with two addresses a family.

    With `lan` the nodes and the client are also on one Ethernet.
    """
    nodes = tuple(f"node-{number + 1}" for number in range(len(pods)))
    return Topology(
        lan=(*nodes, "client") if lan else (),
        nodes=tuple(make_node(number + 1) for number in range(len(pods))),
        pods=tuple(make_pod(node + 1, number + 1, ports) for node, many in enumerate(pods) for number in range(many)),
        clients=(Client("client", ("203.0.113.2", "203.0.113.130", "2001:db8:113::2", "2001:db8:113::130")),),
    )


def _check_names(names: list[str]) -> None:
    for name in names:
        if not _NAME.fullmatch(name):
            raise LabError(f"{name!r} cannot name a host: at most 15 of a-z, 0-9 and -, as it names an interface too")
        if name == UNDERLAY or names.count(name) > 1:
            raise LabError(f"two hosts are named {name!r}")


def _check_addresses(topology: Topology) -> None:
    seen: dict[str, str] = {}
    for host in topology.list_hosts():
        if not host.addresses:
            raise LabError(f"host {host.name} has no address")
        for text in host.addresses:
            try:
                known = str(ip_address(text))
            except ValueError as error:
                raise LabError(f"host {host.name}: {text!r} is not an IP address") from error
            if known in seen:
                raise LabError(f"hosts {seen[known]} and {host.name} have the same address {known}")
            seen[known] = host.name
    for node in topology.nodes:
        for text in node.pod_cidrs:
            try:
                version = ip_network(text).version
            except ValueError as error:
                raise LabError(f"node {node.name}: {text!r} is not a CIDR") from error
            if all(ip_address(address).version != version for address in node.addresses):
                raise LabError(f"node {node.name} has the pod CIDR {text}, but no IPv{version} address")


def _must_be_node(what: str, name: str, names: set[str]) -> None:
    if name not in names:
        raise LabError(f"{what} {name!r} must be one of {', '.join(sorted(names))}")


DEFAULT = make_topology()
