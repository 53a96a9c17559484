"""Writes the matches by which iptables chooses one of a pool's targets. Pure.

random        -m statistic --mode random   each rule takes its share of the packets that reach it
round-robin   -m statistic --mode nth      likewise, in turn: each rule counts the packets that reach it
source-hash   -m bpf                       a hash of the client's address
maglev        no match looks up a table: random instead, with a report

The hash is a program of the classic BPF:

    h = 0;  for each word of the source address:  h = (h ^ word) · 0x9e3779b1
    h ^= h >> 16;  h = h · 0x85ebca6b;  h ^= h >> 13;  h = h · 0xc2b2ae35;  h ^= h >> 16   (MurmurHash3's last steps)
    match if h mod total < bound

Packets start at the IP header; numbers have 32 bits (Documentation/networking/filter.rst). iptables' `-m cluster`
would hash only the first 32 bits of an IPv6 address.
"""

import math
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import accumulate
from typing import Final, NamedTuple

from vipwire.model.net import Address, Family
from vipwire.model.spread import Algorithm, fill_slots
from vipwire.modes.iptables.rules.words import match_chance
from vipwire.plan.plan import Forward, Target

_LOAD, _XOR_X, _MULTIPLY, _TO_X, _SHIFT, _MODULO, _AT_LEAST, _RETURN = 0x20, 0xAC, 0x24, 0x07, 0x74, 0x94, 0x35, 0x06
_SOURCE: Final = {Family.IPV4: 12, Family.IPV6: 8}
"""The offset of the source address in the IP header."""
_WORD: Final = 0x9E3779B1
_LAST: Final = ((16, 0x85EBCA6B), (13, 0xC2B2AE35), (16, 0))
_MASK: Final = 0xFFFFFFFF


class BpfInstruction(NamedTuple):
    """One instruction: code, jump offsets for a true and a false comparison, and operand."""

    code: int
    if_true: int
    if_false: int
    number: int


@lru_cache(maxsize=4096)
def write_hash_match(family: Family, total: int, bound: int) -> str:
    """Match clients whose address has one of the first `bound` of `total` slots."""
    program = [
        *_build_hash_program(family),
        BpfInstruction(_MODULO, 0, 0, total),
        BpfInstruction(_AT_LEAST, 1, 0, bound),
    ]
    program += [BpfInstruction(_RETURN, 0, 0, 1), BpfInstruction(_RETURN, 0, 0, 0)]
    text = ",".join([str(len(program)), *("{} {} {} {}".format(*step) for step in program)])
    return f'-m bpf --bytecode "{text}"'


def _build_hash_program(family: Family) -> Iterator[BpfInstruction]:
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


def run_program(bytecode: str, source: Address) -> bool:
    """Run a program of vipwire on a packet of a client. Raise ValueError for any other program."""
    try:
        return _run_instructions(_parse_program(bytecode), source)
    except (IndexError, ZeroDivisionError) as error:
        raise ValueError(f"vipwire writes no such BPF program: {bytecode!r}") from error


def _parse_program(bytecode: str) -> list[BpfInstruction]:
    program: list[BpfInstruction] = []
    for step in bytecode.split(",")[1:]:
        code, if_true, if_false, number = map(int, step.split())
        if min(code, if_true, if_false, number) < 0:
            raise ValueError(f"no instruction: {step!r}")
        program.append(BpfInstruction(code, if_true, if_false, number))
    return program


def _run_instructions(program: Sequence[BpfInstruction], source: Address) -> bool:
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
                raise ValueError(f"vipwire writes no BPF instruction {code:#x}")


MOST_TURNS: Final = 256
"""Limit of rules for weighted round robin; beyond it weights are rounded."""


def list_choices(family: Family, forward: Forward, *, hashes: bool) -> Iterator[tuple[str, Target]]:
    """Yield the targets in the order of their rules, each with its match; "" matches all.

    `hashes`: the kernel has `-m bpf`. Each match sees the packets that earlier rules let pass; the last one takes
    all.
    """
    pool, spread, weights = forward.pool, forward.spread, forward.weights
    match spread.algorithm:
        case Algorithm.ROUND_ROBIN:
            dealt = fill_slots(spread, pool, (), MOST_TURNS)
            for every, target in zip(range(len(dealt), 0, -1), dealt, strict=True):
                turn = f"-m statistic --mode nth --every {every} --packet 0"
                yield turn if every > 1 else "", target
        case Algorithm.SOURCE_HASH if hashes:
            divisor = math.gcd(*weights)
            total = sum(weights) // divisor
            for target, end in zip(pool, accumulate(weights), strict=True):
                yield write_hash_match(family, total, end // divisor) if end < total * divisor else "", target
        case _:
            left = sum(weights)
            for target, weight in zip(pool, weights, strict=True):
                yield match_chance(left, weight), target
                left -= weight
