"""The generic netlink family "IPVS": virtual servers, real servers, timeouts; bytes without a socket.

The kernel answers commands that it refuses and those that ask. Layouts: include/uapi/linux/ip_vs.h and genetlink.h,
net/netfilter/ipvs/ip_vs_ctl.c. Ports and addresses are in network order, all else in host order.
"""

import enum
import struct
from collections.abc import Mapping
from functools import lru_cache
from typing import Final, NamedTuple

from vipwire.errors import DecodeError
from vipwire.linux.netlink.message import (
    collect_attributes,
    decode_text,
    encode_attribute,
    encode_nested,
    encode_string,
)
from vipwire.model.net import Address, Family

CONTROL: Final = 16
"""GENL_ID_CTRL, the family that reports the numbers of the others."""

_GET_FAMILY: Final = 3
_FAMILY_ID, _FAMILY_NAME = 1, 2
_HEADER = struct.Struct("=BBH")  # command, version of the family, reserved

HEADER_SIZE: Final = _HEADER.size


def encode_command(number: int, payload: bytes = b"", version: int = 1) -> bytes:
    return _HEADER.pack(number, version, 0) + payload


def encode_get_family(name: str) -> bytes:
    """Encode the request of `CONTROL` for a family's number. The kernel answers ENOENT without its module."""
    return encode_command(_GET_FAMILY, encode_string(_FAMILY_NAME, name))


def family_number(payload: memoryview) -> int:
    value = collect_attributes(payload, HEADER_SIZE).get(_FAMILY_ID)
    if value is None or len(value) != 2:
        raise DecodeError("the answer about a generic netlink family has no number")
    number: int = _U16.unpack(value)[0]
    return number


FAMILY: Final = "IPVS"


class Command(enum.IntEnum):
    """The commands of the family (IPVS_CMD_*)."""

    NEW_SERVICE = 1
    SET_SERVICE = 2
    DEL_SERVICE = 3
    GET_SERVICE = 4
    NEW_DEST = 5
    SET_DEST = 6
    DEL_DEST = 7
    GET_DEST = 8
    SET_CONFIG = 12
    GET_CONFIG = 13


class ServiceFlag(enum.IntFlag):
    """The options of a virtual server (IP_VS_SVC_F_*); the last three are its scheduler's."""

    NONE = 0
    PERSISTENT = 0x01
    ONE_PACKET = 0x04
    SCHEDULER_1 = 0x08
    SCHEDULER_2 = 0x10
    SCHEDULER_3 = 0x20


class Method(enum.IntEnum):
    """How packets reach a real server (IP_VS_CONN_F_*)."""

    MASQUERADE = 0
    LOCAL = 1
    TUNNEL = 2
    ROUTE = 3
    BYPASS = 4


class VirtualServer(NamedTuple):
    """The identity of a virtual server. With a mark, protocol and port are 0 and the address is None."""

    protocol: int
    address: Address
    port: int
    mark: int = 0


class Scheduling(NamedTuple):
    """The scheduler of a virtual server. `persistence` is in seconds, 0 without the flag."""

    scheduler: str
    flags: ServiceFlag = ServiceFlag.NONE
    persistence: int = 0


class RealServer(NamedTuple):
    """The identity of a real server."""

    server: VirtualServer
    address: Address
    port: int


class Forwarding(NamedTuple):
    """The weight of a real server (0: no new connections), and how packets reach it."""

    weight: int = 1
    method: Method = Method.MASQUERADE


class TrafficStats(NamedTuple):
    """The traffic of a virtual or real server."""

    connections: int = 0
    packets_in: int = 0
    packets_out: int = 0
    bytes_in: int = 0
    bytes_out: int = 0


class RealServerState(NamedTuple):
    """A real server in the kernel; `active` and `inactive` count its connections."""

    address: Address
    port: int
    forwarding: Forwarding
    active: int
    inactive: int
    counters: TrafficStats


class Timeouts(NamedTuple):
    """Seconds after which the kernel forgets idle connections. When setting, 0 keeps the current value."""

    tcp: int = 0
    tcp_fin: int = 0
    udp: int = 0


_SERVICE, _DEST = 1, 2
_U16, _U32, _U64, _BE16 = struct.Struct("=H"), struct.Struct("=I"), struct.Struct("=Q"), struct.Struct("!H")
_NUMBERS = {Family.IPV4: 2, Family.IPV6: 10}
_FAMILIES = {number: family for family, number in _NUMBERS.items()}
_NETMASKS = {Family.IPV4: 0xFFFFFFFF, Family.IPV6: 128}  # persistence for each client address separately
_WIDTHS = {Family.IPV4: 4, Family.IPV6: 16}
_KNOWN_FLAGS: Final = 0x3D  # without IP_VS_SVC_F_HASHED, which only the kernel sets


@lru_cache(maxsize=8192)
def encode_identity(family: Family, server: VirtualServer) -> bytes:
    if server.mark:
        return encode_attribute(1, _U16.pack(_NUMBERS[family])) + encode_attribute(5, _U32.pack(server.mark))
    return b"".join(
        (
            encode_attribute(1, _U16.pack(_NUMBERS[family])),
            encode_attribute(2, _U16.pack(server.protocol)),
            encode_attribute(3, server.address.ljust(16, b"\0")),
            encode_attribute(4, _BE16.pack(server.port)),
        )
    )


@lru_cache(maxsize=256)
def _encode_scheduling(family: Family, scheduling: Scheduling) -> bytes:
    return b"".join(
        (
            encode_string(6, scheduling.scheduler),
            encode_attribute(7, struct.pack("=II", scheduling.flags, 0xFFFFFFFF)),
            encode_attribute(8, _U32.pack(scheduling.persistence)),
            encode_attribute(9, _U32.pack(_NETMASKS[family])),
        )
    )


@lru_cache(maxsize=8192)
def _encode_server_key(family: Family, server: VirtualServer) -> bytes:
    return encode_nested(_SERVICE, encode_identity(family, server))


@lru_cache(maxsize=256)
def _encode_forwarding(family: Family, forwarding: Forwarding) -> bytes:
    return b"".join(
        (
            encode_attribute(3, _U32.pack(forwarding.method)),
            encode_attribute(4, _U32.pack(forwarding.weight)),
            encode_attribute(5, bytes(4)),  # no thresholds of connections
            encode_attribute(6, bytes(4)),
            encode_attribute(11, _U16.pack(_NUMBERS[family])),
        )
    )


def encode_service_command(
    number: Command, family: Family, server: VirtualServer, scheduling: Scheduling | None
) -> bytes:
    """Encode the payload of NEW_, SET_ or DEL_SERVICE; the last needs no scheduling."""
    if scheduling is None:
        return encode_command(number, _encode_server_key(family, server))
    return encode_command(
        number, encode_nested(_SERVICE, encode_identity(family, server), _encode_scheduling(family, scheduling))
    )


def encode_dest_command(number: Command, family: Family, real: RealServer, forwarding: Forwarding) -> bytes:
    where = encode_attribute(1, real.address.ljust(16, b"\0")) + encode_attribute(2, _BE16.pack(real.port))
    return encode_command(
        number,
        _encode_server_key(family, real.server) + encode_nested(_DEST, where, _encode_forwarding(family, forwarding)),
    )


def encode_list_services() -> bytes:
    return encode_command(Command.GET_SERVICE)


def encode_list_dests(family: Family, server: VirtualServer) -> bytes:
    return encode_command(Command.GET_DEST, _encode_server_key(family, server))


def encode_set_timeouts(timeouts: Timeouts) -> bytes:
    return encode_command(
        Command.SET_CONFIG,
        b"".join(encode_attribute(kind, _U32.pack(value)) for kind, value in enumerate(timeouts, 4) if value),
    )


def encode_get_timeouts() -> bytes:
    return encode_command(Command.GET_CONFIG)


def decode_timeouts(payload: memoryview) -> Timeouts:
    found = collect_attributes(payload, HEADER_SIZE)
    return Timeouts(*(_read_number(found, kind, "timeout") for kind in (4, 5, 6)))


def decode_service(payload: memoryview) -> tuple[Family, VirtualServer, Scheduling, TrafficStats]:
    found = _unwrap_attributes(payload, _SERVICE, "virtual server")
    family = _FAMILIES.get(_read_number(found, 1, "virtual server's family"))
    if family is None:
        raise DecodeError("a virtual server is of an unknown family")
    if 5 in found:
        server = VirtualServer(0, Address(b""), 0, _read_number(found, 5, "mark"))
    else:
        protocol = _read_number(found, 2, "virtual server's protocol")
        server = VirtualServer(protocol, _read_address(found, 3, family), _read_port(found, 4))
    name = found.get(6)
    flags = found.get(7)
    if name is None or flags is None or len(flags) < 4:
        raise DecodeError("a virtual server has no scheduler or no flags")
    known = ServiceFlag(_U32.unpack_from(flags)[0] & _KNOWN_FLAGS)
    persistence = _read_number(found, 8, "virtual server's timeout") if known & ServiceFlag.PERSISTENT else 0
    return family, server, Scheduling(decode_text(name), known, persistence), _read_counters(found, 12)


def decode_dest(payload: memoryview) -> RealServerState:
    found = _unwrap_attributes(payload, _DEST, "real server")
    family = _FAMILIES.get(_read_number(found, 11, "real server's family"))
    if family is None:
        raise DecodeError("a real server is of an unknown family")
    try:
        method = Method(_read_number(found, 3, "forwarding method") & 7)
    except ValueError as error:
        raise DecodeError(f"a real server has an unknown forwarding method: {error}") from error
    return RealServerState(
        _read_address(found, 1, family),
        _read_port(found, 2),
        Forwarding(_read_number(found, 4, "weight"), method),
        _read_number(found, 7, "active connections"),
        _read_number(found, 8, "inactive connections"),
        _read_counters(found, 12),
    )


def _unwrap_attributes(payload: memoryview, kind: int, what: str) -> Mapping[int, memoryview]:
    outer = collect_attributes(payload, HEADER_SIZE).get(kind)
    if outer is None:
        raise DecodeError(f"an IPVS message has no {what}")
    return collect_attributes(outer)


def _read_number(found: Mapping[int, memoryview], kind: int, what: str) -> int:
    value = found.get(kind)
    if value is None or len(value) not in (2, 4):
        raise DecodeError(f"an IPVS message has no {what}")
    number: int = (_U16 if len(value) == 2 else _U32).unpack(value)[0]
    return number


def _read_port(found: Mapping[int, memoryview], kind: int) -> int:
    value = found.get(kind)
    if value is None or len(value) != 2:
        raise DecodeError("an IPVS message has no port")
    port: int = _BE16.unpack(value)[0]
    return port


def _read_address(found: Mapping[int, memoryview], kind: int, family: Family) -> Address:
    value, width = found.get(kind), _WIDTHS[family]
    if value is None or len(value) < width:
        raise DecodeError("an IPVS message has no address")
    return Address(bytes(value[:width]))


def _read_counters(found: Mapping[int, memoryview], kind: int) -> TrafficStats:
    """Decode the 64-bit statistics; all 0 before Linux 4.0, which has none."""
    if kind not in found:
        return TrafficStats()
    inside = collect_attributes(found[kind])
    values = [inside.get(number) for number in range(1, 6)]
    if any(value is None or len(value) != 8 for value in values):
        raise DecodeError("an IPVS message has incomplete statistics")
    return TrafficStats(*(_U64.unpack(value)[0] for value in values if value is not None))
