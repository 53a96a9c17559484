"""Netlink attributes: type-length-value triples, padded to four bytes, nested by a flag in the type.

Layout: include/uapi/linux/netlink.h (struct nlattr). The header is in host byte order. The byte order of values
depends on the netlink family: nfnetlink uses big endian, as the encoders' names say.
"""

import struct
from collections.abc import Iterator

from vipwire.errors import DecodeError

NESTED = 0x8000
TYPE_MASK = 0x3FFF

_HEADER = struct.Struct("=HH")
_NUL_AND_PADDING = (b"\0", b"\0\0\0\0", b"\0\0\0", b"\0\0")
_U32BE = struct.Struct("=HH4s")


def attribute(kind: int, value: bytes) -> bytes:
    length = 4 + len(value)
    return _HEADER.pack(length, kind) + value + bytes(-length % 4)


def encode_nested(kind: int, *parts: bytes) -> bytes:
    value = b"".join(parts)
    return _HEADER.pack(4 + len(value), kind | NESTED) + value


def string(kind: int, text: str) -> bytes:
    value = text.encode()
    length = 5 + len(value)
    return _HEADER.pack(length, kind) + value + _NUL_AND_PADDING[length & 3]


def u32be(kind: int, value: int) -> bytes:
    return _U32BE.pack(8, kind, value.to_bytes(4, "big"))


def walk(data: bytes | memoryview, at: int = 0) -> Iterator[tuple[int, memoryview]]:
    """Yield (type without its flags, value) for each attribute from `at` on. Raise DecodeError on a bad length."""
    view = memoryview(data)
    end = len(view)
    while at + 4 <= end:
        length, kind = _HEADER.unpack_from(view, at)
        if length < 4 or at + length > end:
            raise DecodeError(f"netlink attribute {kind & TYPE_MASK} says it is {length} bytes long")
        yield kind & TYPE_MASK, view[at + 4 : at + length]
        at += (length + 3) & ~3


def attributes(data: bytes | memoryview, at: int = 0) -> dict[int, memoryview]:
    """Collect attributes by type; of a repeated one the last counts."""
    return dict(walk(data, at))


def text_of(value: memoryview) -> str:
    return bytes(value).rstrip(b"\0").decode(errors="replace")


def number_of(value: memoryview) -> int:
    """Decode an unsigned number in network order, of any width."""
    return int.from_bytes(value)
