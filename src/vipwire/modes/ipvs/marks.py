"""Chooses the mark of each frontend whose packets need a virtual server of a mark.

IPVS gives a virtual server one pool. A frontend with external policy Local has two: the VIP's virtual server has the
cluster's pool, for clients on this node; a mark's has this node's, for clients outside. A frontend at a node's own
address has two marks. A port range always needs one, because only a mark's virtual server takes several ports.

A mark is a checksum of the frontend, so it survives restarts; equal checksums are counted up. Rules add the
masquerade bit before IPVS, so a virtual server's mark may have that bit in addition.
"""

import enum
import zlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from vipwire.plan.plan import FrontendKey, RangeKey

_BITS = 0x7FFFFFFF  # ipvsadm prints greater numbers as negative


class MarkScope(enum.Enum):
    """The clients that a mark is for. The value is part of the checksum."""

    OUTSIDE = b""
    INSIDE = b"inside"


FOREIGN = 0xC000
"""The marks of kube-proxy and kubelet: masquerade (0x4000), drop (0x8000)."""
Use = tuple[FrontendKey | RangeKey, MarkScope]


@dataclass(slots=True)
class Marks:
    """Computes the marks of frontends; no mark shares a bit with FOREIGN or with `avoid`, the masquerade mark."""

    avoid: int
    _of: dict[Use, int] = field(default_factory=dict)
    _taken: dict[int, Use] = field(default_factory=dict)

    @property
    def given(self) -> Mapping[Use, int]:
        return MappingProxyType(self._of)

    def mark(self, key: FrontendKey | RangeKey, side: MarkScope = MarkScope.OUTSIDE) -> int:
        """Return the mark of a frontend or a range; never 0."""
        use = key, side
        known = self._of.get(use)
        if known is not None and not known & self.avoid:
            return known
        if known is not None:
            del self._taken[known]
        number = zlib.crc32(_encode_ports(key) + bytes((key.protocol,)) + (key.address or b"") + side.value)
        while (mark := _avoid_bits(number, self.avoid)) in (
            0,
            choose_routing_mark(self.avoid),
        ) or mark in self._taken:
            number += 1
        self._of[use] = mark
        self._taken[mark] = use
        return mark


def choose_routing_mark(avoid: int) -> int:
    """Return the mark of packets to frontends that IPVS finds by address; no virtual server has this mark."""
    return _avoid_bits(zlib.crc32(b"vipwire"), avoid)


def _avoid_bits(number: int, avoid: int) -> int:
    return number & ~(avoid | FOREIGN) & _BITS


def _encode_ports(key: FrontendKey | RangeKey) -> bytes:
    if isinstance(key, FrontendKey):
        return key.port.to_bytes(2)
    return key.first.to_bytes(2) + key.last.to_bytes(2)


def is_among(mark: int, marks: Collection[int]) -> bool:
    """Report whether a mark equals one of these or differs in one bit, the masquerade bit.

    A cleaner does not know the masquerade bit of the proxy that it cleans up after, so any bit counts.
    """
    return mark in marks or any(mark ^ (1 << bit) in marks for bit in range(32))
