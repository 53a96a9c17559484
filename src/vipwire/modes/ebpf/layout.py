"""The keys of ebpf mode's objects beside nftables mode's, and the bytes that programs and vipwire share. Pure.

ebpf-frontends  a frontend                 flags, and slots of endpoints, each endpoint as often as its share
ebpf-members    a frontend and an endpoint UDP: a socket with this endpoint may keep it
ebpf-clients    a network namespace        a Pod's; only if the configuration lists Pods
ebpf-programs   a hook                     the settings of the program at the hook

A key is (space, bytes); no nftables set has the name of a space. programs/vipwire.h and family.h declare the same
bytes in C. Ports and addresses are in network byte order, other numbers in host byte order. An endpoint is padded to
the width of a slot, so that vipwire writes a pool in one piece.
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
    """The clients for which a program translates a frontend at connect()."""

    NODE = 1
    POD = 2
    AS_NODE = 4
    """Endpoints must see the node's address, so sockets with another bound address are excluded."""
    HAS_LOCAL = 8
    """An endpoint is on this node, and may be the connecting Pod itself."""
    LOOSE = 16
    """Skips connected UDP sockets, because vipwire could not find them again when their endpoint goes."""


FRONTEND: Final = struct.Struct("=IIQ")
"""The first slot, the number of slots, and the head."""
HEAD: Final = struct.Struct("=Q")
"""The start of a frontend's object: its flags, and above them its affinity. The endpoints follow."""
_SECONDS: Final = 8, 17
_SERVICE_PORT: Final = 25, 39
"""The lowest bit and the width of both parts in the head."""
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
        """The protocols for which programs serve session affinity, because they see all sockets."""
        if not self.affinity:
            return frozenset()
        return frozenset({Protocol.TCP, Protocol.UDP} if self.connected else {Protocol.TCP})

    @property
    def packed(self) -> bytes:
        words = self.pods_level, self.listed, self.counting, self.connected, self.affinity, 0
        return _SETTINGS.pack(self.node, self.pods_cgroup, *words, self.build)

    @classmethod
    def read(cls, data: bytes) -> Self:
        """Unpack the settings. Raise struct.error for another version's layout."""
        node, cgroup, level, listed, counting, *options, _, build = _SETTINGS.unpack(data)
        return cls(node, cgroup, level, bool(listed), CounterLevel(min(counting, 2)), build, *map(bool, options))


class Head(NamedTuple):
    """A frontend's clients, the seconds of client affinity (0: none), and the Service port that remembers."""

    flags: Flag
    seconds: int = 0
    service_port: int = 0

    @property
    def packed(self) -> bytes:
        """The bytes for the programs. The number of a Service port is cut to the free bits."""
        (seconds, _), (port, width) = _SECONDS, _SERVICE_PORT
        return HEAD.pack(self.flags | self.seconds << seconds | (self.service_port & (1 << width) - 1) << port)

    @classmethod
    def read(cls, value: bytes) -> Self:
        """Unpack the start of a frontend's object."""
        (head,) = HEAD.unpack_from(value)
        (seconds, width), (port, _) = _SECONDS, _SERVICE_PORT
        return cls(Flag(head & (1 << seconds) - 1), head >> seconds & (1 << width) - 1, head >> port)


def choose_family_suffix(family: Family) -> str:
    return _VERSIONS[family]


def slot_size(family: Family) -> int:
    """Return the bytes from one slot to the next."""
    return 8 if family is Family.IPV4 else 24


def endpoint_size(family: Family) -> int:
    """Return the bytes of an endpoint."""
    return family.bits // 8 + _PORT.size


def frontend_key(address: Address, protocol: Protocol, port: int) -> bytes:
    """Pack struct key."""
    return address + _PLACE.pack(port, protocol, 0)


def read_frontend_key(key: bytes) -> tuple[Address, int, int]:
    """Unpack struct key: address, protocol, port."""
    port, protocol, _ = _PLACE.unpack(key[-_PLACE.size :])
    return Address(key[: -_PLACE.size]), protocol, port


def endpoint_slot(address: Address, port: int) -> bytes:
    """Pack struct endpoint, padded to a slot."""
    return address + _pack_port(port, len(address))


@lru_cache(maxsize=4096)  # 100,000 endpoints have a few ports
def _pack_port(port: int, width: int) -> bytes:
    return _PORT.pack(port, 0) + (b"" if width == 4 else bytes(4))


def read_endpoint(data: bytes) -> tuple[Address, int]:
    """Unpack an endpoint, padded or not."""
    size = 4 if len(data) == 8 else 16
    return Address(data[:size]), int.from_bytes(data[size : size + 2])


def endpoints(family: Family, value: bytes) -> list[bytes]:
    """Return the endpoints of a frontend's object, without padding."""
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
    return isinstance(key, tuple) and key[0] in _SPACES


def split_delta(delta: Delta[Any, Any]) -> tuple[Delta[Any, Any], Delta[OurKey, bytes]]:
    parts = [_split_objects(each) for each in (delta.added, delta.changed, delta.removed)]
    return Delta(*(theirs for theirs, _ in parts)), Delta(*(ours for _, ours in parts))


def select_rules(objects: Mapping[Any, V]) -> dict[Any, V]:
    return {key: value for key, value in objects.items() if key[0] not in _SPACES}


def _split_objects(objects: dict[Any, Any]) -> tuple[dict[Any, Any], dict[Any, Any]]:
    ours = {key: value for key, value in objects.items() if key[0] in _SPACES}
    if not ours:
        return objects, ours
    return {key: value for key, value in objects.items() if key not in ours}, ours


def describe_key(key: OurKey) -> str:
    space, data = key
    match space:
        case "ebpf-programs":
            return f"program {data.decode()}"
        case "ebpf-clients":
            return f"Pod's network namespace {int.from_bytes(data, 'little')}"
        case "ebpf-members":
            size = 8 if len(data) == 16 else 20
            endpoint = format_endpoint(*read_endpoint(data[size:]))
            return f"{_describe_frontend(data[:size])} to {endpoint} in the programs' map"
    return f"{_describe_frontend(data)} in the programs' map"


def describe_scope(flags: Flag) -> str:
    who = [word for flag, word in ((Flag.NODE, "the node"), (Flag.POD, "its Pods")) if flag in flags]
    return " and ".join(who) or "nobody"


def _describe_frontend(key: bytes) -> str:
    address, protocol, port = read_frontend_key(key)
    return f"{format_endpoint(address, port)}/{Protocol(protocol).label}"
