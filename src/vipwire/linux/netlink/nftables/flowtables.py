"""Encodes and decodes flowtables, which forward a connection's packets at the ingress of their devices.

Formats: NFTA_FLOWTABLE_* of include/uapi/linux/netfilter/nf_tables.h. The message that creates a flowtable also adds
devices to an existing one (Linux 5.8). The kernel removes a device that disappears.
"""

from collections.abc import Iterable
from itertools import islice
from typing import Final, NamedTuple

from vipwire.errors import DecodeError
from vipwire.linux.netlink.message import (
    NLM_F_CREATE,
    collect_attributes,
    decode_number,
    decode_text,
    encode_nested,
    encode_string,
    encode_u32be,
    walk_attributes,
)
from vipwire.linux.netlink.nftables import wire
from vipwire.linux.netlink.nftables.encode import Operation
from vipwire.linux.netlink.nftables.wire import MessageType
from vipwire.model.net import Family

_INGRESS: Final = 0
_MOST: Final = 256
"""The most devices in one message (NFT_NETDEVICE_MAX)."""
_NOTHING: Final = memoryview(b"")


class Flowtable(NamedTuple):
    """A flowtable in the kernel; `priority` is that of its ingress hook, `flags` are NFT_FLOWTABLE_*."""

    family: int
    table: str
    name: str
    priority: int
    flags: int
    devices: frozenset[str]


def new_flowtable(family: Family, table: str, name: str, priority: int, flags: int) -> Operation:
    """Create a flowtable without devices unless it exists."""
    return _build_operation(family, table, name, priority, flags, ())


def add_devices(
    family: Family, table: str, name: str, priority: int, flags: int, devices: Iterable[str]
) -> list[Operation]:
    """Add devices to a flowtable, in as few operations as possible. The kernel refuses a missing device (ENOENT)."""
    waiting = iter(devices)
    operations: list[Operation] = []
    while some := tuple(islice(waiting, _MOST)):
        operations.append(_build_operation(family, table, name, priority, flags, some))
    return operations


def delete_flowtable(family: Family, table: str, name: str) -> Operation:
    """Delete a flowtable that no rule refers to. Its connections' packets pass the rules again."""
    body = encode_string(wire.FLOWTABLE_TABLE, table) + encode_string(wire.FLOWTABLE_NAME, name)
    return Operation(MessageType.DELFLOWTABLE, 0, wire.encode_header(wire.NFPROTO[family]) + body)


def _build_operation(
    family: Family, table: str, name: str, priority: int, flags: int, devices: tuple[str, ...]
) -> Operation:
    listed = encode_nested(wire.FLOWTABLE_HOOK_DEVICES, *(encode_string(wire.DEVICE_NAME, each) for each in devices))
    hook = encode_nested(
        wire.FLOWTABLE_HOOK,
        encode_u32be(wire.FLOWTABLE_HOOK_NUMBER, _INGRESS),
        encode_u32be(wire.FLOWTABLE_HOOK_PRIORITY, priority & 0xFFFFFFFF),
        listed if devices else b"",
    )
    body = encode_string(wire.FLOWTABLE_TABLE, table) + encode_string(wire.FLOWTABLE_NAME, name) + hook
    body += encode_u32be(wire.FLOWTABLE_FLAGS, flags)
    return Operation(MessageType.NEWFLOWTABLE, NLM_F_CREATE, wire.encode_header(wire.NFPROTO[family]) + body)


def decode_flowtable(payload: memoryview) -> Flowtable:
    found = collect_attributes(payload, 4) if len(payload) >= 4 else {}
    if wire.FLOWTABLE_TABLE not in found or wire.FLOWTABLE_NAME not in found:
        raise DecodeError("a flowtable has no name")
    hook = collect_attributes(found.get(wire.FLOWTABLE_HOOK, _NOTHING))
    priority = decode_number(hook.get(wire.FLOWTABLE_HOOK_PRIORITY, _NOTHING))
    return Flowtable(
        payload[0],
        decode_text(found[wire.FLOWTABLE_TABLE]),
        decode_text(found[wire.FLOWTABLE_NAME]),
        priority - (1 << 32) if priority >> 31 else priority,
        decode_number(found.get(wire.FLOWTABLE_FLAGS, _NOTHING)),
        frozenset(
            decode_text(value) for _, value in walk_attributes(hook.get(wire.FLOWTABLE_HOOK_DEVICES, _NOTHING))
        ),
    )
