"""The bytes that the programs and this package share: programs/vipwire.h and family.h say the same in C. Pure.

Ports and addresses are in network order, everything else in the machine's. An endpoint is as wide as a slot of the
array of slots lies apart, so that a pool is written as one piece.
"""

import enum
import struct
from functools import lru_cache
from typing import Final, NamedTuple, Self

from vipwire.config.sections import CounterLevel
from vipwire.model.net import Address, Family, Protocol


class Flag(enum.IntFlag):
    """For whom a frontend is translated when the socket connects."""

    NODE = 1
    POD = 2
    AS_NODE = 4
    """The node's own sockets must be seen with the node's address: one that has an address of its own is left out."""
    HAS_LOCAL = 8
    """An endpoint is on this node, and may be the very Pod that asks."""
    LOOSE = 16
    """Of UDP, sockets that are connected are left out: nobody could tell whom to end when the endpoint goes."""


FRONTEND: Final = struct.Struct("=IIQ")
"""The first slot, how many, and the head."""
HEAD: Final = struct.Struct("=Q")
"""What a frontend's object begins with: its flags, and its affinity above them. Behind it stand the endpoints."""
_SECONDS: Final = 8, 17
_SERVICE_PORT: Final = 25, 39
"""Where both stand in the head: the lowest bit, and how many."""
_PLACE: Final = struct.Struct(">HBB")
_PORT: Final = struct.Struct(">HH")
_SETTINGS: Final = struct.Struct("=QQIIIIIIQ")
_VERSIONS: Final = {Family.IPV4: "4", Family.IPV6: "6"}


class Settings(NamedTuple):
    """The constants of the programs: struct settings."""

    node: int
    pods_cgroup: int
    pods_level: int
    listed: bool
    counting: CounterLevel
    build: int
    connected: bool = False
    affinity: bool = False

    @property
    def remembered(self) -> frozenset[Protocol]:
        """The protocols of which programs serve session affinity: all of whose sockets they see."""
        if not self.affinity:
            return frozenset()
        return frozenset({Protocol.TCP, Protocol.UDP} if self.connected else {Protocol.TCP})

    @property
    def packed(self) -> bytes:
        """As the programs have them."""
        words = self.pods_level, self.listed, self.counting, self.connected, self.affinity, 0
        return _SETTINGS.pack(self.node, self.pods_cgroup, *words, self.build)

    @classmethod
    def read(cls, data: bytes) -> Self:
        """Read them. Raise struct.error where another version has other ones."""
        node, cgroup, level, listed, counting, *options, _, build = _SETTINGS.unpack(data)
        return cls(node, cgroup, level, bool(listed), CounterLevel(min(counting, 2)), build, *map(bool, options))


class Head(NamedTuple):
    """What a frontend is like: for whom; for how long a client is remembered, 0 if it is not, and of which port."""

    flags: Flag
    seconds: int = 0
    service_port: int = 0

    @property
    def packed(self) -> bytes:
        """As the programs have it. A Service port has a number that is as large as there is room."""
        (seconds, _), (port, width) = _SECONDS, _SERVICE_PORT
        return HEAD.pack(self.flags | self.seconds << seconds | (self.service_port & (1 << width) - 1) << port)

    @classmethod
    def read(cls, value: bytes) -> Self:
        """Read what the object of a frontend begins with."""
        (head,) = HEAD.unpack_from(value)
        (seconds, width), (port, _) = _SECONDS, _SERVICE_PORT
        return cls(Flag(head & (1 << seconds) - 1), head >> seconds & (1 << width) - 1, head >> port)


def version(family: Family) -> str:
    """Return what the names of a family's maps and programs end with."""
    return _VERSIONS[family]


def slot_size(family: Family) -> int:
    """Tell how far apart slots lie."""
    return 8 if family is Family.IPV4 else 24


def endpoint_size(family: Family) -> int:
    """Tell how large an endpoint is."""
    return family.bits // 8 + _PORT.size


def frontend_key(address: Address, protocol: Protocol, port: int) -> bytes:
    """Pack a frontend: struct key."""
    return address + _PLACE.pack(port, protocol, 0)


def read_frontend_key(key: bytes) -> tuple[Address, int, int]:
    """Take a frontend apart: address, protocol, port."""
    port, protocol, _ = _PLACE.unpack(key[-_PLACE.size :])
    return Address(key[: -_PLACE.size]), protocol, port


def endpoint_slot(address: Address, port: int) -> bytes:
    """Pack an endpoint as a slot: struct endpoint, filled up."""
    return address + _behind(port, len(address))


@lru_cache(maxsize=4096)  # a hundred thousand endpoints have a few ports
def _behind(port: int, width: int) -> bytes:
    """Pack what stands behind an address of so many bytes."""
    return _PORT.pack(port, 0) + (b"" if width == 4 else bytes(4))


def read_endpoint(data: bytes) -> tuple[Address, int]:
    """Take an endpoint apart, filled up or not."""
    size = 4 if len(data) == 8 else 16
    return Address(data[:size]), int.from_bytes(data[size : size + 2])


def endpoints(family: Family, value: bytes) -> list[bytes]:
    """Take the endpoints of a frontend's object apart, without what fills them up."""
    each, size = slot_size(family), endpoint_size(family)
    return [value[at : at + size] for at in range(HEAD.size, len(value), each)]
