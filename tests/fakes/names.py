"""Short forms of Services and endpoints for DNS, by default in the namespace `shop`."""

from vipwire.model.names import ObjectName
from vipwire.model.net import Protocol, parse_address
from vipwire_up.dns.messages.names import parse_name
from vipwire_up.dns.objects import DnsEndpoint, DnsPort, DnsService, DnsSlice, Form


def service(name: str, *addresses: str, port: int = 80, namespace: str = "shop") -> DnsService:
    ports = (DnsPort("main", Protocol.TCP, port),)
    return DnsService(ObjectName(namespace, name), Form.CLUSTER_IP, tuple(map(parse_address, addresses)), ports)


def headless(name: str, *, namespace: str = "shop") -> DnsService:
    return DnsService(ObjectName(namespace, name), Form.HEADLESS)


def external(name: str, target: str, *, namespace: str = "shop") -> DnsService:
    return DnsService(ObjectName(namespace, name), Form.EXTERNAL, target=parse_name(target))


def endpoint(address: str, hostname: str = "", *, ready: bool = True) -> DnsEndpoint:
    return DnsEndpoint(parse_address(address), hostname, ready)


def piece(of: str, *endpoints: DnsEndpoint, name: str = "", port: int = 80, namespace: str = "shop") -> DnsSlice:
    ports = (DnsPort("main", Protocol.TCP, port),)
    return DnsSlice(ObjectName(namespace, name or f"{of}-slice"), ObjectName(namespace, of), ports, endpoints)
