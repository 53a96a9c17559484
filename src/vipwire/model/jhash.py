"""The kernel's jhash, with which rules deal clients to slots: to tell beforehand which slot a client gets.

Bob Jenkins' lookup3 as in include/linux/jhash.h, scaled to a number of slots as net/netfilter/nft_hash.c and
xt_cluster.c do.
"""

import sys
from typing import Final

_MASK: Final = 0xFFFFFFFF
_START: Final = 0xDEADBEEF
_MIX: Final = (4, 6, 8, 16, 19, 4)
_FINAL: Final = (14, 11, 25, 16, 4, 14, 24)


def slot(data: bytes, seed: int, modulus: int) -> int:
    """Return which of `modulus` slots the kernel chooses for the contents of a register."""
    return jhash(data, seed) * modulus >> 32


def jhash(data: bytes, seed: int) -> int:
    """Hash bytes to 32 bits, as the kernel's function of this name does."""
    a = b = c = (_START + len(data) + seed) & _MASK
    while len(data) > 12:
        first, second, third = (int.from_bytes(data[at : at + 4], sys.byteorder) for at in (0, 4, 8))
        a, b, c = _mixed((a + first) & _MASK, (b + second) & _MASK, (c + third) & _MASK)
        data = data[12:]
    if not data:
        return c
    padded = data.ljust(12, b"\0")
    first, second, third = (int.from_bytes(padded[at : at + 4], "little") for at in (0, 4, 8))
    return _finished((a + first) & _MASK, (b + second) & _MASK, (c + third) & _MASK)


def _rotated(value: int, by: int) -> int:
    return (value << by | value >> (32 - by)) & _MASK


def _mixed(a: int, b: int, c: int) -> tuple[int, int, int]:
    for by in _MIX:
        a = ((a - c) ^ _rotated(c, by)) & _MASK
        c = (c + b) & _MASK
        a, b, c = b, c, a
    return a, b, c


def _finished(a: int, b: int, c: int) -> int:
    for by in _FINAL:
        c = ((c ^ b) - _rotated(b, by)) & _MASK
        a, b, c = b, c, a
    return b
