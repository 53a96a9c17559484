"""Assembles classic BPF for a netlink socket: instructions and jumps by name, packed for SO_ATTACH_FILTER.

The kernel runs the program on each message before queueing it, so that unwanted messages do not wake the process. Two
loads walk netlink attributes (net/core/filter.c, `SKF_AD_NLATTR`). Loads are in network order, jumps go forward only.

Of conntrack's events `pass_new_and_ended_flows` passes

    NEW          a flow of one of the protocols to one of the endpoints begins (TCP: with a SYN)
    DESTROYED    it ends without an answer; the kernel destroys a flow at once whose only answer is a reset

The filter compares the last four bytes of an address, so that it may pass another IPv6 address. If a program cannot
hold all addresses, it passes every address. vipwire does not join the group of updates: each message costs the kernel
over a microsecond, six a connection.
"""

import struct
import sys
from collections.abc import Collection, Iterable, Sequence
from typing import Final, NamedTuple

from vipwire.linux.netlink.conntrack import CT_DELETE, CT_NEW, STATUS_SEEN_REPLY
from vipwire.linux.netlink.message import NLM_F_CREATE
from vipwire.model.net import Address, Protocol

LONGEST: Final = 4096
"""The most instructions of a program (BPF_MAXINSNS)."""

_INSTRUCTION: Final = struct.Struct("=HBBI")
_LOAD_WORD, _LOAD_HALF, _LOAD_BYTE = 0x20, 0x28, 0x30  # BPF_LD | BPF_ABS
_LOAD_WORD_AT_X, _LOAD_BYTE_AT_X = 0x40, 0x50  # BPF_LD | BPF_IND
_SET_A, _SET_X, _X_FROM_A = 0x00, 0x01, 0x07
_JUMP, _IF_EQUAL, _IF_AT_LEAST, _IF_ANY_BIT, _RETURN = 0x05, 0x15, 0x35, 0x45, 0x06
_ATTRIBUTE, _NESTED_ATTRIBUTE = 0xFFFFF000 + 12, 0xFFFFF000 + 16  # SKF_AD_OFF + SKF_AD_NLATTR, SKF_AD_NLATTR_NEST
_PASS, _DISCARD = 0xFFFFFFFF, 0
_LEAF: Final = 8


class Instruction(NamedTuple):
    """One instruction. `then` and `otherwise` are the labels of a condition, "" for the next instruction."""

    code: int
    value: int = 0
    then: str = ""
    otherwise: str = ""


class Label(NamedTuple):
    """A name for the instruction that follows."""

    name: str


Program = list[Instruction | Label]
PASS: Final = Instruction(_RETURN, _PASS)
DISCARD: Final = Instruction(_RETURN, _DISCARD)


def load_byte(at: int) -> Instruction:
    return Instruction(_LOAD_BYTE, at)


def load_word(at: int) -> Instruction:
    return Instruction(_LOAD_WORD, at)


def load_half(at: int) -> Instruction:
    return Instruction(_LOAD_HALF, at)


def load_word_of_attribute(at: int = 0) -> Instruction:
    """Load four bytes of the found attribute's value."""
    return Instruction(_LOAD_WORD_AT_X, 4 + at)


def load_byte_of_attribute() -> Instruction:
    return Instruction(_LOAD_BYTE_AT_X, 4)


def if_equal(value: int, then: str = "", otherwise: str = "") -> Instruction:
    return Instruction(_IF_EQUAL, value, then, otherwise)


def if_any_bit(bits: int, then: str = "", otherwise: str = "") -> Instruction:
    return Instruction(_IF_ANY_BIT, bits, then, otherwise)


def jump_to(name: str) -> Instruction:
    """Jump to a label at any distance."""
    return Instruction(_JUMP, 0, name)


def find_attribute(start: int, *path: int, missing: str) -> Program:
    """Find an attribute by the path of types from the attributes at offset `start`; jump to `missing` if absent."""
    steps: Program = [Instruction(_SET_A, start)]
    for depth, kind in enumerate(path):
        load = Instruction(_LOAD_WORD, _NESTED_ATTRIBUTE if depth else _ATTRIBUTE)
        steps += [Instruction(_SET_X, kind), load, if_equal(0, missing)]
    return [*steps, Instruction(_X_FROM_A)]


def pass_if_among(values: Iterable[int]) -> Program:
    """Pass the message if the loaded value is one of `values`, else discard it; a binary search."""
    return _search_values(sorted(set(values)))


def _search_values(values: Sequence[int]) -> Program:
    if len(values) <= _LEAF:
        steps: Program = []
        for index, value in enumerate(values):  # of the other values of this leaf, the last instruction passes
            steps.append(Instruction(_IF_EQUAL, value, f"+{len(values) - index}"))
        return [*steps, DISCARD, PASS]
    half = len(values) // 2
    left, right = _search_values(values[:half]), _search_values(values[half:])
    return [Instruction(_IF_AT_LEAST, values[half], "", "+1"), Instruction(_JUMP, len(left)), *left, *right]


def assemble(program: Program) -> bytes:
    """Pack a program. Raise ValueError if the program exceeds the kernel's limit, or a condition jumps too far."""
    places: dict[str, int] = {}
    steps: list[Instruction] = []
    for each in program:
        if isinstance(each, Label):
            places[each.name] = len(steps)
        else:
            steps.append(each)
    if len(steps) > LONGEST:
        raise ValueError(f"a socket filter has at most {LONGEST} instructions, not {len(steps)}")
    return b"".join(_encode_step(at, step, places) for at, step in enumerate(steps))


def _encode_step(at: int, step: Instruction, places: dict[str, int]) -> bytes:
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


MOST_ADDRESSES: Final = 1024

_TYPE, _FLAGS, _PORT, _FAMILY, _ATTRIBUTES = 4, 6, 12, 16, 20  # nlmsghdr has 16 bytes, nfgenmsg 4
_ORIGINAL, _REPLY, _STATUS, _PROTOCOL_STATE = 1, 2, 3, 4
_AF_INET = 2
_SYN_SENT = 1  # enum tcp_conntrack


def ignore_senders(ports: Iterable[int]) -> bytes:
    """Pass all messages but those that requests from netlink sockets with these port IDs cause."""
    ours = (if_equal(int.from_bytes(port.to_bytes(4, sys.byteorder)), "discard") for port in ports)
    return assemble([load_word(_PORT), *ours, PASS, Label("discard"), DISCARD])


def pass_new_and_ended_flows(addresses: Collection[Address], protocols: Iterable[Protocol]) -> bytes:
    protocol = [
        *find_attribute(_ATTRIBUTES, _ORIGINAL, 2, 1, missing="discard"),
        load_byte_of_attribute(),
    ]  # CTA_PROTO_NUM
    return assemble(
        [
            *protocol,
            *(if_equal(each, "wanted") for each in sorted(protocols)),
            jump_to("discard"),
            Label("wanted"),
            load_half(_TYPE),
            if_equal(_convert_to_network_order(CT_DELETE), "destroyed"),
            if_equal(_convert_to_network_order(CT_NEW), "", "discard"),
            load_half(_FLAGS),
            if_any_bit(_convert_to_network_order(NLM_F_CREATE), "new", "discard"),
            Label("destroyed"),
            *find_attribute(_ATTRIBUTES, _STATUS, missing="discard"),
            load_word_of_attribute(),
            if_any_bit(STATUS_SEEN_REPLY, "discard", "address"),
            Label("new"),
            *protocol,
            if_equal(Protocol.TCP, "", "address"),
            *find_attribute(_ATTRIBUTES, _PROTOCOL_STATE, 1, 1, missing="discard"),  # CTA_PROTOINFO_TCP, _TCP_STATE
            load_byte_of_attribute(),
            if_equal(_SYN_SENT, "address"),
            Label("discard"),
            DISCARD,
            Label("address"),
            *_filter_addresses(addresses),
        ]
    )


def _filter_addresses(addresses: Collection[Address]) -> Program:
    if len(addresses) > MOST_ADDRESSES:
        return [PASS]
    return [
        load_byte(_FAMILY),
        if_equal(_AF_INET, "", "IPv6"),
        *find_attribute(_ATTRIBUTES, _REPLY, 1, 1, missing="stray"),  # CTA_TUPLE_IP, CTA_IP_V4_SRC
        load_word_of_attribute(),
        jump_to("compare"),
        Label("IPv6"),
        *find_attribute(_ATTRIBUTES, _REPLY, 1, 3, missing="stray"),  # CTA_IP_V6_SRC
        load_word_of_attribute(12),
        jump_to("compare"),
        Label("stray"),
        DISCARD,
        Label("compare"),
        *pass_if_among(int.from_bytes(address[-4:]) for address in addresses),
    ]


def _convert_to_network_order(number: int) -> int:
    """Convert a number in host order to the value of a load in network order."""
    loaded: int = struct.unpack(">H", struct.pack("=H", number))[0]
    return loaded
