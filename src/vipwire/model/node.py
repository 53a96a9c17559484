"""The Node that this proxy serves, the ServiceCIDRs of the cluster, and the endpoints that the node drains."""

from typing import NamedTuple

from vipwire.model.names import ObjectName
from vipwire.model.net import Address, Prefix, format_address, format_endpoint
from vipwire.model.value import Value


class Node(Value, frozen=True):
    """The Node object of this machine.

    `addresses` are its InternalIPs in order, then its ExternalIPs; `deleting` is true from the moment it has a
    deletionTimestamp; `zone` is the label `topology.kubernetes.io/zone`.
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
    """An endpoint's address that gets no new connections from this node, as if its weight were 0.

    `port` None stands for all ports, `service` None for all Services.
    """

    address: Address
    port: int | None = None
    service: ObjectName | None = None

    def covers(self, service: ObjectName, address: Address, port: int) -> bool:
        """Report whether an endpoint of a Service is drained by this."""
        return self.address == address and self.port in (None, port) and self.service in (None, service)

    def __str__(self) -> str:
        place = format_address(self.address) if self.port is None else format_endpoint(self.address, self.port)
        return place if self.service is None else f"{place} of {self.service}"
