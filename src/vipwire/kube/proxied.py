"""The kinds that a service proxy reads: path, selectors and conversion of each.

Only the `convert_*` functions judge validity, for API servers and manifests alike; mistakes are `Problem` values,
nothing raises. EndpointSlices are in `convert_slice`. The valid part of a Service counts. The result is None for a
Service that is headless, an ExternalName, another proxy's (label `service.kubernetes.io/service-proxy-name`), or
without a valid ClusterIP; only the last is a problem.

The selectors are kube-proxy's, so the API server omits unused objects. Servers before 1.31 refuse the field selector
`spec.clusterIP` with 400; then vipwire omits it and drops headless Services itself.
"""

import enum
import functools
from collections.abc import Iterator
from dataclasses import replace
from sys import intern
from typing import TypeAlias

from vipwire.kube import wire
from vipwire.kube.convert_slice import convert_slice
from vipwire.kube.finding import Findings
from vipwire.kube.resource import Resource
from vipwire.model.names import ObjectName
from vipwire.model.net import Address, Family, Prefix, family_of
from vipwire.model.node import Node, ServiceCIDR
from vipwire.model.problem import Problem
from vipwire.model.service import Service, ServicePort, ServiceType, TrafficPolicy
from vipwire.plan.annotations import wants_local
from vipwire.watched_objects.event import Kind, Object

DEFAULT_AFFINITY_SECONDS = 10800
"""`sessionAffinityConfig.clientIP.timeoutSeconds` if absent (three hours, core/v1)."""
MOST_AFFINITY_SECONDS = 86400

ANNOTATION_PREFIXES = ("vipwire.io/", "kube-router.io/")
"""Prefixes of the annotations that vipwire reads."""

_NO_NAME = ObjectName("", "")
_NO_META = wire.ServiceMeta()
_NO_SPEC = wire.ServiceSpec()
_NODE_ADDRESS_TYPES = ("InternalIP", "ExternalIP")


class _Affinity(enum.Enum):
    NONE = "None"
    CLIENT_IP = "ClientIP"


class _IPMode(enum.Enum):
    VIP = "VIP"
    PROXY = "Proxy"


def convert_service(source: wire.WireService) -> tuple[Service | None, tuple[Problem, ...]]:
    """Convert one Service; None if a proxy has nothing to serve."""
    meta, spec = source.metadata or _NO_META, source.spec or _NO_SPEC
    if _is_of_other_proxy(meta, spec):
        return None, ()
    found = Findings("Service", ObjectName(intern(meta.namespace or ""), intern(meta.name or "")))
    if not found.named(namespaced=True):
        return None, found.problems()
    cluster_ips = _convert_cluster_ips(spec, found)
    if not cluster_ips:
        return None, found.problems()
    kind = found.choice("spec.type", spec.type, ServiceType.CLUSTER_IP)
    external_policy = found.choice("spec.externalTrafficPolicy", spec.external_traffic_policy, TrafficPolicy.CLUSTER)
    if meta.annotations and wants_local(meta.annotations):
        external_policy = TrafficPolicy.LOCAL
    source_ranges, open_to_any = _convert_source_ranges(spec, found)
    load_balancer_ips = _convert_load_balancer_ips(source.status, found)
    service = Service(
        name=found.name,
        ports=_convert_ports(spec.ports or (), kind, found),
        cluster_ips=cluster_ips,
        type=kind,
        uid=meta.uid or "",
        created=found.timestamp("metadata.creationTimestamp", meta.creation_timestamp) or 0.0,
        external_ips=found.addresses("spec.externalIPs", spec.external_ips or (), local_use=False),
        load_balancer_ips=load_balancer_ips if open_to_any or source_ranges else (),
        source_ranges=source_ranges,
        internal_policy=found.choice(
            "spec.internalTrafficPolicy", spec.internal_traffic_policy, TrafficPolicy.CLUSTER
        ),
        external_policy=external_policy,
        affinity_seconds=_convert_affinity(spec, found),
        health_check_node_port=_convert_health_check(spec, kind, external_policy, found),
        annotations=_select_annotations(meta.annotations),
    )
    return service, found.problems()


def _is_of_other_proxy(meta: wire.ServiceMeta, spec: wire.ServiceSpec) -> bool:
    if meta.labels is not None and meta.labels.proxy_name is not None:
        return True
    return spec.type == "ExternalName" or spec.cluster_ip == "None" or "None" in (spec.cluster_ips or ())


def _convert_cluster_ips(spec: wire.ServiceSpec, found: Findings) -> tuple[Address, ...]:
    """Read the ClusterIPs: at most one a family; `clusterIP` counts only without `clusterIPs`."""
    if spec.cluster_ips:
        addresses = found.addresses("spec.clusterIPs", spec.cluster_ips)
    elif spec.cluster_ip:
        address = found.address("spec.clusterIP", spec.cluster_ip)
        addresses = () if address is None else (address,)
    else:
        found.add_problem("spec.clusterIP", "is missing: a Service needs a cluster IP here, or None to be headless")
        return ()
    if len(addresses) <= 1:
        return addresses
    by_family: dict[Family, Address] = {}
    for address in addresses:
        if by_family.setdefault(family_of(address), address) != address:
            found.add_problem(
                "spec.clusterIPs", f"has more than one {family_of(address).value} address: vipwire uses the first"
            )
    return tuple(by_family.values())


def _convert_ports(
    ports: tuple[wire.WireServicePort, ...], kind: ServiceType, found: Findings
) -> tuple[ServicePort, ...]:
    """Read the ports. A single port, the usual case, is cached."""
    if len(ports) == 1:
        try:
            return _convert_single_port(ports[0], kind)
        except ValueError:
            pass  # the slow path notes the problem
    return _share_ports(tuple(_convert_each_port(ports, kind, found)))


@functools.lru_cache(maxsize=1024)
def _convert_single_port(source: wire.WireServicePort, kind: ServiceType) -> tuple[ServicePort, ...]:
    """Read a Service's single port; raise ValueError (which is not cached) if it has a problem."""
    found = Findings("Service", _NO_NAME)
    ports = tuple(_convert_each_port((source,), kind, found))
    if found.problems():
        raise ValueError
    return _share_ports(ports)


def _convert_each_port(
    ports: tuple[wire.WireServicePort, ...], kind: ServiceType, found: Findings
) -> Iterator[ServicePort]:
    if not ports:
        found.add_problem("spec.ports", "is missing: the Service has no ports")
    numbers, names, node_ports = set(), set(), set()
    for index, source in enumerate(ports):
        path = f"spec.ports[{index}]"
        port = _convert_port(source, path, kind, found)
        if port is None:
            continue
        if (port.port, port.protocol) in numbers:
            found.add_problem(
                f"{path}.port", f"{port.port}/{port.protocol.name} is duplicate: vipwire uses the first"
            )
            continue
        if port.name in names:
            found.add_problem(f"{path}.name", f"{port.name!r} is duplicate: vipwire uses the first")
            continue
        if port.node_port and (port.node_port, port.protocol) in node_ports:
            found.add_problem(
                f"{path}.nodePort", f"{port.node_port}/{port.protocol.name} is duplicate: vipwire ignores this one"
            )
            port = ServicePort(port.name, port.protocol, port.port)
        numbers.add((port.port, port.protocol))
        names.add(port.name)
        node_ports.add((port.node_port, port.protocol))
        yield port


def _convert_port(source: wire.WireServicePort, path: str, kind: ServiceType, found: Findings) -> ServicePort | None:
    name = found.port_name(f"{path}.name", source.name)
    protocol = found.protocol(f"{path}.protocol", source.protocol)
    number = found.port(f"{path}.port", source.port)
    node_port = 0
    if source.node_port and kind is ServiceType.CLUSTER_IP:
        found.add_problem(f"{path}.nodePort", "needs spec.type NodePort or LoadBalancer: vipwire ignores it")
    elif source.node_port:
        node_port = found.port(f"{path}.nodePort", source.node_port) or 0
    if name is None or protocol is None or number is None:
        return None
    return ServicePort(intern(name), protocol, number, node_port)


@functools.lru_cache(maxsize=1024)
def _share_ports(ports: tuple[ServicePort, ...]) -> tuple[ServicePort, ...]:
    """Return an equal earlier tuple: most Services have one of a few sets of ports."""
    return ports


def _convert_source_ranges(spec: wire.ServiceSpec, found: Findings) -> tuple[tuple[Prefix, ...], bool]:
    """Read the source ranges, and whether their absence admits every client.

    Only invalid ranges must not open the load balancer to everyone: its addresses are then not programmed.
    """
    texts = spec.load_balancer_source_ranges
    if not texts:
        return (), True
    ranges = found.prefixes("spec.loadBalancerSourceRanges", texts)
    if not ranges:
        found.add_problem(
            "spec.loadBalancerSourceRanges", "has no valid CIDR: vipwire ignores the load balancer's addresses"
        )
    return ranges, False


def _convert_load_balancer_ips(status: wire.ServiceStatus | None, found: Findings) -> tuple[Address, ...]:
    """Read the addresses at which packets arrive unchanged; an ingress with only a host name has none.

    The Service's type does not matter, as in kube-proxy: the API server clears the status of other types.
    """
    if status is None or status.load_balancer is None:
        return ()
    addresses: dict[Address, None] = {}
    for index, ingress in enumerate(status.load_balancer.ingress or ()):
        if not ingress.ip:
            continue
        path = f"status.loadBalancer.ingress[{index}]"
        if found.choice(f"{path}.ipMode", ingress.ip_mode, _IPMode.VIP) is _IPMode.PROXY:
            continue
        address = found.address(f"{path}.ip", ingress.ip)
        if address is not None:
            addresses[address] = None
    return tuple(addresses)


def _convert_affinity(spec: wire.ServiceSpec, found: Findings) -> int | None:
    affinity = found.choice("spec.sessionAffinity", spec.session_affinity, _Affinity.NONE)
    if affinity is _Affinity.NONE:
        return None
    config = spec.session_affinity_config
    seconds = config.client_ip.timeout_seconds if config and config.client_ip else None
    if seconds is None:
        return DEFAULT_AFFINITY_SECONDS
    if 0 < seconds <= MOST_AFFINITY_SECONDS:
        return seconds
    found.add_problem(
        "spec.sessionAffinityConfig.clientIP.timeoutSeconds",
        f"{seconds} is not 1 to {MOST_AFFINITY_SECONDS}: vipwire uses {DEFAULT_AFFINITY_SECONDS}",
    )
    return DEFAULT_AFFINITY_SECONDS


def _convert_health_check(spec: wire.ServiceSpec, kind: ServiceType, policy: TrafficPolicy, found: Findings) -> int:
    """Read the health-check node port, which only load balancers of Local Services ask."""
    if not spec.health_check_node_port:
        return 0
    if kind is not ServiceType.LOAD_BALANCER or policy is not TrafficPolicy.LOCAL:
        return 0
    return found.port("spec.healthCheckNodePort", spec.health_check_node_port) or 0


def _select_annotations(annotations: dict[str, str] | None) -> tuple[tuple[str, str], ...]:
    if not annotations:
        return ()
    return tuple(sorted([pair for pair in annotations.items() if pair[0].startswith(ANNOTATION_PREFIXES)]))


def convert_node(source: wire.WireNode) -> tuple[Node | None, tuple[Problem, ...]]:
    """Convert a Node; None only without a valid name."""
    meta = source.metadata or wire.NodeMeta()
    spec = source.spec or wire.NodeSpec()
    found = Findings("Node", ObjectName("", meta.name or ""))
    if not found.named(namespaced=False):
        return None, found.problems()
    if spec.pod_cidrs:
        pod_cidrs = found.prefixes("spec.podCIDRs", spec.pod_cidrs)
    else:
        pod_cidrs = found.prefixes("spec.podCIDR", (spec.pod_cidr,)) if spec.pod_cidr else ()
    node = Node(
        name=found.name.name,
        addresses=_convert_node_addresses(source.status, found),
        pod_cidrs=pod_cidrs,
        zone=(meta.labels and meta.labels.zone) or "",
        taints=frozenset(taint.key for taint in spec.taints or () if taint.key),
        deleting=bool(meta.deletion_timestamp),
        uid=meta.uid or "",
    )
    return node, found.problems()


def convert_cidr(source: wire.WireServiceCIDR) -> tuple[ServiceCIDR | None, tuple[Problem, ...]]:
    """Convert a ServiceCIDR, which has one prefix a family; None without a valid one."""
    meta = source.metadata or wire.Meta()
    found = Findings("ServiceCIDR", ObjectName("", meta.name or ""))
    if not found.named(namespaced=False):
        return None, found.problems()
    by_family: dict[Family, None] = {}
    kept = []
    texts = (source.spec.cidrs if source.spec else None) or ()
    for prefix in found.prefixes("spec.cidrs", texts):
        if prefix.family in by_family:
            found.add_problem("spec.cidrs", f"has more than one {prefix.family.value} CIDR: vipwire uses the first")
            continue
        by_family[prefix.family] = None
        kept.append(prefix)
    if not kept:
        found.add_problem("spec.cidrs", "has no valid CIDR")
        return None, found.problems()
    return ServiceCIDR(found.name.name, tuple(kept)), found.problems()


def _convert_node_addresses(status: wire.NodeStatus | None, found: Findings) -> tuple[Address, ...]:
    """Read InternalIPs, then ExternalIPs; host and DNS names are for people."""
    addresses: dict[Address, None] = {}
    sources = (status.addresses if status else None) or ()
    for wanted in _NODE_ADDRESS_TYPES:
        for index, source in enumerate(sources):
            if source.type != wanted:
                continue
            address = found.address(f"status.addresses[{index}].address", source.address)
            if address is not None:
                addresses[address] = None
    return tuple(addresses)


SERVICE_PROXY_NAME = "service.kubernetes.io/service-proxy-name"
HEADLESS = "service.kubernetes.io/headless"

ProxyResource: TypeAlias = Resource[Kind, Object]

SERVICES: ProxyResource = Resource(
    kind=Kind.SERVICE,
    path="/api/v1",
    plural="services",
    type=wire.WireService,
    convert=convert_service,
    label_selector=f"!{SERVICE_PROXY_NAME}",
    optional_field_selector="spec.clusterIP!=None",
)
ENDPOINT_SLICES: ProxyResource = Resource(
    kind=Kind.ENDPOINT_SLICE,
    path="/apis/discovery.k8s.io/v1",
    plural="endpointslices",
    type=wire.WireEndpointSlice,
    convert=convert_slice,
    label_selector=f"!{HEADLESS},!{SERVICE_PROXY_NAME}",
)
SERVICE_CIDRS: ProxyResource = Resource(
    kind=Kind.SERVICE_CIDR,
    path="/apis/networking.k8s.io/v1",
    plural="servicecidrs",
    type=wire.WireServiceCIDR,
    convert=convert_cidr,
    optional=True,
)
NODES: ProxyResource = Resource(
    kind=Kind.NODE, path="/api/v1", plural="nodes", type=wire.WireNode, convert=convert_node
)


def build_own_node_resource(name: str) -> ProxyResource:
    return replace(NODES, field_selector=f"metadata.name={name}", only=name)


def proxy_resources(node_name: str) -> tuple[ProxyResource, ...]:
    return SERVICES, ENDPOINT_SLICES, SERVICE_CIDRS, build_own_node_resource(node_name)
