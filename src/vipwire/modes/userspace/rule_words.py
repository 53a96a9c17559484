"""The words of rules that only this mode writes, exactly as iptables-save prints them; see `modes.xtables.words`."""

from collections.abc import Iterable

from vipwire.model.net import Address, Prefix, Protocol, format_address
from vipwire.modes.userspace.names import PORT
from vipwire.modes.xtables.words import NEW, comment, served

NO_SUCH_PORT = "cluster IP has no such port"
NO_SUCH_SERVICE = "no Service has this ClusterIP"
OTHER_SOURCES = "from other sources"


def packet(source: str, address: Address | None, protocol: Protocol, port: int | str, note: str) -> str:
    """Write the matches of a frontend; a range of ports is `first:last`."""
    return served(protocol, port, note, address=address, source=source)


def named(protocol: Protocol, port: int, note: str) -> str:
    """Match what begins a flow to a port that its client has named, whether that was translated or not."""
    return f"-p {protocol.label} {comment(note)} {NEW} --ctorigdstport {port}"


def translate(node: Address | None) -> str:
    """Lead to a front: at the node's address, or where it has none at that of the interface."""
    if node is None:
        return f"-j REDIRECT --to-ports {PORT}"
    host = format_address(node)
    return f"-j DNAT --to-destination {host if len(node) == 4 else f'[{host}]'}:{PORT}"


def sources(prefixes: Iterable[Prefix] | None) -> tuple[str, ...]:
    """Match what comes from these, one alternative each; from anybody if None."""
    return ("",) if prefixes is None else tuple(f"-s {prefix}" for prefix in prefixes)
