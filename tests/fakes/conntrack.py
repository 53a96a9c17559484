"""Encodes flows as the kernel does: the reverse of `vipwire.linux.netlink.conntrack.decode`."""

import struct

from vipwire.linux.netlink.conntrack import Flow
from vipwire.linux.netlink.message import encode_attribute, encode_nested, encode_u32be
from vipwire.model.net import Address


def encode_flow(flow: Flow) -> bytes:
    """Encode a flow's fields. The numbers are those of linux/netfilter/nfnetlink_conntrack.h."""
    parts = [
        struct.pack("=BBH", 2 if len(flow.source) == 4 else 10, 0, 0),
        _tuple(1, flow[1:5], flow.protocol),
        _tuple(2, flow[5:9], flow.protocol),
        encode_attribute(18, flow.zone.to_bytes(2)) if flow.zone else b"",
        encode_u32be(3, flow.status),
        encode_u32be(8, flow.mark),
        encode_u32be(12, flow.identifier),
        encode_u32be(7, flow.timeout),
    ]
    return b"".join(parts)


def _tuple(kind: int, ends: tuple[Address, int, Address, int], protocol: int) -> bytes:
    source, source_port, destination, destination_port = ends
    address = 1 if len(source) == 4 else 3
    ports = encode_attribute(2, source_port.to_bytes(2)), encode_attribute(3, destination_port.to_bytes(2))
    return encode_nested(
        kind,
        encode_nested(1, encode_attribute(address, source), encode_attribute(address + 1, destination)),
        encode_nested(2, encode_attribute(1, bytes((protocol,))), *ports),
    )
