"""Netlink messages: the 16-byte header, flags, and splitting of datagrams.

Layout: include/uapi/linux/netlink.h. All header fields are in host byte order.
"""

import struct
from collections.abc import Iterator
from typing import NamedTuple

from vipwire.errors import DecodeError

NLMSG_ERROR = 2
NLMSG_DONE = 3

NLM_F_REQUEST = 0x001
NLM_F_ACK = 0x004
NLM_F_DUMP_INTR = 0x010
NLM_F_DUMP = 0x300
NLM_F_EXCL = 0x200
NLM_F_CREATE = 0x400
NLM_F_APPEND = 0x800

HEADER = struct.Struct("=IHHII")  # length, type, flags, sequence number, port id


class Message(NamedTuple):
    """One received message. `payload` begins after the netlink header."""

    type: int
    flags: int
    sequence: int
    payload: memoryview


def encode(kind: int, flags: int, sequence: int, payload: bytes) -> bytes:
    """Encode one message, padded to the alignment of four bytes."""
    return b"".join(message(kind, flags, sequence, payload))


def message(kind: int, flags: int, sequence: int, payload: bytes) -> tuple[bytes, bytes, bytes]:
    """Encode one message as parts to be joined, which saves a copy of a large payload."""
    length = 16 + len(payload)
    return HEADER.pack(length, kind, flags, sequence, 0), payload, bytes(-length % 4)


def messages(data: bytes | memoryview) -> Iterator[Message]:
    """Split one datagram into its messages. Raise DecodeError on a wrong length."""
    view = memoryview(data)
    at = 0
    while at + 16 <= len(view):
        length, kind, flags, sequence, _ = HEADER.unpack_from(view, at)
        if length < 16 or at + length > len(view):
            raise DecodeError(f"netlink message at byte {at} says it is {length} bytes long")
        yield Message(kind, flags, sequence, view[at + 16 : at + length])
        at += (length + 3) & ~3


class Acknowledgement(NamedTuple):
    """The content of NLMSG_ERROR. `errno` is 0 for success; `text`, `offset` are the extended acknowledgement."""

    errno: int
    sequence: int
    text: str
    offset: int


def acknowledgement(message: Message) -> Acknowledgement:
    """Decode an NLMSG_ERROR message, with the kernel's explanation if present (NETLINK_EXT_ACK)."""
    payload = message.payload
    if len(payload) < 20:
        raise DecodeError("netlink acknowledgement is cut short")
    errno = -struct.unpack_from("=i", payload)[0]
    text, offset = "", 0
    if message.flags & 0x200:  # NLM_F_ACK_TLVS; the echoed message is capped to its header (NETLINK_CAP_ACK)
        at = 20 if message.flags & 0x100 else 4 + ((HEADER.unpack_from(payload, 4)[0] + 3) & ~3)
        while at + 4 <= len(payload):
            size, kind = struct.unpack_from("=HH", payload, at)
            if size < 4 or at + size > len(payload):
                break
            if kind == 1:
                text = bytes(payload[at + 4 : at + size]).rstrip(b"\0").decode(errors="replace")
            elif kind == 2 and size >= 8:
                offset = struct.unpack_from("=I", payload, at + 4)[0]
            at += (size + 3) & ~3
    return Acknowledgement(errno, HEADER.unpack_from(payload, 4)[3], text, offset)
