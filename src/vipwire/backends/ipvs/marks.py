"""Marks for frontends that need a second pool: a packet that carries one goes to the virtual server of that mark.

A virtual server has one pool, and a frontend whose external policy is Local has two: that of this node for clients
outside, that of the cluster for clients on this node. The latter is the virtual server of the VIP; the former is one
of a mark, which an ipset gives to the packets of clients outside.

A mark is a checksum of the frontend, so that the next process finds the same one. Two frontends with the same
checksum (one case in ten million for 20 frontends, one in 4,000 for 1,000) are told apart by counting on.
"""

import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from vipwire.plan.plan import FrontendKey

_BITS = 0x7FFFFFFF  # ipvsadm lists greater numbers as negative ones


@dataclass(slots=True)
class Marks:
    """Who has which mark. `avoid` are bits that mean something else, such as: masquerade me."""

    avoid: int
    _of: dict[FrontendKey, int] = field(default_factory=dict)
    _taken: dict[int, FrontendKey] = field(default_factory=dict)

    @property
    def given(self) -> Mapping[FrontendKey, int]:
        """The marks that were asked for so far."""
        return MappingProxyType(self._of)

    def mark(self, key: FrontendKey) -> int:
        """Tell a frontend's mark; never 0."""
        known = self._of.get(key)
        if known is not None and not known & self.avoid:
            return known
        if known is not None:
            del self._taken[known]
        number = zlib.crc32(key.port.to_bytes(2) + bytes((key.protocol,)) + (key.address or b""))
        while (mark := number & ~self.avoid & _BITS) == 0 or mark in self._taken:
            number += 1
        self._of[key] = mark
        self._taken[mark] = key
        return mark
