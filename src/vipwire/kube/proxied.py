"""The kinds that a service proxy reads: for each its path, its selectors, and how its bytes become values.

The selectors are kube-proxy's, so that the API server does not send what nobody here would use. Servers before 1.31
know no field selector `spec.clusterIP` and refuse it with 400; then it is left out and headless Services, which come
along, are sorted out by the conversion.
"""

from dataclasses import replace
from typing import TypeAlias

from vipwire.kube import wire
from vipwire.kube.convert import convert_cidr, convert_node, convert_service
from vipwire.kube.convert_slice import convert_slice
from vipwire.kube.resource import Resource
from vipwire.state.event import Kind, Object

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
    kind=Kind.NODE,
    path="/api/v1",
    plural="nodes",
    type=wire.WireNode,
    convert=convert_node,
)


def own_node(name: str) -> ProxyResource:
    """Build the resource that is one Node only."""
    return replace(NODES, field_selector=f"metadata.name={name}", only=name)


def proxy_resources(node_name: str) -> tuple[ProxyResource, ...]:
    """Name all that the proxy of a node watches."""
    return SERVICES, ENDPOINT_SLICES, SERVICE_CIDRS, own_node(node_name)
