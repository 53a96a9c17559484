"""The objects of ebpf mode beside nftables mode's, as keys, and the bytes that the programs share with them. Pure.

ebpf-frontends  a frontend                 flags, and the endpoints that a socket may be given, by share
ebpf-members    a frontend and an endpoint UDP: a socket that has this endpoint may go on with it
ebpf-clients    a network namespace        it is a Pod's; only where they are listed
ebpf-programs   a hook                     the settings of the program that is in force there

A key is (space, bytes); no set of nftables has the name of a space. programs/vipwire.h and family.h have the same
bytes in C. Ports and addresses are in network order, everything else in the machine's. An endpoint is as wide as a
slot of the array of slots lies apart, so that a pool is written as one piece.
"""

import enum
import struct
from collections.abc import Hashable, Mapping
from functools import lru_cache
from typing import Any, Final, NamedTuple, Self, TypeAlias, TypeVar

from vipwire.config.sections import CounterLevel
from vipwire.model.net import Address, Family, Protocol, format_endpoint
from vipwire.reconcile.delta import Delta


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
    return _PORT.pack(port, 0) + (b"" if width == 4 else bytes(4))


def read_endpoint(data: bytes) -> tuple[Address, int]:
    """Take an endpoint apart, filled up or not."""
    size = 4 if len(data) == 8 else 16
    return Address(data[:size]), int.from_bytes(data[size : size + 2])


def endpoints(family: Family, value: bytes) -> list[bytes]:
    """Take the endpoints of a frontend's object apart, without what fills them up."""
    each, size = slot_size(family), endpoint_size(family)
    return [value[at : at + size] for at in range(HEAD.size, len(value), each)]


FRONTENDS: Final = "ebpf-frontends"
MEMBERS: Final = "ebpf-members"
CLIENTS: Final = "ebpf-clients"
PROGRAMS: Final = "ebpf-programs"
_SPACES: Final = frozenset({FRONTENDS, MEMBERS, CLIENTS, PROGRAMS})

OurKey: TypeAlias = tuple[str, bytes]
Ours: TypeAlias = dict[OurKey, bytes]
V = TypeVar("V")


def is_ours(key: Hashable) -> bool:
    """Report whether an object is this mode's own, and not one of nftables mode."""
    return isinstance(key, tuple) and key[0] in _SPACES


def split(delta: Delta[Any, Any]) -> tuple[Delta[Any, Any], Delta[OurKey, bytes]]:
    """Take a difference apart: what nftables mode commits, and what is written into maps."""
    parts = [_split(each) for each in (delta.added, delta.changed, delta.removed)]
    return Delta(*(theirs for theirs, _ in parts)), Delta(*(ours for _, ours in parts))


def rules_of(objects: Mapping[Any, V]) -> dict[Any, V]:
    """Leave out what is this mode's own."""
    return {key: value for key, value in objects.items() if key[0] not in _SPACES}


def _split(objects: dict[Any, Any]) -> tuple[dict[Any, Any], dict[Any, Any]]:
    ours = {key: value for key, value in objects.items() if key[0] in _SPACES}
    if not ours:
        return objects, ours
    return {key: value for key, value in objects.items() if key not in ours}, ours


def describe(key: OurKey) -> str:
    """Name an object for a person."""
    space, data = key
    match space:
        case "ebpf-programs":
            return f"program {data.decode()}"
        case "ebpf-clients":
            return f"Pod's network namespace {int.from_bytes(data, 'little')}"
        case "ebpf-members":
            size = 8 if len(data) == 16 else 20
            return f"{_frontend(data[:size])} to {format_endpoint(*read_endpoint(data[size:]))} in the programs' map"
    return f"{_frontend(data)} in the programs' map"


def for_whom(flags: Flag) -> str:
    """Say of whom sockets are meant."""
    who = [word for flag, word in ((Flag.NODE, "the node"), (Flag.POD, "its Pods")) if flag in flags]
    return " and ".join(who) or "nobody"


def _frontend(key: bytes) -> str:
    address, protocol, port = read_frontend_key(key)
    return f"{format_endpoint(address, port)}/{Protocol(protocol).label}"
