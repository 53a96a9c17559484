"""Services and EndpointSlices, as far as a service proxy reads them.

A slice holds its ports once and its endpoints once, as in the API. An endpoint is a msgspec struct because a cluster
may have 100,000: a tenth of a frozen dataclass's time to make, a third to compare, untracked by the garbage
collector.
"""

import enum

import msgspec

from vipwire.model.names import ObjectName, ServicePortName
from vipwire.model.net import Address, Family, Prefix, Protocol
from vipwire.model.value import Value


class TrafficPolicy(enum.Enum):
    """`internalTrafficPolicy` and `externalTrafficPolicy`."""

    CLUSTER = "Cluster"
    LOCAL = "Local"


class ServiceType(enum.Enum):
    """`spec.type`. ExternalName and headless Services never become a `Service` value: a proxy ignores them."""

    CLUSTER_IP = "ClusterIP"
    NODE_PORT = "NodePort"
    LOAD_BALANCER = "LoadBalancer"


class ServicePort(Value, frozen=True):
    """One entry of `spec.ports`. `node_port` is 0 without a node port."""

    name: str
    protocol: Protocol
    port: int
    node_port: int = 0


class Service(Value, frozen=True):
    """A valid Service that has a ClusterIP, both families together.

    `created` is seconds since the epoch (0 when unknown) and decides conflicts: the older Service keeps an address.
    `load_balancer_ips` holds `status.loadBalancer.ingress[].ip` of `ipMode: VIP` only. `annotations` holds the pairs
    whose key starts with `vipwire.io/` or `kube-router.io/`, sorted.
    """

    name: ObjectName
    ports: tuple[ServicePort, ...]
    cluster_ips: tuple[Address, ...]
    type: ServiceType = ServiceType.CLUSTER_IP
    uid: str = ""
    created: float = 0.0
    external_ips: tuple[Address, ...] = ()
    load_balancer_ips: tuple[Address, ...] = ()
    source_ranges: tuple[Prefix, ...] = ()
    internal_policy: TrafficPolicy = TrafficPolicy.CLUSTER
    external_policy: TrafficPolicy = TrafficPolicy.CLUSTER
    affinity_seconds: int | None = None
    health_check_node_port: int = 0
    annotations: tuple[tuple[str, str], ...] = ()

    def port_name(self, port: ServicePort) -> ServicePortName:
        return ServicePortName(self.name, port.name, port.protocol)


class Endpoint(msgspec.Struct, frozen=True, gc=False):
    """One endpoint of a slice: a Pod's address and conditions. The defaults are those of absent conditions.

    `zones` and `nodes` are the topology hints (`hints.forZones`, `hints.forNodes`), empty without hints.
    """

    address: Address
    ready: bool = True
    serving: bool = True
    terminating: bool = False
    node: str = ""
    zones: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()


class EndpointPort(Value, frozen=True):
    """A port that every endpoint of the slice serves; `name` matches the Service port's name."""

    name: str
    protocol: Protocol
    port: int


class EndpointSlice(Value, frozen=True):
    """A valid EndpointSlice of one Service and one family.

    `triggered` is `endpoints.kubernetes.io/last-change-trigger-time` in seconds since the epoch, None when absent.
    """

    name: ObjectName
    service: ObjectName
    family: Family
    ports: tuple[EndpointPort, ...] = ()
    endpoints: tuple[Endpoint, ...] = ()
    triggered: float | None = None
