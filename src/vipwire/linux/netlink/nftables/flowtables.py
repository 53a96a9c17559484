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
    attributes,
    encode_nested,
    number_of,
    string,
    text_of,
    u32be,
    walk,
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
    return _operation(family, table, name, priority, flags, ())


def add_devices(
    family: Family, table: str, name: str, priority: int, flags: int, devices: Iterable[str]
) -> list[Operation]:
    """Add devices to a flowtable, in as few operations as possible. The kernel refuses a missing device (ENOENT)."""
    waiting = iter(devices)
    operations: list[Operation] = []
    while some := tuple(islice(waiting, _MOST)):
        operations.append(_operation(family, table, name, priority, flags, some))
    return operations


def delete_flowtable(family: Family, table: str, name: str) -> Operation:
    """Delete a flowtable that no rule refers to. Its connections' packets pass the rules again."""
    body = string(wire.FLOWTABLE_TABLE, table) + string(wire.FLOWTABLE_NAME, name)
    return Operation(MessageType.DELFLOWTABLE, 0, wire.header(wire.NFPROTO[family]) + body)


def _operation(
    family: Family, table: str, name: str, priority: int, flags: int, devices: tuple[str, ...]
) -> Operation:
    listed = encode_nested(wire.FLOWTABLE_HOOK_DEVICES, *(string(wire.DEVICE_NAME, each) for each in devices))
    hook = encode_nested(
        wire.FLOWTABLE_HOOK,
        u32be(wire.FLOWTABLE_HOOK_NUMBER, _INGRESS),
        u32be(wire.FLOWTABLE_HOOK_PRIORITY, priority & 0xFFFFFFFF),
        listed if devices else b"",
    )
    body = string(wire.FLOWTABLE_TABLE, table) + string(wire.FLOWTABLE_NAME, name) + hook
    body += u32be(wire.FLOWTABLE_FLAGS, flags)
    return Operation(MessageType.NEWFLOWTABLE, NLM_F_CREATE, wire.header(wire.NFPROTO[family]) + body)


def decode_flowtable(payload: memoryview) -> Flowtable:
    found = attributes(payload, 4) if len(payload) >= 4 else {}
    if wire.FLOWTABLE_TABLE not in found or wire.FLOWTABLE_NAME not in found:
        raise DecodeError("a flowtable has no name")
    hook = attributes(found.get(wire.FLOWTABLE_HOOK, _NOTHING))
    priority = number_of(hook.get(wire.FLOWTABLE_HOOK_PRIORITY, _NOTHING))
    return Flowtable(
        payload[0],
        text_of(found[wire.FLOWTABLE_TABLE]),
        text_of(found[wire.FLOWTABLE_NAME]),
        priority - (1 << 32) if priority >> 31 else priority,
        number_of(found.get(wire.FLOWTABLE_FLAGS, _NOTHING)),
        frozenset(text_of(value) for _, value in walk(hook.get(wire.FLOWTABLE_HOOK_DEVICES, _NOTHING))),
    )
