"""Generic netlink: how a family that has no number of its own is found, and the header of its messages.

Layouts: include/uapi/linux/genetlink.h. Numbers are in host byte order.
"""

import struct
from typing import Final

from vipwire.errors import DecodeError
from vipwire.linux.netlink.attributes import attributes, string

CONTROL: Final = 16
"""GENL_ID_CTRL, the family that knows the others."""

_GET_FAMILY: Final = 3
_FAMILY_ID, _FAMILY_NAME = 1, 2
_HEADER = struct.Struct("=BBH")  # command, version of the family, reserved
_U16 = struct.Struct("=H")

HEADER_SIZE: Final = _HEADER.size


def command(number: int, payload: bytes = b"", version: int = 1) -> bytes:
    """Encode the payload of a message: the family's command and its attributes."""
    return _HEADER.pack(number, version, 0) + payload


def ask_family(name: str) -> bytes:
    """Encode the request for a family's number, of `CONTROL`. The kernel answers ENOENT without its module."""
    return command(_GET_FAMILY, string(_FAMILY_NAME, name))


def family_number(payload: memoryview) -> int:
    """Decode the answer to `ask_family`: the message type of that family."""
    value = attributes(payload, HEADER_SIZE).get(_FAMILY_ID)
    if value is None or len(value) != 2:
        raise DecodeError("the answer about a generic netlink family has no number")
    number: int = _U16.unpack(value)[0]
    return number
