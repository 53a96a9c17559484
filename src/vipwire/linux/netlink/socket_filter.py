"""Classic BPF for a netlink socket: a few instructions, jumps by name, packed as SO_ATTACH_FILTER takes them.

The kernel runs such a program on each message before it queues it, so that whoever listens to a multicast group is
not woken for what it would throw away. Two of its loads walk netlink attributes (net/core/filter.c, `SKF_AD_NLATTR`).
Loads are in network order, and jumps go forward only.
"""

import struct
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

LONGEST: Final = 4096
"""Instructions of a program at most (BPF_MAXINSNS)."""

_INSTRUCTION: Final = struct.Struct("=HBBI")
_LOAD_WORD, _LOAD_HALF, _LOAD_BYTE = 0x20, 0x28, 0x30  # BPF_LD | BPF_ABS
_LOAD_WORD_AT_X, _LOAD_BYTE_AT_X = 0x40, 0x50  # BPF_LD | BPF_IND
_SET_A, _SET_X, _X_FROM_A = 0x00, 0x01, 0x07
_JUMP, _IF_EQUAL, _IF_AT_LEAST, _IF_ANY_BIT, _RETURN = 0x05, 0x15, 0x35, 0x45, 0x06
_ATTRIBUTE, _NESTED_ATTRIBUTE = 0xFFFFF000 + 12, 0xFFFFF000 + 16  # SKF_AD_OFF + SKF_AD_NLATTR, SKF_AD_NLATTR_NEST
_PASS, _DISCARD = 0xFFFFFFFF, 0
_LEAF: Final = 8


class Instruction(NamedTuple):
    """One instruction. `then` and `otherwise` name where a condition leads, "" for the next instruction."""

    code: int
    value: int = 0
    then: str = ""
    otherwise: str = ""


class Place(NamedTuple):
    """A name for the instruction that follows."""

    name: str


Program = list[Instruction | Place]
PASS: Final = Instruction(_RETURN, _PASS)
DISCARD: Final = Instruction(_RETURN, _DISCARD)


def load_byte(at: int) -> Instruction:
    """Load the byte at an offset of the message."""
    return Instruction(_LOAD_BYTE, at)


def load_half(at: int) -> Instruction:
    """Load two bytes at an offset of the message."""
    return Instruction(_LOAD_HALF, at)


def load_word_of_attribute(at: int = 0) -> Instruction:
    """Load four bytes of the value of the attribute that was found."""
    return Instruction(_LOAD_WORD_AT_X, 4 + at)


def load_byte_of_attribute() -> Instruction:
    """Load the first byte of the value of the attribute that was found."""
    return Instruction(_LOAD_BYTE_AT_X, 4)


def if_equal(value: int, then: str = "", otherwise: str = "") -> Instruction:
    """Compare what was loaded."""
    return Instruction(_IF_EQUAL, value, then, otherwise)


def if_any_bit(bits: int, then: str = "", otherwise: str = "") -> Instruction:
    """Test bits of what was loaded."""
    return Instruction(_IF_ANY_BIT, bits, then, otherwise)


def go(name: str) -> Instruction:
    """Go on elsewhere, however far."""
    return Instruction(_JUMP, 0, name)


def find(start: int, *path: int, missing: str) -> Program:
    """Find an attribute by the types on the way to it, from the attributes at an offset of the message on."""
    steps: Program = [Instruction(_SET_A, start)]
    for depth, kind in enumerate(path):
        load = Instruction(_LOAD_WORD, _NESTED_ATTRIBUTE if depth else _ATTRIBUTE)
        steps += [Instruction(_SET_X, kind), load, if_equal(0, missing)]
    return [*steps, Instruction(_X_FROM_A)]


def pass_if_among(values: Iterable[int]) -> Program:
    """Pass the message if what was loaded is one of these, and discard it otherwise: by binary search."""
    return _among(sorted(set(values)))


def _among(values: Sequence[int]) -> Program:
    if len(values) <= _LEAF:
        steps: Program = []
        for index, value in enumerate(values):  # of the rest of the leaf, the last instruction passes
            steps.append(Instruction(_IF_EQUAL, value, f"+{len(values) - index}"))
        return [*steps, DISCARD, PASS]
    half = len(values) // 2
    left, right = _among(values[:half]), _among(values[half:])
    return [Instruction(_IF_AT_LEAST, values[half], "", "+1"), Instruction(_JUMP, len(left)), *left, *right]


def assemble(program: Program) -> bytes:
    """Pack a program. Raise ValueError if it is longer than the kernel takes, or a condition jumps too far."""
    places: dict[str, int] = {}
    steps: list[Instruction] = []
    for each in program:
        if isinstance(each, Place):
            places[each.name] = len(steps)
        else:
            steps.append(each)
    if len(steps) > LONGEST:
        raise ValueError(f"a socket filter has at most {LONGEST} instructions, not {len(steps)}")
    return b"".join(_packed(at, step, places) for at, step in enumerate(steps))


def _packed(at: int, step: Instruction, places: dict[str, int]) -> bytes:
    def distance(name: str) -> int:
        if name.startswith("+"):
            return int(name)
        return places[name] - at - 1 if name else 0

    if step.code == _JUMP:
        return _INSTRUCTION.pack(_JUMP, 0, 0, distance(step.then) or step.value)
    try:
        return _INSTRUCTION.pack(step.code, distance(step.then), distance(step.otherwise), step.value)
    except struct.error as error:
        raise ValueError(f"instruction {at} jumps too far") from error
