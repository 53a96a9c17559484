"""Netlink messages: the 16-byte header, flags, splitting of datagrams; and the attributes of a message.

Layout: include/uapi/linux/netlink.h. All header fields are in host byte order. Attributes are triples of type, length
and value (struct nlattr), padded to four bytes, nested by a flag in the type. The byte order of values depends on the
netlink family: nfnetlink uses big endian, as the encoders' names say.
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


def encode_message(kind: int, flags: int, sequence: int, payload: bytes) -> bytes:
    """Encode one message, padded to the alignment of four bytes."""
    return b"".join(build_message(kind, flags, sequence, payload))


def build_message(kind: int, flags: int, sequence: int, payload: bytes) -> tuple[bytes, ...]:
    """Encode one message as parts to be joined, which saves a copy of a large payload."""
    length = 16 + len(payload)
    return HEADER.pack(length, kind, flags, sequence, 0), payload, *([bytes(-length % 4)] if length % 4 else ())


def split_messages(data: bytes | memoryview) -> Iterator[Message]:
    """Split one datagram into its messages. Raise DecodeError on a wrong length."""
    view = memoryview(data)
    at = 0
    while at + 16 <= len(view):
        length, kind, flags, sequence, _ = HEADER.unpack_from(view, at)
        if length < 16 or at + length > len(view):
            raise DecodeError(f"netlink message at byte {at} says it is {length} bytes long")
        yield Message(kind, flags, sequence, view[at + 16 : at + length])
        at += (length + 3) & ~3


NESTED = 0x8000
TYPE_MASK = 0x3FFF

_ATTRIBUTE = struct.Struct("=HH")
_NUL_AND_PADDING = (b"\0", b"\0\0\0\0", b"\0\0\0", b"\0\0")
_U32BE = struct.Struct("=HH4s")


def encode_attribute(kind: int, value: bytes) -> bytes:
    length = 4 + len(value)
    return _ATTRIBUTE.pack(length, kind) + value + bytes(-length % 4)


def encode_nested(kind: int, *parts: bytes) -> bytes:
    value = b"".join(parts)
    return _ATTRIBUTE.pack(4 + len(value), kind | NESTED) + value


def encode_string(kind: int, text: str) -> bytes:
    value = text.encode()
    length = 5 + len(value)
    return _ATTRIBUTE.pack(length, kind) + value + _NUL_AND_PADDING[length & 3]


def encode_u32be(kind: int, value: int) -> bytes:
    return _U32BE.pack(8, kind, value.to_bytes(4, "big"))


def walk_attributes(data: bytes | memoryview, at: int = 0) -> Iterator[tuple[int, memoryview]]:
    """Yield (type without its flags, value) for each attribute from `at` on. Raise DecodeError on a bad length."""
    view = memoryview(data)
    end = len(view)
    while at + 4 <= end:
        length, kind = _ATTRIBUTE.unpack_from(view, at)
        if length < 4 or at + length > end:
            raise DecodeError(f"netlink attribute {kind & TYPE_MASK} says it is {length} bytes long")
        yield kind & TYPE_MASK, view[at + 4 : at + length]
        at += (length + 3) & ~3


def collect_attributes(data: bytes | memoryview, at: int = 0) -> dict[int, memoryview]:
    """Collect attributes by type; of a repeated one the last counts."""
    return dict(walk_attributes(data, at))


def decode_text(value: memoryview) -> str:
    return bytes(value).rstrip(b"\0").decode(errors="replace")


def decode_number(value: memoryview) -> int:
    """Decode an unsigned number in network order, of any width."""
    return int.from_bytes(value)


class Acknowledgement(NamedTuple):
    """The content of NLMSG_ERROR. `errno` is 0 for success; `text` is the kernel's explanation, if any."""

    errno: int
    sequence: int
    text: str = ""


def decode_acknowledgement(message: Message) -> Acknowledgement:
    """Decode an NLMSG_ERROR message, with the kernel's explanation if present (NETLINK_EXT_ACK)."""
    payload, text = message.payload, ""
    if len(payload) < 20:
        raise DecodeError("netlink acknowledgement is cut short")
    if message.flags & 0x200:  # NLM_F_ACK_TLVS; the echoed message is capped to its header (NETLINK_CAP_ACK)
        at = 20 if message.flags & 0x100 else 4 + ((HEADER.unpack_from(payload, 4)[0] + 3) & ~3)
        text = decode_text(collect_attributes(payload, at).get(1, memoryview(b"")))  # NLMSGERR_ATTR_MSG
    return Acknowledgement(-struct.unpack_from("=i", payload)[0], HEADER.unpack_from(payload, 4)[3], text)
