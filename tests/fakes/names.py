"""Services and endpoints as DNS reads them, in few words: all in the namespace `shop` unless told otherwise."""

from vipwire.dns.names import parse_name
from vipwire.dns.objects import Endpoint, Form, Port, Service, Slice
from vipwire.model.names import ObjectName
from vipwire.model.net import Protocol, parse_address


def service(name: str, *addresses: str, port: int = 80, namespace: str = "shop") -> Service:
    ports = (Port("main", Protocol.TCP, port),)
    return Service(ObjectName(namespace, name), Form.CLUSTER_IP, tuple(map(parse_address, addresses)), ports)


def headless(name: str, *, namespace: str = "shop") -> Service:
    return Service(ObjectName(namespace, name), Form.HEADLESS)


def external(name: str, target: str, *, namespace: str = "shop") -> Service:
    return Service(ObjectName(namespace, name), Form.EXTERNAL, target=parse_name(target))


def endpoint(address: str, hostname: str = "", *, ready: bool = True) -> Endpoint:
    return Endpoint(parse_address(address), hostname, ready)


def piece(of: str, *endpoints: Endpoint, name: str = "", port: int = 80, namespace: str = "shop") -> Slice:
    ports = (Port("main", Protocol.TCP, port),)
    return Slice(ObjectName(namespace, name or f"{of}-slice"), ObjectName(namespace, of), ports, endpoints)
