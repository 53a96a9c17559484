"""Short forms of the model's values, for tests of the pure layers: addresses as text, one port by default."""

from collections.abc import Iterable
from typing import Any

from vipwire.model.names import ObjectName, ServicePortName
from vipwire.model.net import Address, Family, Prefix, Protocol, parse_address
from vipwire.model.service import Endpoint, EndpointPort, EndpointSlice, Service, ServicePort
from vipwire.plan.node import NodePlan, PodPrefixes
from vipwire.plan.plan import FrontendKey, ServicePlan

HERE, ELSEWHERE = "node-1", "node-2"
NODE_ADDRESS = {Family.IPV4: "192.168.0.2", Family.IPV6: "2001:db8::1"}
POD_PREFIX = {Family.IPV4: "10.0.0.0/8", Family.IPV6: "fd00:10::/64"}
EVERYWHERE = {Family.IPV4: "0.0.0.0/0", Family.IPV6: "::/0"}

ip = parse_address
cidr = Prefix.parse


def ips(*texts: str) -> tuple[Address, ...]:
    return tuple(parse_address(text) for text in texts)


def named(name: str, namespace: str = "default") -> ObjectName:
    return ObjectName(namespace, name)


def port(number: int = 80, name: str = "", protocol: Protocol = Protocol.TCP, node_port: int = 0) -> ServicePort:
    return ServicePort(name, protocol, number, node_port)


def service(name: str = "web", cluster_ip: str = "10.96.0.1", *ports: ServicePort, **fields: Any) -> Service:
    """Make a Service, by default with port 80."""
    return Service(named(name), ports or (port(),), ips(*cluster_ip.split(",")), **fields)


def endpoint(address: str, node: str = ELSEWHERE, **fields: Any) -> Endpoint:
    """Make a ready endpoint on another node."""
    return Endpoint(parse_address(address), node=node, **fields)


def slice_of(
    service_name: str = "web",
    *endpoints: Endpoint,
    name: str = "",
    family: Family = Family.IPV4,
    ports: Iterable[EndpointPort] = (EndpointPort("", Protocol.TCP, 8080),),
) -> EndpointSlice:
    """Make a slice of a Service with endpoints at port 8080."""
    return EndpointSlice(named(name or f"{service_name}-1"), named(service_name), family, tuple(ports), endpoints)


def node_plan(family: Family = Family.IPV4, **fields: Any) -> NodePlan:
    """Make the plan of a node that recognises Pods by prefix and serves node ports everywhere."""
    settings: dict[str, Any] = {
        "name": HERE,
        "address": parse_address(NODE_ADDRESS[family]),
        "pod_traffic": PodPrefixes((cidr(POD_PREFIX[family]),)),
        "node_port_addresses": (cidr(EVERYWHERE[family]),),
    }
    return NodePlan(family, **{**settings, **fields})


def key(address: str | None, number: int = 80, protocol: Protocol = Protocol.TCP) -> FrontendKey:
    """Make the key of a frontend; None for a node port."""
    return FrontendKey(None if address is None else parse_address(address), protocol, number)


def planned(name: str, *addresses: Address) -> ServicePlan:
    """Make a plan without frontends, distinguished by its addresses."""
    return ServicePlan(named(name), (), addresses)


def port_name(name: str = "web", of: str = "", protocol: Protocol = Protocol.TCP) -> ServicePortName:
    return ServicePortName(named(name), of, protocol)
