"""ctnetlink: decodes and filters the kernel's table of tracked connections, and deletes single flows.

Formats: include/uapi/linux/netfilter/nfnetlink_conntrack.h and net/netfilter/nf_conntrack_netlink.c. The *original*
tuple of a flow is the first packet as sent, so its destination is the VIP; the *reply* tuple is the expected answer,
so its source is the endpoint. A node has up to a million flows, so `FlowDecoder` does not walk their attributes.
"""

import enum
import struct
from collections.abc import Callable, Mapping
from operator import itemgetter
from typing import Any, NamedTuple, Self, TypeAlias

from vipwire.errors import DecodeError
from vipwire.linux.netlink.message import (
    NLM_F_CREATE,
    TYPE_MASK,
    Message,
    encode_attribute,
    encode_nested,
    encode_u32be,
)
from vipwire.model.net import Address, Family, Protocol

CT_NEW = 0x0100  # NFNL_SUBSYS_CTNETLINK << 8 | IPCTNL_MSG_CT_NEW
CT_GET = 0x0101
CT_DELETE = 0x0102

GROUP_NEW, GROUP_DESTROY = 1, 3  # NFNLGRP_CONNTRACK_*: the groups of events

STATUS_SEEN_REPLY = 1 << 1
STATUS_OFFLOADED = 1 << 14  # IPS_OFFLOAD: a flowtable has it

_HEADER = struct.Struct("=HH")
_AF = {Family.IPV4: 2, Family.IPV6: 10}
_PORTED = frozenset({6, 17, 33, 132, 136})  # TCP, UDP, DCCP, SCTP, UDP-Lite: their tuples hold two ports

_ORIGINAL, _REPLY, _STATUS, _TIMEOUT, _MARK, _ID, _ZONE, _FILTER, _STATUS_MASK = 1, 2, 3, 7, 8, 12, 18, 25, 26
_TUPLE_IP, _TUPLE_PROTO, _TUPLE_ZONE = 1, 2, 3
_PROTO_NUM, _SOURCE_PORT, _DESTINATION_PORT = 1, 2, 3
_FILTER_BY_PROTOCOL, _FILTER_BY_DESTINATION_PORT = 1 << 3, 1 << 5  # CTA_FILTER_F_*, kernel-internal.h


class Flow(NamedTuple):
    """One tracked connection. Ports are 0 if the protocol has none.

    `status` holds IPS_* bits, `timeout` is seconds to live, `identifier` the kernel's CTA_ID (unique among living
    flows), `zone` the zone of the original tuple (0 unless a program such as OVS uses zones).
    """

    protocol: int
    source: Address
    source_port: int
    destination: Address
    destination_port: int
    reply_source: Address
    reply_source_port: int
    reply_destination: Address
    reply_destination_port: int
    status: int = 0
    timeout: int = 0
    mark: int = 0
    identifier: int = 0
    zone: int = 0


class FlowChange(enum.Enum):
    """The change of a flow that an event reports."""

    NEW = "new"
    UPDATED = "updated"
    DESTROYED = "destroyed"


class FlowEvent(NamedTuple):
    """One event of the conntrack multicast groups."""

    change: FlowChange
    flow: Flow


def _encode_tuple(kind: int, ends: tuple[Address, int, Address, int], protocol: int) -> bytes:
    source, source_port, destination, destination_port = ends
    address = 1 if len(source) == 4 else 3  # CTA_IP_V4_SRC, CTA_IP_V6_SRC
    return encode_nested(
        kind,
        encode_nested(_TUPLE_IP, encode_attribute(address, source), encode_attribute(address + 1, destination)),
        encode_nested(
            _TUPLE_PROTO,
            encode_attribute(_PROTO_NUM, bytes((protocol,))),
            encode_attribute(_SOURCE_PORT, source_port.to_bytes(2)),
            encode_attribute(_DESTINATION_PORT, destination_port.to_bytes(2)),
        ),
    )


def encode_dump(
    family: Family, protocol: Protocol | None = None, destination_port: int = 0, *, unanswered: bool = False
) -> bytes:
    """Encode the payload of a CT_GET dump of one family: of a protocol or all, to one original port or any.

    Kernels since 5.8 filter by protocol and port (CTA_FILTER), since 5.15 by status; older ones do not, so callers
    filter again. No kernel filters a dump of both families. vipwire never filters by address: the kernel's comparison
    of IPv6 addresses is inverted.
    """
    header = struct.pack("=BBH", _AF[family], 0, 0)
    if unanswered:
        header += encode_u32be(_STATUS, 0) + encode_u32be(_STATUS_MASK, STATUS_SEEN_REPLY)
    if protocol is None:
        return header
    flags = _FILTER_BY_PROTOCOL
    wanted = encode_attribute(_PROTO_NUM, bytes((protocol,)))
    if destination_port:
        flags |= _FILTER_BY_DESTINATION_PORT
        wanted += encode_attribute(_DESTINATION_PORT, destination_port.to_bytes(2))
    return (
        header
        + encode_nested(_ORIGINAL, encode_nested(_TUPLE_PROTO, wanted))
        + encode_nested(
            _FILTER, encode_attribute(1, struct.pack("=I", flags))
        )  # CTA_FILTER_ORIG_FLAGS, in host order
    )


def encode_status_dump(family: Family, status: int) -> bytes:
    """Encode the payload of a CT_GET dump of flows with all of these bits; the kernel filters since 5.15."""
    bits = encode_u32be(_STATUS, status) + encode_u32be(_STATUS_MASK, status)
    return struct.pack("=BBH", _AF[family], 0, 0) + bits


def encode_reply_dump(
    protocol: Protocol, source: Address, source_port: int, destination: Address, destination_port: int
) -> bytes:
    ends = source, source_port, destination, destination_port
    return struct.pack("=BBH", 2 if len(source) == 4 else 10, 0, 0) + _encode_tuple(_REPLY, ends, protocol)


def encode_delete(flow: Flow) -> bytes:
    """Encode the payload of a CT_DELETE for this flow and no other.

    The identifier makes the kernel answer ENOENT if a newer flow has the same tuple. Raise ValueError for a protocol
    without ports: an empty tuple would mean all flows.
    """
    if flow.protocol not in _PORTED:
        raise ValueError(f"a flow of protocol {flow.protocol} has no ports to delete it by")
    return (
        struct.pack("=BBH", 2 if len(flow.source) == 4 else 10, 0, 0)
        + _encode_tuple(_ORIGINAL, flow[1:5], flow.protocol)
        + encode_u32be(_ID, flow.identifier)
        + (encode_attribute(_ZONE, flow.zone.to_bytes(2)) if flow.zone else b"")
    )


def encode_lookup(flow: Flow) -> bytes:
    """Encode the payload of a CT_GET for this flow's tuple; compare the identifier of the answer.

    Raise ValueError for a protocol without ports.
    """
    if flow.protocol not in _PORTED:
        raise ValueError(f"a flow of protocol {flow.protocol} has no ports to find it by")
    family = 2 if len(flow.source) == 4 else 10
    return struct.pack("=BBH", family, 0, 0) + _encode_tuple(_ORIGINAL, flow[1:5], flow.protocol)


_Tree: TypeAlias = "Mapping[int, int | _Tree]"

_ENDS = {1: 1, 2: 3, 3: 1, 4: 3}  # CTA_IP_V4_SRC, V4_DST, V6_SRC, V6_DST: their place in `Flow`
_TREE: _Tree = {
    _ORIGINAL: {
        _TUPLE_IP: _ENDS,
        _TUPLE_PROTO: {_PROTO_NUM: 0, _SOURCE_PORT: 2, _DESTINATION_PORT: 4},
        _TUPLE_ZONE: 13,
    },
    _REPLY: {
        _TUPLE_IP: {kind: field + 4 for kind, field in _ENDS.items()},
        _TUPLE_PROTO: {_SOURCE_PORT: 6, _DESTINATION_PORT: 8},
    },
    _STATUS: 9,
    _TIMEOUT: 10,
    _MARK: 11,
    _ID: 12,
    _ZONE: 13,
}
_ADDRESSES = (1, 3, 5, 7)
_SIZES = {0: 1, 2: 2, 4: 2, 6: 2, 8: 2, 9: 4, 10: 4, 11: 4, 12: 4, 13: 2}
_REQUIRED = frozenset((0, *_ADDRESSES))


class _Found(NamedTuple):
    """The offsets of a message's headers, and (offset, size) of each field of `Flow`."""

    headers: list[int]
    values: dict[int, tuple[int, int]]

    def search_attributes(self, payload: memoryview, at: int, end: int, tree: _Tree) -> None:
        """Record the attributes between `at` and `end` that `tree` knows."""
        while at + 4 <= end:
            length, kind = _HEADER.unpack_from(payload, at)
            if length < 4 or at + length > end:
                raise DecodeError(f"conntrack attribute {kind & TYPE_MASK} says it is {length} bytes long")
            self.headers.append(at)
            branch = tree.get(kind & TYPE_MASK)
            if isinstance(branch, int):
                self.values[branch] = at + 4, length - 4
            elif branch is not None:
                self.search_attributes(payload, at + 4, at + length, branch)
            at += (length + 3) & ~3


def _find_attributes(payload: memoryview) -> _Found:
    width = {2: 4, 10: 16}.get(payload[0] if len(payload) >= 4 else 0)
    if width is None:
        raise DecodeError("conntrack message is of neither IPv4 nor IPv6")
    found = _Found([], {})
    found.search_attributes(payload, 4, len(payload), _TREE)
    if not found.values.keys() >= _REQUIRED:
        raise DecodeError("conntrack message lacks a tuple, an address or the protocol")
    for field, (_, size) in found.values.items():
        if size != _SIZES.get(field, width):
            raise DecodeError(f"conntrack message has {size} bytes as its {Flow._fields[field]}")
    return found


def decode(payload: memoryview) -> Flow:
    """Decode one message of a dump or an event (its payload, from nfgenmsg on). Raise DecodeError."""
    values: list[Any] = [0] * len(Flow._fields)
    for field, (at, size) in _find_attributes(payload).values.items():
        raw = bytes(payload[at : at + size])
        values[field] = raw if field in _ADDRESSES else int.from_bytes(raw)
    return Flow._make(values)


def decode_event(message: Message, decoded: Callable[[memoryview], Flow] = decode) -> FlowEvent | None:
    """Decode a message of the groups `GROUP_*`; None for any other. Raise DecodeError if malformed.

    For many messages pass the `decode` of a `FlowDecoder`.
    """
    if message.type == CT_DELETE:
        return FlowEvent(FlowChange.DESTROYED, decoded(message.payload))
    if message.type == CT_NEW:
        change = FlowChange.NEW if message.flags & NLM_F_CREATE else FlowChange.UPDATED
        return FlowEvent(change, decoded(message.payload))
    return None


class _Shape(NamedTuple):
    """The layout shared by all messages with the same attributes in the same order."""

    mask: int
    headers: int
    values: struct.Struct
    order: Callable[[tuple[Any, ...]], tuple[Any, ...]]

    @classmethod
    def of(cls, payload: memoryview) -> Self:
        """Derive the shape of a message that `decode` accepts."""
        headers, values = _find_attributes(payload)
        mask = bytearray(len(payload))
        mask[0] = 0xFF  # the family
        for at in headers:
            mask[at : at + 4] = b"\xff" * 4
        bits = int.from_bytes(mask)
        layout, end = ">", 0
        places = sorted(values.items(), key=lambda item: item[1])
        for field, (at, size) in places:
            layout += f"{at - end}x{size}s" if field in _ADDRESSES else f"{at - end}x{'BH_I'[size // 2 + size // 4]}"
            end = at + size
        layout += f"{len(payload) - end}x"
        taken = {field: index for index, (field, _) in enumerate(places)}
        order = itemgetter(*(taken.get(field, len(places)) for field in range(len(Flow._fields))))
        return cls(bits, int.from_bytes(payload) & bits, struct.Struct(layout), order)


class FlowDecoder:
    """Decodes as `decode` does, but many times faster: it remembers the shapes of messages.

    A shape is all attribute headers with their offsets. A message with the same headers at the same offsets has its
    values at the same offsets.
    """

    def __init__(self) -> None:
        self._shapes: dict[tuple[int, int], _Shape] = {}

    def decode(self, payload: memoryview) -> Flow:
        if payload:
            key = payload[0], len(payload)
            shape = self._shapes.get(key)
            if shape is not None and int.from_bytes(payload) & shape.mask == shape.headers:
                return Flow._make(shape.order((*shape.values.unpack(payload), 0)))
        flow = decode(payload)
        self._shapes[key] = _Shape.of(payload)
        return flow
