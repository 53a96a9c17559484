"""At which addresses others find what listens in this process: the endpoints of Services `kubernetes` and `kube-dns`.

    it listens at          its endpoint is
    10.0.0.5               10.0.0.5
    0.0.0.0, ::            the Node's address
    127.0.0.1, ::1         the Node's address, where it listens a second time, for this machine only

A loopback address cannot be an endpoint: a Pod would take it for its own. So what is to be found on this machine only
has a second socket at the Node's address, which does not hear what comes in from elsewhere.
"""

import ipaddress
import socket
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from vipwire_up.api.objects.resource import Object
from vipwire_up.dns.sockets import answer_this_machine_only


@dataclass(frozen=True, slots=True)
class ReachableAddress:
    """An address that an endpoint can have. `inner` if a socket for this machine only has to be opened there."""

    address: str
    inner: bool


def reachable_address(bound: Sequence[str], node: Iterable[str], version: int) -> ReachableAddress | None:
    """Find the address at which others reach a listener, in an IP version (4 or 6); None if there is none."""
    own = next((text for text in node if ipaddress.ip_address(text).version == version), None)
    parsed = [address for text in bound if (address := ipaddress.ip_address(text)).version == version]
    for address in parsed:
        if not (address.is_loopback or address.is_unspecified or address.is_link_local):
            return ReachableAddress(str(address), inner=False)
    if own is None:
        return None
    return ReachableAddress(own, inner=not any(address.is_unspecified for address in parsed))


def internal_addresses(addresses: Iterable[Object]) -> tuple[str, ...]:
    """Select a Node's IP addresses from its status."""
    return tuple(each["address"] for each in addresses if each["type"] == "InternalIP")


def inner_socket(address: str, port: int) -> socket.socket:
    """Open a TCP socket that only this machine reaches. Raise OSError."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    made = socket.socket(family, socket.SOCK_STREAM)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        answer_this_machine_only(made)
        made.bind((address, port))
    except BaseException:
        made.close()
        raise
    return made
