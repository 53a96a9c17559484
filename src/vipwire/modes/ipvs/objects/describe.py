"""Names the objects of ipvs mode for people, as the tools that show them do."""

from vipwire.linux.netlink.ipset import Element
from vipwire.linux.netlink.ipvs import RealServer, VirtualServer
from vipwire.model.net import Prefix, Protocol, format_address, format_endpoint
from vipwire.modes.ipvs.objects.names import (
    ChainName,
    Entry,
    MarkRule,
    ObjectKey,
    RangeRule,
    Receiver,
    Route,
    SetName,
    Vip,
)


def describe_object(key: ObjectKey) -> str:
    """Name an object."""
    if isinstance(key, VirtualServer | RealServer):
        return describe_server(key)
    if isinstance(key, SetName | Entry | ChainName | RangeRule):
        return _describe_rules(key)
    match key:
        case Vip(address):
            return f"VIP {format_address(address)}"
        case MarkRule(mark):
            return f"ip rule fwmark {mark:#x}"
        case Route(address, table):
            return f"ip route local {format_address(address)} table {table}"
        case Receiver(pod, vip):
            return f"{format_address(vip)} in the Pod {format_address(pod)}"


def _describe_rules(key: SetName | Entry | ChainName | RangeRule) -> str:
    match key:
        case SetName(name):
            return f"ipset {name}"
        case Entry(name, element):
            return f"ipset {name} {describe_element(element)}"
        case ChainName(table, chain):
            return f"iptables -t {table} chain {chain}"
        case RangeRule(table, chain, words):
            return f"iptables -t {table} -A {chain} {words}"


def describe_server(key: VirtualServer | RealServer) -> str:
    """Name a virtual or real server as ipvsadm lists it."""
    if isinstance(key, RealServer):
        return f"{describe_server(key.server)} -> {format_endpoint(key.address, key.port)}"
    if key.mark:
        return f"FWM {key.mark}"
    return f"{Protocol(key.protocol).name} {format_endpoint(key.address, key.port)}"


def describe_element(element: Element) -> str:
    """Print an element as ipset does."""
    parts = [format_address(element.address)] if element.address else []
    if element.port:
        label = f"{Protocol(element.protocol).label}:" if element.protocol else ""
        parts.append(f"{label}{element.port}")
    if isinstance(element.other, Prefix):
        parts.append(str(element.other))
    elif element.other is not None:
        parts.append(format_address(element.other))
    return ",".join(parts)
