import struct

import pytest
from tests.fakes.conntrack import encode_flow

from vipwire.errors import DecodeError
from vipwire.linux.netlink.conntrack import (
    CT_DELETE,
    CT_GET,
    CT_NEW,
    Flow,
    FlowChange,
    FlowDecoder,
    FlowEvent,
    decode,
    decode_event,
    encode_delete,
    encode_dump,
)
from vipwire.linux.netlink.message import NLM_F_CREATE, Message, collect_attributes, encode_attribute, encode_nested
from vipwire.model.net import Family, Protocol, parse_address

# Answers of Linux 6.18 (x86-64) to a dump, beside what conntrack(8) printed of them.
IPV4 = bytes.fromhex(
    "020000003400018014000180080001007f000001080002000a6000011c000280050001001100000006000200976a00000600030000350000"
    "3400028014000180080001007f000001080002007f0000011c00028005000100110000000600020014e9000006000300976a000008000300"
    "000001a8080008000000000008000c003def343f08000b0000000001080007000000001d"
)
IPV6 = bytes.fromhex(
    "0a0000004c0001802c000180140003000000000000000000000000000000000114000400000000000000000000000000000000011c000280"
    "05000100110000000600020080ef000006000300003500004c0002802c00018014000300000000000000000000000000000000011400"
    "0400000000000000000000000000000000011c00028005000100110000000600020014e900000600030080ef00000800030000000"
    "1a8080008000000000008000c008457892608000b0000000001080007000000001d"
)
LOOPBACK, LOOPBACK6, VIP = parse_address("127.0.0.1"), parse_address("::1"), parse_address("10.96.0.1")
FLOW4 = Flow(17, LOOPBACK, 38762, VIP, 53, LOOPBACK, 5353, LOOPBACK, 38762, 0x1A8, 29, 0, 1039086655)
FLOW6 = Flow(17, LOOPBACK6, 33007, LOOPBACK6, 53, LOOPBACK6, 5353, LOOPBACK6, 33007, 0x1A8, 29, 0, 2220329254)

little_endian = pytest.mark.skipif(
    struct.pack("=H", 1) != b"\1\0", reason="the recorded messages are of a little-endian machine"
)


@little_endian
@pytest.mark.parametrize(("message", "flow"), [(IPV4, FLOW4), (IPV6, FLOW6)])
def test_what_the_kernel_sent_is_what_conntrack_printed(message: bytes, flow: Flow) -> None:
    assert decode(memoryview(message)) == flow
    assert flow.status & 1 << 5  # IPS_DST_NAT
    decoder = FlowDecoder()
    assert [decoder.decode(memoryview(message)) for _ in range(3)] == [flow] * 3


def test_shapes_of_the_same_length_do_not_mix() -> None:
    plain = encode_flow(FLOW4)
    at = plain.index(struct.pack("=HH", 8, 8) + bytes(4))  # the mark becomes an attribute that means nothing to us
    other = plain[:at] + struct.pack("=HH", 8, 11) + b"\0\0\0\1" + plain[at + 8 :]
    decoder = FlowDecoder()
    marked = encode_flow(FLOW4._replace(mark=7))
    assert [decoder.decode(memoryview(data)).mark for data in (plain, marked, other, marked)] == [0, 7, 0, 7]


def test_a_flow_without_ports_has_ports_of_zero() -> None:
    ends = encode_nested(1, encode_attribute(1, LOOPBACK), encode_attribute(2, VIP))
    icmp = encode_nested(
        2,
        encode_attribute(1, b"\1"),
        encode_attribute(4, b"\0\7"),
        encode_attribute(5, b"\x08"),
        encode_attribute(6, b"\0"),
    )
    message = struct.pack("=BBH", 2, 0, 0) + encode_nested(1, ends, icmp) + encode_nested(2, ends, icmp)
    flow = decode(memoryview(message))
    assert (flow.protocol, flow.source_port, flow.destination_port, flow.timeout) == (1, 0, 0, 0)
    assert FlowDecoder().decode(memoryview(message)) == flow


def test_the_zone_of_a_flow_may_be_that_of_its_original_tuple() -> None:
    ends = encode_nested(1, encode_attribute(1, LOOPBACK), encode_attribute(2, VIP))
    ports = encode_nested(
        2, encode_attribute(1, b"\x11"), encode_attribute(2, b"\0\7"), encode_attribute(3, b"\0\x08")
    )
    zone = encode_attribute(3, b"\0\x09")
    header = struct.pack("=BBH", 2, 0, 0)
    assert decode(memoryview(header + encode_nested(1, ends, ports, zone) + encode_nested(2, ends, ports))).zone == 9
    assert decode(memoryview(header + encode_nested(1, ends, ports) + encode_nested(2, ends, ports, zone))).zone == 0
    assert decode(memoryview(encode_flow(FLOW4._replace(zone=11)))).zone == 11


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"\2\0\0",
        b"\2\0\0\0",
        b"\7" + encode_flow(FLOW4)[1:],
        encode_flow(FLOW4)[:-2],
        encode_flow(FLOW4)[:60],
        b"\x0a" + encode_flow(FLOW4)[1:],  # an IPv4 flow that claims to be IPv6
    ],
)
def test_what_is_no_flow_is_refused(message: bytes) -> None:
    with pytest.raises(DecodeError, match="conntrack"):
        decode(memoryview(message))
    with pytest.raises(DecodeError, match="conntrack"):
        FlowDecoder().decode(memoryview(message))


def test_a_deletion_names_the_tuple_the_identifier_and_the_zone() -> None:
    fields = collect_attributes(encode_delete(FLOW4._replace(zone=5)), 4)
    assert fields.keys() == {1, 12, 18}
    assert bytes(fields[12]) == (1039086655).to_bytes(4)
    assert bytes(fields[18]) == b"\0\5"
    assert bytes(fields[1]) == bytes(collect_attributes(encode_flow(FLOW4), 4)[1])
    assert collect_attributes(encode_delete(FLOW6), 4).keys() == {1, 12}


def test_a_flow_without_ports_cannot_be_deleted_lest_all_are() -> None:
    with pytest.raises(ValueError, match="protocol 1 has no ports"):
        encode_delete(FLOW4._replace(protocol=1))


def test_a_dump_asks_the_kernel_to_filter_by_protocol_and_port() -> None:
    assert encode_dump(Family.IPV4) == b"\2\0\0\0"
    udp = collect_attributes(encode_dump(Family.IPV6, Protocol.UDP), 4)
    assert bytes(collect_attributes(udp[25])[1]) == struct.pack("=I", 0b001000)
    assert {kind: bytes(value) for kind, value in collect_attributes(collect_attributes(udp[1])[2]).items()} == {
        1: b"\x11"
    }
    dns = collect_attributes(encode_dump(Family.IPV6, Protocol.UDP, 53), 4)
    assert bytes(collect_attributes(dns[25])[1]) == struct.pack("=I", 0b101000)
    assert bytes(collect_attributes(collect_attributes(dns[1])[2])[3]) == b"\0\x35"


@pytest.mark.parametrize(
    ("kind", "flags", "event"),
    [
        (CT_NEW, NLM_F_CREATE, FlowEvent(FlowChange.NEW, FLOW4)),
        (CT_NEW, 0, FlowEvent(FlowChange.UPDATED, FLOW4)),
        (CT_DELETE, 0, FlowEvent(FlowChange.DESTROYED, FLOW4)),
        (CT_GET, 0, None),
    ],
)
def test_events(kind: int, flags: int, event: FlowEvent | None) -> None:
    assert decode_event(Message(kind, flags, 0, memoryview(encode_flow(FLOW4)))) == event
