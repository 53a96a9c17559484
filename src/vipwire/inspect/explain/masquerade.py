"""Chooses the address of this machine that masquerading puts in a client's place. Pure.

The kernel does not ask the route for the source that it prefers, as it does for sockets, but chooses among addresses
by itself: IPv4 in inet_select_addr (net/ipv4/devinet.c), IPv6 in ipv6_dev_get_saddr (net/ipv6/addrconf.c), which
follows RFC 6724, section 5. They are given here in the kernel's order: interfaces by number, and each one's addresses
as it lists them.
"""

from collections.abc import Iterable, Sequence

from vipwire.linux.netlink.route import FLAG_DUPLICATE, SCOPE_GLOBAL, SCOPE_LINK, InterfaceAddress
from vipwire.model.net import Address, Prefix

_SECONDARY, _DEPRECATED, _TENTATIVE = 0x01, 0x20, 0x40  # IFA_F_*
_LABELS = tuple(
    (Prefix.parse(text), label)
    for text, label in (
        ("::1/128", 0),
        ("::/96", 3),
        ("2001::/32", 6),
        ("2001:10::/28", 7),
        ("2002::/16", 2),
        ("fc00::/7", 5),
        ("::/0", 1),
    )
)
"""The kernel's table of labels (net/ipv6/addrlabel.c), the longer prefixes first."""
_LINK_LOCAL = Prefix.parse("fe80::/10")


def masquerade_source(
    link: int, next_hop: Address, destination: Address, addresses: Iterable[InterfaceAddress]
) -> Address | None:
    """Choose the source of what leaves by an interface; None if the machine has no address that will do.

    `next_hop` is the router on the way, or the destination itself.
    """
    ours = [each for each in addresses if len(each.address) == len(destination)]
    if len(destination) == 4:
        return _four(link, next_hop, ours)
    return _six(link, destination, ours)


def _four(link: int, next_hop: Address, addresses: Sequence[InterfaceAddress]) -> Address | None:
    """Choose the interface's address in whose network the next hop is, else its first, else any interface's first."""
    usable = [each for each in addresses if each.scope == SCOPE_GLOBAL and not each.flags & _SECONDARY]
    here = [each for each in usable if each.link == link]
    near = [each for each in here if _common(each.address, next_hop) >= each.prefix_length]
    return next((each.address for each in (*near, *here, *usable)), None)


def _six(link: int, destination: Address, addresses: Sequence[InterfaceAddress]) -> Address | None:
    usable = [each for each in addresses if not each.flags & (FLAG_DUPLICATE | _TENTATIVE)]
    if destination in _LINK_LOCAL:
        usable = [each for each in usable if each.link == link]
    best = max(usable, key=lambda each: _rank(each, link, destination), default=None)
    return None if best is None else best.address


def _rank(candidate: InterfaceAddress, link: int, destination: Address) -> tuple[int, ...]:
    """Rank a candidate by the rules 1, 2, 3, 5, 6 and 8; of equals the kernel takes the first."""
    address = candidate.address
    wanted = SCOPE_LINK if destination in _LINK_LOCAL else SCOPE_GLOBAL
    return (
        address == destination,
        candidate.scope == wanted,
        -candidate.scope,
        not candidate.flags & _DEPRECATED,
        candidate.link == link,
        _label(address) == _label(destination),
        min(_common(address, destination), candidate.prefix_length),
    )


def _label(address: Address) -> int:
    return next(label for prefix, label in _LABELS if address in prefix)


def _common(one: Address, other: Address) -> int:
    """Count the bits with which both begin."""
    return len(one) * 8 - (int.from_bytes(one) ^ int.from_bytes(other)).bit_length()
