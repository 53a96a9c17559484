"""Computes the slot that the kernel's hash chooses: Bob Jenkins' lookup3 (include/linux/jhash.h)."""

import sys
from typing import Final

_WORD: Final = 0xFFFFFFFF
_START: Final = 0xDEADBEEF
_MIX: Final = (4, 6, 8, 16, 19, 4)
_FINAL: Final = (14, 11, 25, 16, 4, 14, 24)


def choose_slot(data: bytes, seed: int, modulus: int) -> int:
    """Return which of `modulus` slots the kernel chooses for a register (net/netfilter/nft_hash.c)."""
    return compute_jhash(data, seed) * modulus >> 32


def compute_jhash(data: bytes, seed: int) -> int:
    """Hash bytes to 32 bits, as the kernel's jhash does."""
    a = b = c = (_START + len(data) + seed) & _WORD
    while len(data) > 12:
        first, second, third = (int.from_bytes(data[at : at + 4], sys.byteorder) for at in (0, 4, 8))
        a, b, c = _mix_words((a + first) & _WORD, (b + second) & _WORD, (c + third) & _WORD)
        data = data[12:]
    if not data:
        return c
    padded = data.ljust(12, b"\0")
    first, second, third = (int.from_bytes(padded[at : at + 4], "little") for at in (0, 4, 8))
    return _finish_mix((a + first) & _WORD, (b + second) & _WORD, (c + third) & _WORD)


def _rotate_left(value: int, by: int) -> int:
    return (value << by | value >> (32 - by)) & _WORD


def _mix_words(a: int, b: int, c: int) -> tuple[int, int, int]:
    for by in _MIX:
        a = ((a - c) ^ _rotate_left(c, by)) & _WORD
        c = (c + b) & _WORD
        a, b, c = b, c, a
    return a, b, c


def _finish_mix(a: int, b: int, c: int) -> int:
    for by in _FINAL:
        c = ((c ^ b) - _rotate_left(b, by)) & _WORD
        a, b, c = b, c, a
    return b
