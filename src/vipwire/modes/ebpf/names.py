"""The objects of this mode beside nftables mode's, as keys: (space, bytes). No set of nftables has such a name. Pure.

ebpf-frontends  a frontend                 flags, and the endpoints that a socket may be given, by share
ebpf-members    a frontend and an endpoint UDP: a socket that has this endpoint may go on with it
ebpf-clients    a network namespace        it is a Pod's; only where they are listed
ebpf-programs   a hook                     the settings of the program that is in force there
"""

from collections.abc import Hashable, Mapping
from typing import Any, Final, TypeAlias, TypeVar

from vipwire.model.net import Protocol, format_endpoint
from vipwire.modes.ebpf.layout import Flag, read_endpoint, read_frontend_key
from vipwire.reconcile.delta import Delta

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
