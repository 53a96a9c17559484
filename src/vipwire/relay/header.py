"""The PROXY protocol's header, which tells an endpoint the client's address before the client's first byte.

Source: https://www.haproxy.org/download/2.9/doc/proxy-protocol.txt, sections 2.1 (text) and 2.2 (binary).
"""

import struct
from typing import Final

from vipwire.model.net import parse_address

_SIGNATURE: Final = b"\r\n\r\n\0\r\nQUIT\n"
_STREAM, _DATAGRAM = 1, 2
_PROXY_V2: Final = 0x21
_PORTS: Final = struct.Struct("!HH")
_HEAD: Final = struct.Struct("!12sBBH")


def encode_proxy_header(
    version: int, client: tuple[str, int], server: tuple[str, int], *, datagram: bool = False
) -> bytes:
    """Encode the header for a client's address and port, and those that it connected to.

    Version 1 has no form for datagrams: returns nothing for them.
    """
    ipv6 = ":" in client[0]
    if version == 1:
        family = "TCP6" if ipv6 else "TCP4"
        text = f"PROXY {family} {client[0]} {server[0]} {client[1]} {server[1]}\r\n"
        return b"" if datagram else text.encode("ascii")
    addresses = parse_address(client[0]) + parse_address(server[0]) + _PORTS.pack(client[1], server[1])
    kind = (0x20 if ipv6 else 0x10) | (_DATAGRAM if datagram else _STREAM)
    return _HEAD.pack(_SIGNATURE, _PROXY_V2, kind, len(addresses)) + addresses
