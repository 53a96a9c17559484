"""The Node that this proxy serves, and the ServiceCIDRs of the cluster."""

from vipwire.model.net import Address, Prefix
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
