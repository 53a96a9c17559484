"""A Service, as far as a service proxy reads it."""

import enum

from vipwire.model.names import ObjectName, ServicePortName
from vipwire.model.net import Address, Prefix, Protocol
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
