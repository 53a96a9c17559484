"""Decodes the kernel's dumps: tables, chains, rules, sets and the generation. Elements are in `elements`.

Every function but `list_chain_names` takes the payload of one message of a dump, from the nfnetlink header on, and
raises DecodeError on malformed bytes.
"""

import errno
import struct
from typing import Final

from vipwire.errors import DecodeError
from vipwire.linux.netlink.message import (
    HEADER,
    NLM_F_DUMP_INTR,
    TYPE_MASK,
    collect_attributes,
    decode_number,
    decode_text,
    encode_string,
    walk_attributes,
)
from vipwire.linux.netlink.nftables import wire
from vipwire.linux.netlink.nftables.encode import POLICIES, NetfilterHook
from vipwire.linux.netlink.nftables.wire import MessageType, SetFlag
from vipwire.linux.netlink.socket import DumpInterruptedError, NetlinkSocket
from vipwire.model.net import Family
from vipwire.model.value import Value

_NOTHING = memoryview(b"")
_ATTRIBUTE = struct.Struct("=HH")
_POLICY = {number: name for name, number in POLICIES.items()}


class ListedTable(Value, frozen=True):
    """A table. `family` is the NFPROTO number: the kernel also lists families that vipwire does not know."""

    family: int
    name: str
    handle: int


class ListedChain(Value, frozen=True):
    """A chain. `hook` is None for a chain that is not a base chain."""

    family: int
    table: str
    name: str
    handle: int
    hook: NetfilterHook | None = None


class ListedNftRule(Value, frozen=True):
    """A rule. `expressions` are the raw attributes, to compare with a compiled rule."""

    family: int
    table: str
    chain: str
    handle: int
    expressions: bytes


class SetDeclaration(Value, frozen=True):
    """A set or map. Lengths are in bytes, `timeout` in ms, `size` 0 if unlimited.

    `attributes` are all raw attributes after table and name, to compare with a compiled set. `count` is the number of
    elements; None from kernels that do not report it (6.18 does).
    """

    family: int
    table: str
    name: str
    handle: int
    flags: SetFlag
    key_type: int
    key_length: int
    data_type: int
    data_length: int
    timeout: int
    size: int
    userdata: bytes
    attributes: bytes
    count: int | None = None

    @property
    def value_length(self) -> int:
        """The length of plain data in bytes: 0 for sets and verdict maps. For `decode_elements`."""
        return 0 if self.data_type == wire.DATA_VERDICT else self.data_length


class Generation(Value, frozen=True):
    """The ruleset's version, which every commit in the namespace increases by one.

    In a notification the process is the one that committed; in an answer the one that asked.
    """

    id: int
    process: int
    process_name: str


def _read_attributes(payload: memoryview, *needed: int) -> tuple[int, dict[int, memoryview]]:
    if len(payload) < 4:
        raise DecodeError("an nf_tables message is cut short")
    found = collect_attributes(payload, 4)
    missing = [kind for kind in needed if kind not in found]
    if missing:
        raise DecodeError(f"an nf_tables message lacks attribute {missing[0]}")
    return payload[0], found


def decode_table(payload: memoryview) -> ListedTable:
    family, found = _read_attributes(payload, wire.TABLE_NAME)
    return ListedTable(
        family, decode_text(found[wire.TABLE_NAME]), decode_number(found.get(wire.TABLE_HANDLE, _NOTHING))
    )


def decode_chain(payload: memoryview) -> ListedChain:
    family, found = _read_attributes(payload, wire.CHAIN_TABLE, wire.CHAIN_NAME)
    return ListedChain(
        family,
        decode_text(found[wire.CHAIN_TABLE]),
        decode_text(found[wire.CHAIN_NAME]),
        decode_number(found.get(wire.CHAIN_HANDLE, _NOTHING)),
        _decode_hook(found) if wire.CHAIN_HOOK in found else None,
    )


def _decode_hook(found: dict[int, memoryview]) -> NetfilterHook:
    place = collect_attributes(found[wire.CHAIN_HOOK])
    priority = bytes(place.get(wire.HOOK_PRIORITY, _NOTHING))
    if len(priority) != 4:
        raise DecodeError("a base chain has no priority")
    policy = decode_number(found.get(wire.CHAIN_POLICY, _NOTHING))
    listed = walk_attributes(place.get(wire.HOOK_DEVICES, _NOTHING))
    devices = tuple(decode_text(value) + ("" if kind == wire.DEVICE_NAME else "*") for kind, value in listed)
    if not devices and wire.HOOK_DEVICE in place:
        devices = (decode_text(place[wire.HOOK_DEVICE]),)
    return NetfilterHook(
        decode_text(found.get(wire.CHAIN_TYPE, _NOTHING)),
        decode_number(place.get(wire.HOOK_NUMBER, _NOTHING)),
        struct.unpack(">i", priority)[0],
        _POLICY.get(policy, str(policy)),
        devices,
    )


def decode_rule(payload: memoryview) -> ListedNftRule:
    family, found = _read_attributes(payload, wire.RULE_TABLE, wire.RULE_CHAIN)
    return ListedNftRule(
        family,
        decode_text(found[wire.RULE_TABLE]),
        decode_text(found[wire.RULE_CHAIN]),
        decode_number(found.get(wire.RULE_HANDLE, _NOTHING)),
        bytes(found.get(wire.RULE_EXPRESSIONS, _NOTHING)),
    )


def decode_expressions(payload: memoryview) -> bytes:
    """Return the raw expressions of a rule, without decoding the rest: dumps have many rules."""
    at, end = 4, len(payload)
    while at + 4 <= end:
        length, kind = _ATTRIBUTE.unpack_from(payload, at)
        if length < 4 or at + length > end:
            raise DecodeError(f"an attribute of a rule says it is {length} bytes long")
        if kind & TYPE_MASK == wire.RULE_EXPRESSIONS:
            return bytes(payload[at + 4 : at + length])
        at += (length + 3) & ~3
    return b""


def decode_set_declaration(payload: memoryview) -> SetDeclaration:
    family, found = _read_attributes(payload, wire.SET_TABLE, wire.SET_NAME)

    def value(kind: int) -> int:
        return decode_number(found.get(kind, _NOTHING))

    description = collect_attributes(found.get(wire.SET_DESCRIPTION, _NOTHING))
    return SetDeclaration(
        family,
        decode_text(found[wire.SET_TABLE]),
        decode_text(found[wire.SET_NAME]),
        value(wire.SET_HANDLE),
        SetFlag(value(wire.SET_FLAGS)),
        value(wire.SET_KEY_TYPE),
        value(wire.SET_KEY_LENGTH),
        value(wire.SET_DATA_TYPE),
        value(wire.SET_DATA_LENGTH),
        value(wire.SET_TIMEOUT),
        decode_number(description.get(wire.DESCRIPTION_SIZE, _NOTHING)),
        bytes(found.get(wire.SET_USERDATA, _NOTHING)),
        bytes(payload[4:]),
        value(wire.SET_COUNT) if wire.SET_COUNT in found else None,
    )


def decode_generation_id(payload: memoryview) -> int:
    """Decode only the number from the answer to Kind.GETGEN."""
    for kind, value in walk_attributes(payload, 4):
        if kind == wire.GENERATION_ID:
            return decode_number(value)
    raise DecodeError("an nf_tables generation without its number")


def decode_generation(payload: memoryview) -> Generation:
    _, found = _read_attributes(payload, wire.GENERATION_ID)
    return Generation(
        decode_number(found[wire.GENERATION_ID]),
        decode_number(found.get(wire.GENERATION_PROCESS, _NOTHING)),
        decode_text(found.get(wire.GENERATION_PROCESS_NAME, _NOTHING)),
    )


_BODY: Final = HEADER.size + 4
_HANDLE: Final = _ATTRIBUTE.pack(12, wire.CHAIN_HANDLE)
_DATAGRAM: Final = 1 << 15


def list_chain_names(sock: NetlinkSocket, family: Family) -> dict[str, dict[str, bool]]:
    """List the chains by table, each with whether it is a base chain. Raise DumpInterruptedError."""
    found: dict[str, dict[str, bool]] = {}
    tables: dict[bytes, dict[str, bool]] = {}
    for datagram in sock.dump_datagrams(MessageType.GETCHAIN, wire.encode_header(wire.NFPROTO[family]), _DATAGRAM):
        at, end = 0, len(datagram)
        while at < end:
            length, _, flags, _, _ = HEADER.unpack_from(datagram, at)
            if flags & NLM_F_DUMP_INTR:
                raise DumpInterruptedError(errno.EINTR, "the dump was interrupted by a change")
            if length <= _BODY or at + length > end:
                raise DecodeError(
                    f"a message of {length} bytes in a list of chains (allowed: {_BODY + 1} to {end - at})"
                )
            table, name, is_base = _read_chain_name(datagram, at + _BODY, at + length)
            chains = tables.get(table)
            if chains is None:
                chains = tables[table] = found.setdefault(table[_ATTRIBUTE.size :].rstrip(b"\0").decode(), {})
            chains[name] = is_base
            at += length + 3 & ~3
    return found


def _read_chain_name(datagram: bytes, at: int, end: int) -> tuple[bytes, str, bool]:
    """Decode a chain's table (as the attribute that names it), its name, and whether it is a base chain."""
    begin = at
    size, kind = _ATTRIBUTE.unpack_from(datagram, at)
    at += size + 3 & ~3
    table = datagram[begin:at]
    if datagram.startswith(_HANDLE, at):
        at += 12
    if kind == wire.CHAIN_TABLE and at + _ATTRIBUTE.size <= end:
        size, kind = _ATTRIBUTE.unpack_from(datagram, at)
        following = at + (size + 3 & ~3)
        if kind == wire.CHAIN_NAME and following + _ATTRIBUTE.size <= end:
            name = datagram[at + _ATTRIBUTE.size : at + size - 1].decode()
            return table, name, _ATTRIBUTE.unpack_from(datagram, following)[1] & TYPE_MASK == wire.CHAIN_HOOK
    whole = decode_chain(memoryview(datagram)[begin - 4 : end])
    return encode_string(wire.CHAIN_TABLE, whole.table), whole.name, whole.hook is not None
