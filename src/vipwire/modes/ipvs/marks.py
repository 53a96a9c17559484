"""Marks for frontends that need a second pool: a packet that carries one goes to the virtual server of that mark.

A virtual server has one pool, and a frontend whose external policy is Local has two: that of this node for clients
outside, that of the cluster for clients on this node. The latter is the virtual server of the VIP; the former is one
of a mark, which an ipset gives to the packets of clients outside.

A frontend at an address of the node itself has two marks: one for clients outside, one for those on the node.

A mark is a checksum of the frontend, so that the next process finds the same one. Two frontends with the same
checksum (one case in ten million for 20 frontends, one in 4,000 for 1,000) are told apart by counting on.

A range of ports has marks in any case: no virtual server but one of a mark takes more ports than one, and leaves them
as they are.

The rules that ask for masquerading set a bit of the mark before IPVS sees it. So the mark of a virtual server may
have that bit where the mark of the frontend has not.
"""

import enum
import zlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from vipwire.plan.plan import FrontendKey, RangeKey

_BITS = 0x7FFFFFFF  # ipvsadm lists greater numbers as negative ones


class MarkScope(enum.Enum):
    """Whom a mark is for. The value goes into the checksum."""

    OUTSIDE = b""
    INSIDE = b"inside"


FOREIGN = 0xC000
"""What kube-proxy and kubelet mark: masquerade me (0x4000), drop me (0x8000)."""
Use = tuple[FrontendKey | RangeKey, MarkScope]


@dataclass(slots=True)
class Marks:
    """The mark of each frontend. `avoid` is the masquerade mark; no mark has a bit of it, nor one of FOREIGN."""

    avoid: int
    _of: dict[Use, int] = field(default_factory=dict)
    _taken: dict[int, Use] = field(default_factory=dict)

    @property
    def given(self) -> Mapping[Use, int]:
        """The marks that were asked for so far."""
        return MappingProxyType(self._of)

    def mark(self, key: FrontendKey | RangeKey, side: MarkScope = MarkScope.OUTSIDE) -> int:
        """Return the mark of a frontend or a range; never 0."""
        use = key, side
        known = self._of.get(use)
        if known is not None and not known & self.avoid:
            return known
        if known is not None:
            del self._taken[known]
        number = zlib.crc32(_ports(key) + bytes((key.protocol,)) + (key.address or b"") + side.value)
        while (mark := _allowed(number, self.avoid)) in (0, routing_mark(self.avoid)) or mark in self._taken:
            number += 1
        self._of[use] = mark
        self._taken[mark] = use
        return mark


def routing_mark(avoid: int) -> int:
    """Return the mark of packets to frontends that IPVS finds by their address; it is no virtual server's."""
    return _allowed(zlib.crc32(b"vipwire"), avoid)


def _allowed(number: int, avoid: int) -> int:
    return number & ~(avoid | FOREIGN) & _BITS


def _ports(key: FrontendKey | RangeKey) -> bytes:
    if isinstance(key, FrontendKey):
        return key.port.to_bytes(2)
    return key.first.to_bytes(2) + key.last.to_bytes(2)


def is_among(mark: int, marks: Collection[int]) -> bool:
    """Report whether a mark is one of these, or differs from one in a single bit: that which asks for masquerading.

    Which bit that is only who runs the proxy knows; what is left of a proxy has to be recognised by anybody.
    """
    return mark in marks or any(mark ^ (1 << bit) in marks for bit in range(32))
