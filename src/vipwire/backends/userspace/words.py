"""The words of rules, exactly as iptables-save prints them: so what is written and what is read is the same text."""

from collections.abc import Iterable

from vipwire.backends.userspace.names import PORT
from vipwire.model.net import Address, Family, Prefix, Protocol, format_address
from vipwire.plan.node import NodePlan, PodBridge, PodInterfaces, PodPrefixes

LOCAL = "-m addrtype --dst-type LOCAL"
NEW = "-m conntrack --ctstate NEW"
LOOPBACK = {Family.IPV4: Prefix.parse("127.0.0.0/8"), Family.IPV6: Prefix.parse("::1/128")}


NO_SUCH_PORT = "cluster IP has no such port"
NO_SUCH_SERVICE = "no Service has this ClusterIP"
OTHER_SOURCES = "from other sources"


def join(*words: str) -> str:
    """Join the words that are there."""
    return " ".join(word for word in words if word)


def comment(text: str) -> str:
    """Write a comment. It has a slash or a blank, so that iptables-save puts it into quotes."""
    return f'-m comment --comment "{text}"'


def destination(address: Address | None) -> str:
    """Match a destination; any if None."""
    return "" if address is None else f"-d {format_address(address)}/{len(address) * 8}"


def inside(prefix: Prefix) -> str:
    """Match destinations in a prefix; nothing where that is everywhere."""
    return f"-d {prefix}" if prefix.length else ""


def packet(source: str, address: Address | None, protocol: Protocol, port: int, note: str) -> str:
    """Write the matches of a frontend."""
    name = protocol.label
    return join(source, destination(address), f"-p {name}", comment(note), f"-m {name} --dport {port}")


def translate(node: Address | None) -> str:
    """Lead to a front: at the node's address, or where it has none at that of the interface."""
    if node is None:
        return f"-j REDIRECT --to-ports {PORT}"
    host = format_address(node)
    return f"-j DNAT --to-destination {host if len(node) == 4 else f'[{host}]'}:{PORT}"


def sources(prefixes: Iterable[Prefix] | None) -> tuple[str, ...]:
    """Match what comes from these, one alternative each; from anybody if None."""
    return ("",) if prefixes is None else tuple(f"-s {prefix}" for prefix in prefixes)


def from_pods(node: NodePlan) -> tuple[str, ...]:
    """Match what comes from Pods, one alternative each; none if Pods cannot be told."""
    match node.pod_traffic:
        case PodPrefixes(prefixes):
            return tuple(f"-s {prefix}" for prefix in prefixes)
        case PodBridge(interface):
            return (f"-i {interface}",)
        case PodInterfaces(prefix):
            return (f"-i {prefix}+",)
    return ()
