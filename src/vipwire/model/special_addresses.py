"""Addresses that mean another machine to each machine, or many: no endpoint and no external IP can be one.

IANA's registries (RFC 6890) name them. Class E (240.0.0.0/4) is not among them: clusters use it for Pods.
"""

from typing import Final

from vipwire.model.net import Address, Prefix

_SPECIAL: Final = tuple(
    (Prefix.parse(text), name)
    for text, name in (
        ("0.0.0.0/32", "the unspecified address"),
        ("127.0.0.0/8", "a loopback address"),
        ("224.0.0.0/4", "a multicast address"),
        ("255.255.255.255/32", "the broadcast address"),
        ("::/128", "the unspecified address"),
        ("::1/128", "a loopback address"),
        ("ff00::/8", "a multicast address"),
    )
)
_LINK_LOCAL: Final = (Prefix.parse("169.254.0.0/16"), Prefix.parse("fe80::/10"))
SPECIAL_FIRST_BYTES: Final = frozenset((0, 127, 169, *range(224, 240), 0xFE, 0xFF))
"""Of either family; every endpoint is checked, and nearly all are done with this."""


def special_use(address: Address, *, link_local: bool = True) -> str:
    """Return what an address is reserved for, "" for an ordinary one. `link_local` says whether those count."""
    if address[0] not in SPECIAL_FIRST_BYTES:
        return ""
    for prefix, name in _SPECIAL:
        if address in prefix:
            return name
    if link_local and any(address in prefix for prefix in _LINK_LOCAL):
        return "a link-local address"
    return ""
