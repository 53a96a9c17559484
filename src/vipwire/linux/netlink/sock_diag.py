"""sock_diag(7): lists connected UDP sockets and listening sockets, and destroys sockets. Pure.

Source: include/uapi/linux/inet_diag.h. An identity is struct inet_diag_sockid: ports, addresses, interface, cookie.
"""

import struct
from typing import Final, NamedTuple

from vipwire.errors import DecodeError
from vipwire.model.net import Address, Family, Protocol

BY_FAMILY: Final = 20
DESTROY: Final = 21
_FAMILIES: Final = {Family.IPV4: 2, Family.IPV6: 10}
_REQUEST: Final = struct.Struct("=BBBBI")
_IDENTITY: Final = 48
_ANY_STATE: Final = 0xFFFFFFFF
_LISTENING: Final = 10
_UNCONNECTED: Final = 7
"""TCP_LISTEN and TCP_CLOSE of include/net/tcp_states.h."""
_MAPPED: Final = bytes(10) + b"\xff\xff"


class ConnectedSocket(NamedTuple):
    """A socket: its cookie, its own address, and its peer. An IPv6 socket may have an IPv4 peer."""

    kind: int
    identity: bytes

    @property
    def cookie(self) -> bytes:
        return self.identity[40:48]

    @property
    def place(self) -> tuple[Address, int]:
        """The socket's own address and port; an address of zeros is any."""
        size = 4 if self.kind == _FAMILIES[Family.IPV4] else 16
        return Address(self.identity[4 : 4 + size]), int.from_bytes(self.identity[:2])

    @property
    def peer(self) -> tuple[Address, int]:
        """The address and port of the peer; port 0 if not connected."""
        address = self.identity[20:36]
        plain = self.kind == _FAMILIES[Family.IPV4]
        if plain or address.startswith(_MAPPED):
            address = address[:4] if plain else address[12:]
        return Address(address), int.from_bytes(self.identity[2:4])


def encode_list_connected(family: Family) -> bytes:
    """Encode the request for all UDP sockets of a family (NLM_F_DUMP)."""
    identity = bytes(40) + b"\xff" * 8  # no cookie: any
    return _REQUEST.pack(_FAMILIES[family], Protocol.UDP, 0, 0, _ANY_STATE) + identity


def encode_list_waiting(family: Family, protocol: Protocol) -> bytes:
    """Encode the request for a family's listening sockets (TCP), or those without a peer (UDP)."""
    state = _LISTENING if protocol is Protocol.TCP else _UNCONNECTED
    return _REQUEST.pack(_FAMILIES[family], protocol, 0, 0, 1 << state) + bytes(40) + b"\xff" * 8


def decode_socket(payload: bytes) -> ConnectedSocket:
    if len(payload) < 4 + _IDENTITY or payload[0] not in _FAMILIES.values():
        raise DecodeError("sock_diag describes a socket in a form that is not known")
    return ConnectedSocket(payload[0], bytes(payload[4 : 4 + _IDENTITY]))


def encode_destroy(found: ConnectedSocket) -> bytes:
    """Encode the request to destroy a socket: its owner gets ECONNABORTED, and may connect again."""
    return _REQUEST.pack(found.kind, Protocol.UDP, 0, 0, _ANY_STATE) + found.identity
