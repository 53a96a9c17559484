"""Userdata: nft's notes in tables, chains, rules, sets and elements; the kernel only stores them.

Userdata is a sequence of (type: u8, length: u8, value) without padding; numbers are in host byte order. Types per
object: libnftnl's udata.h. An object has at most 256 bytes (NFT_USERDATA_MAXLEN).
"""

import struct

from vipwire.errors import DecodeError

MAXIMUM = 256

COMMENT = 0  # of a table, chain, rule or element
SET_KEY_BYTEORDER, SET_DATA_BYTEORDER, SET_KEY_TYPEOF, SET_DATA_TYPEOF = 0, 1, 3, 4
SET_DATA_INTERVAL = 6
ELEMENT_FLAGS = 1
ELEMENT_OPEN_INTERVAL = 0x1  # the interval reaches to the last address, so no element marks its end

LONGEST_COMMENT = 128  # nft's own limit, without the NUL (NFTNL_UDATA_COMMENT_MAXLEN)


def encode_entry(kind: int, value: bytes) -> bytes:
    """Encode one entry. Raise ValueError if the value is longer than 255 bytes."""
    if len(value) > 255:
        raise ValueError(f"userdata has {len(value)} bytes (allowed: at most 255)")
    return bytes((kind, len(value))) + value


def encode_number(kind: int, value: int) -> bytes:
    return struct.pack("=BBI", kind, 4, value)


def encode_comment(text: str) -> bytes:
    """Encode a comment, cut to the 128 bytes that nft allows (never inside a character)."""
    value = text.encode()
    if len(value) > LONGEST_COMMENT:
        value = value[:LONGEST_COMMENT].decode(errors="ignore").encode()
    return bytes((COMMENT, len(value) + 1)) + value + b"\0"


def decode_entries(data: bytes) -> dict[int, bytes]:
    """Decode all entries by type. Raise DecodeError on a wrong length."""
    found: dict[int, bytes] = {}
    at = 0
    while at < len(data):
        if at + 2 > len(data) or at + 2 + data[at + 1] > len(data):
            raise DecodeError("userdata of nf_tables is cut short")
        found[data[at]] = data[at + 2 : at + 2 + data[at + 1]]
        at += 2 + data[at + 1]
    return found


def decode_comment(data: bytes) -> str:
    """Decode the comment; "" without one, or if another tool's userdata has another format."""
    if not data:
        return ""
    try:
        return decode_entries(data).get(COMMENT, b"").rstrip(b"\0").decode(errors="replace")
    except DecodeError:
        return ""
