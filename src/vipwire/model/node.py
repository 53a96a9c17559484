"""This machine's Node, the cluster's ServiceCIDRs, and drained endpoints."""

from typing import NamedTuple

from vipwire.model.names import ObjectName
from vipwire.model.net import Address, Prefix, format_address, format_endpoint
from vipwire.model.value import Value


class Node(Value, frozen=True):
    """The Node object of this machine.

    `addresses` are its InternalIPs, then its ExternalIPs; `deleting`: it has a deletionTimestamp; `zone` is the label
    `topology.kubernetes.io/zone`.
    """

    name: str
    addresses: tuple[Address, ...] = ()
    pod_cidrs: tuple[Prefix, ...] = ()
    zone: str = ""
    taints: frozenset[str] = frozenset()
    deleting: bool = False
    uid: str = ""


class ServiceCIDR(Value, frozen=True):
    """A range from which ClusterIPs are allocated (KEP-1880): one prefix, or one of each family."""

    name: str
    prefixes: tuple[Prefix, ...]


class Drain(NamedTuple):
    """An endpoint that gets no new connections from this node.

    `port` None: all ports, `service` None: all Services.
    """

    address: Address
    port: int | None = None
    service: ObjectName | None = None

    def covers(self, service: ObjectName, address: Address, port: int) -> bool:
        return self.address == address and self.port in (None, port) and self.service in (None, service)

    def __str__(self) -> str:
        place = format_address(self.address) if self.port is None else format_endpoint(self.address, self.port)
        return place if self.service is None else f"{place} of {self.service}"
