"""A hash of the client's address as a program of the classic BPF, which `-m bpf` runs on a packet. Pure.

    h = 0;  for each word of the source address:  h = (h ^ word) · 0x9e3779b1
    h ^= h >> 16;  h = h · 0x85ebca6b;  h ^= h >> 13;  h = h · 0xc2b2ae35;  h ^= h >> 16   (MurmurHash3's last steps)
    match if h mod total < bound

Packets are seen from the IP header on; numbers have 32 bits (Documentation/networking/filter.rst). iptables' own
`-m cluster` hashes addresses too, but of an IPv6 address the first 32 bits only.
"""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Final, NamedTuple

from vipwire.model.net import Address, Family

_LOAD, _XOR_X, _MULTIPLY, _TO_X, _SHIFT, _MODULO, _AT_LEAST, _RETURN = 0x20, 0xAC, 0x24, 0x07, 0x74, 0x94, 0x35, 0x06
_SOURCE: Final = {Family.IPV4: 12, Family.IPV6: 8}
"""Where the source address begins in the header."""
_WORD: Final = 0x9E3779B1
_LAST: Final = ((16, 0x85EBCA6B), (13, 0xC2B2AE35), (16, 0))
_MASK: Final = 0xFFFFFFFF


class BpfInstruction(NamedTuple):
    """One instruction: its code, how many to skip if a comparison holds and if it does not, and its operand."""

    code: int
    if_true: int
    if_false: int
    number: int


@lru_cache(maxsize=4096)
def hash_match(family: Family, total: int, bound: int) -> str:
    """Match clients whose address has one of the first `bound` of `total` slots."""
    program = [*_hash(family), BpfInstruction(_MODULO, 0, 0, total), BpfInstruction(_AT_LEAST, 1, 0, bound)]
    program += [BpfInstruction(_RETURN, 0, 0, 1), BpfInstruction(_RETURN, 0, 0, 0)]
    text = ",".join([str(len(program)), *("{} {} {} {}".format(*step) for step in program)])
    return f'-m bpf --bytecode "{text}"'


def _hash(family: Family) -> Iterator[BpfInstruction]:
    first = _SOURCE[family]
    for at in range(first, first + family.bits // 8, 4):
        yield BpfInstruction(_LOAD, 0, 0, at)
        if at > first:
            yield BpfInstruction(_XOR_X, 0, 0, 0)
        yield BpfInstruction(_MULTIPLY, 0, 0, _WORD)
        yield BpfInstruction(_TO_X, 0, 0, 0)
    for shift, factor in _LAST:
        yield BpfInstruction(_SHIFT, 0, 0, shift)
        yield BpfInstruction(_XOR_X, 0, 0, 0)
        if factor:
            yield BpfInstruction(_MULTIPLY, 0, 0, factor)
            yield BpfInstruction(_TO_X, 0, 0, 0)


def matches(bytecode: str, source: Address) -> bool:
    """Run a program of ours on a packet of a client. Raise ValueError for one that ours could not be."""
    try:
        return _run(_program(bytecode), source)
    except (IndexError, ZeroDivisionError) as error:
        raise ValueError(f"no program of ours: {bytecode!r}") from error


def _program(bytecode: str) -> list[BpfInstruction]:
    program: list[BpfInstruction] = []
    for step in bytecode.split(",")[1:]:
        code, if_true, if_false, number = map(int, step.split())
        if min(code, if_true, if_false, number) < 0:
            raise ValueError(f"no instruction: {step!r}")
        program.append(BpfInstruction(code, if_true, if_false, number))
    return program


def _run(program: Sequence[BpfInstruction], source: Address) -> bool:
    """Run a program; it only goes forward, so that it ends."""
    header = bytes(_SOURCE[Family.IPV4 if len(source) == 4 else Family.IPV6]) + source
    a = x = at = 0
    while True:
        code, if_true, if_false, number = program[at]
        at += 1
        match code:
            case 0x20:
                a = int.from_bytes(header[number : number + 4])
            case 0xAC:
                a ^= x
            case 0x24:
                a = a * number & _MASK
            case 0x07:
                x = a
            case 0x74:
                a >>= min(number, 32)
            case 0x94:
                a %= number
            case 0x35:
                at += if_true if a >= number else if_false
            case 0x06:
                return number != 0
            case _:
                raise ValueError(f"the instruction {code:#x} is not one of ours")
