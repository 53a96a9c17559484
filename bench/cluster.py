"""A cluster of any size, as an API server would send it, and its proxy's node.

Every Service has one TCP port, a ClusterIP and one EndpointSlice; endpoints are spread over a hundred nodes. The
proxy's node is one of them and has no zone, so that topology hints do not reduce the pools.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from tests.fakes.objects import endpoint, node, service, slice_of

from vipwire.kube import wire
from vipwire.kube.convert_slice import convert_slice
from vipwire.kube.proxied import convert_service
from vipwire.model.net import Address, Family, Prefix, parse_address
from vipwire.model.service import EndpointSlice, Service
from vipwire.plan.node import NodePlan, PodPrefixes

NODE = "node-0"
NODE_ADDRESS = "192.0.2.10"
POD_CIDR = "10.244.0.0/16"
SERVICE_CIDRS = ("10.96.0.0/11",)
ENDPOINT_NET = "10.128.0.0/10"
NEW_ENDPOINT_NET = "10.122.0.0/16"
TARGET_PORT = 8080

_SERVICE = msgspec.json.Decoder(wire.WireService)
_SLICE = msgspec.json.Decoder(wire.WireEndpointSlice)


@dataclass(frozen=True, slots=True)
class Sources:
    """Objects decoded from the API's JSON, not yet converted."""

    services: Sequence[wire.WireService]
    slices: Sequence[wire.WireEndpointSlice]


def encoded(services: int, endpoints: int, first: int = 0) -> tuple[list[bytes], list[bytes]]:
    numbers = range(first, first + services)
    return [msgspec.json.encode(service(i)) for i in numbers], [
        msgspec.json.encode(slice_of(i, endpoints)) for i in numbers
    ]


def decoded(services: Sequence[bytes], slices: Sequence[bytes]) -> Sources:
    return Sources([_SERVICE.decode(raw) for raw in services], [_SLICE.decode(raw) for raw in slices])


def converted(sources: Sources) -> tuple[list[Service], list[EndpointSlice]]:
    """Convert everything; each object is valid."""
    services = [found for found, _ in map(convert_service, sources.services) if found is not None]
    slices = [found for found, _ in map(convert_slice, sources.slices) if found is not None]
    if len(services) != len(sources.services) or len(slices) != len(sources.slices):
        raise SystemExit("the benchmark's objects are not valid")
    return services, slices


def objects(services: int, endpoints: int, first: int = 0) -> tuple[list[Service], list[EndpointSlice]]:
    return converted(decoded(*encoded(services, endpoints, first)))


def node_plan() -> NodePlan:
    return NodePlan(
        Family.IPV4,
        NODE,
        address=parse_address(NODE_ADDRESS),
        pod_traffic=PodPrefixes((Prefix.parse(POD_CIDR),)),
        node_port_addresses=(Prefix.host(parse_address(NODE_ADDRESS)),),
        service_cidrs=tuple(Prefix.parse(text) for text in SERVICE_CIDRS),
    )


def node_object() -> dict[str, Any]:
    """Return the proxy's Node object, without a zone."""
    made = node(NODE, NODE_ADDRESS)
    return {**made, "metadata": {"name": NODE, "uid": f"uid-{NODE}"}}


def new_address(number: int) -> Address:
    return Address((0x0A7A0000 + number).to_bytes(4))


def new_endpoint(number: int) -> dict[str, Any]:
    """Return an endpoint, ready on another node, with an address that no generated one has."""
    address = ".".join(str(byte) for byte in new_address(number))
    return {**endpoint(1), "addresses": [address]}


def with_new_endpoint(index: int, endpoints: int, number: int) -> dict[str, Any]:
    """Return slice number `index` with another first endpoint."""
    made = slice_of(index, endpoints)
    return {**made, "endpoints": [new_endpoint(number), *made["endpoints"][1:]]}
