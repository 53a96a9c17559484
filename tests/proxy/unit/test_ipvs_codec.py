"""The bytes of IPVS and ipset, and the text of /proc/net/ip_vs, as kernels speak them."""

import struct

import pytest
from tests.fakes.values import cidr, ip

from vipwire.errors import DecodeError
from vipwire.linux.netlink import ipset, ipvs
from vipwire.linux.netlink.attributes import attribute, attributes, encode_nested
from vipwire.linux.netlink.ipset import IpsetEntry, IpsetSpec, SetType
from vipwire.linux.netlink.ipvs import (
    Command,
    Forwarding,
    Method,
    RealServer,
    Scheduling,
    ServiceFlag,
    VirtualServer,
    encode_command,
    encode_get_family,
    family_number,
)
from vipwire.model.net import Address, Family
from vipwire.modes.ipvs.objects.servers import Row, parse_table, read_until_stable

WEB = VirtualServer(6, ip("10.96.0.1"), 80)
WEB6 = VirtualServer(17, ip("fd00::1"), 53)
MARKED = VirtualServer(0, Address(b""), 0, 0x1234)
SCHEDULING = Scheduling("mh", ServiceFlag.SCHEDULER_2 | ServiceFlag.PERSISTENT, 300)


def test_a_service_command_reads_back_as_the_kernel_lists_it() -> None:
    for family, server in ((Family.IPV4, WEB), (Family.IPV6, WEB6), (Family.IPV4, MARKED), (Family.IPV6, MARKED)):
        payload = ipvs.encode_service_command(Command.NEW_SERVICE, family, server, SCHEDULING)
        assert payload[0] == Command.NEW_SERVICE
        assert ipvs.decode_service(memoryview(payload))[:3] == (family, server, SCHEDULING)


def test_a_service_is_laid_out_as_ipvsadm_lays_it_out() -> None:
    payload = ipvs.encode_service_command(Command.NEW_SERVICE, Family.IPV4, WEB, Scheduling("rr"))
    found = attributes(attributes(payload, 4)[1])
    assert bytes(found[2]) == struct.pack("=H", 6)
    assert bytes(found[3]) == b"\x0a\x60\x00\x01" + bytes(12)
    assert bytes(found[4]) == b"\x00\x50"
    assert bytes(found[6]) == b"rr\0"
    assert bytes(found[7]) == struct.pack("=II", 0, 0xFFFFFFFF)
    assert bytes(found[9]) == b"\xff" * 4
    ipv6 = attributes(
        attributes(ipvs.encode_service_command(Command.NEW_SERVICE, Family.IPV6, WEB6, SCHEDULING), 4)[1]
    )
    assert bytes(ipv6[9]) == struct.pack("=I", 128), "a prefix length there"


def test_a_deletion_names_the_service_only() -> None:
    found = attributes(attributes(ipvs.encode_service_command(Command.DEL_SERVICE, Family.IPV4, WEB, None), 4)[1])
    assert set(found) == {1, 2, 3, 4}


def test_the_kernels_own_flag_is_no_flag_of_ours() -> None:
    inside = b"".join(
        (
            attribute(1, struct.pack("=H", 2)),
            attribute(5, struct.pack("=I", 7)),
            attribute(6, b"rr\0"),
            attribute(7, struct.pack("=II", 0x02, 0xFFFFFFFF)),
        )
    )
    assert ipvs.decode_service(memoryview(encode_command(1, encode_nested(1, inside))))[2] == Scheduling("rr")


def test_a_list_counts_once_two_in_a_row_name_the_same() -> None:
    """What goes while the kernel lists lets it pass over others; what they have counted may differ."""
    one, two, three = (
        encode_command(
            Command.GET_SERVICE, encode_nested(1, ipvs.identity(Family.IPV4, server)) + attribute(12, bytes(40))
        )
        for server in (WEB, WEB._replace(port=81), MARKED)
    )
    counted = memoryview(one[:-1] + b"\7")
    lists = [[memoryview(one), memoryview(two)], [memoryview(one), memoryview(three)], [memoryview(three), counted]]
    assert read_until_stable(iter(lists).__next__) == lists[2]
    changing = ([memoryview(one)] if number % 2 else [] for number in range(6))
    assert read_until_stable(changing.__next__) == [memoryview(one)], "a list that never stops changing: the last one"


def test_a_dest_reads_back() -> None:
    real = RealServer(WEB, ip("10.0.0.1"), 8080)
    payload = ipvs.encode_dest_command(Command.NEW_DEST, Family.IPV4, real, Forwarding(3, Method.TUNNEL))
    dest = attributes(attributes(payload, 4)[2])
    extra = attribute(7, struct.pack("=I", 5)) + attribute(8, struct.pack("=I", 6))
    again = encode_command(
        Command.NEW_DEST, encode_nested(2, *(attribute(k, bytes(v)) for k, v in dest.items()), extra)
    )
    state = ipvs.decode_dest(memoryview(again))
    assert (state.address, state.port, state.forwarding) == (real.address, 8080, Forwarding(3, Method.TUNNEL))
    assert (state.active, state.inactive) == (5, 6)


def test_timeouts_that_are_zero_are_not_sent() -> None:
    sent = attributes(ipvs.encode_set_timeouts(ipvs.Timeouts(900, 0, 300)), 4)
    assert {kind: struct.unpack("=I", value)[0] for kind, value in sent.items()} == {4: 900, 6: 300}


def test_the_family_is_asked_for_by_name() -> None:
    assert bytes(attributes(encode_get_family("IPVS"), 4)[2]) == b"IPVS\0"
    assert family_number(memoryview(encode_command(1, attribute(1, struct.pack("=H", 33))))) == 33
    with pytest.raises(DecodeError, match="no number"):
        family_number(memoryview(encode_command(1)))


@pytest.mark.parametrize(
    ("element", "mark"),
    [
        (IpsetEntry(ip("10.0.0.1")), 0),
        (IpsetEntry(ip("10.0.0.1"), 6, 80), 0x12345678),
        (IpsetEntry(ip("fd00::1"), 132, 65535), 0xFFFFFFFF),
        (IpsetEntry(ip("10.0.0.1"), 17, 53, ip("10.0.0.2")), 0),
        (IpsetEntry(ip("10.0.0.1"), 6, 80, cidr("192.0.2.0/24")), 0),
        (IpsetEntry(ip("fd00::1"), 6, 80, cidr("2001:db8::/32")), 0),
        (IpsetEntry(port=30080), 0),
    ],
)
def test_an_element_reads_back(element: IpsetEntry, mark: int) -> None:
    (payload,) = ipset.encode_changes(Family.IPV4, "KUBE-X", [(element, mark)])
    found = ipset.decode_list(memoryview(payload))
    assert found.name == "KUBE-X"
    assert found.elements == ((element, mark),)


def test_many_elements_are_several_messages() -> None:
    elements = [(IpsetEntry(port=number), 0) for number in range(1, 2001)]
    payloads = list(ipset.encode_changes(Family.IPV4, "KUBE-X", elements))
    assert len(payloads) > 1
    assert [each for payload in payloads for each in ipset.decode_list(memoryview(payload)).elements] == elements


def test_a_set_is_created_with_its_type_and_what_it_carries() -> None:
    found = attributes(
        ipset.encode_create(Family.IPV6, "KUBE-6-X", IpsetSpec(SetType.ADDRESS_PORT, marks=True), 7), 4
    )
    assert bytes(found[3]) == b"hash:ip,port\0"
    assert (found[4][0], found[5][0]) == (7, 10)
    assert bytes(attributes(found[7])[8]) == (1 << 6).to_bytes(4)
    ports = attributes(ipset.encode_create(Family.IPV6, "KUBE-6-P", IpsetSpec(SetType.PORT), 3), 4)
    assert ports[5][0] == 0, "ports have no family"
    assert bytes(attributes(ports[7])[5]) == b"\xff\xff"


@pytest.mark.parametrize(
    ("options", "limits"),
    [
        ([(19, 1 << 20, 4)], ""),
        ([(19, 65536, 4)], "maxelem 65536"),
        ([(19, 1 << 20, 4), (6, 300, 4)], "timeout 300"),
        ([(19, 4, 4), (8, 1 << 5 | 1 << 6, 4)], "maxelem 4 forceadd"),
        ([(19, 1 << 20, 4), (20, 24, 1)], "netmask"),
        ([(4, 0, 2), (5, 65535, 2)], ""),
        ([(4, 30000, 2), (5, 32767, 2)], "range 30000-32767"),
    ],
)
def test_the_options_that_keep_elements_out_of_a_set_are_found(
    options: list[tuple[int, int, int]], limits: str
) -> None:
    header = b"".join(attribute(kind | 0x4000, value.to_bytes(size)) for kind, value, size in options)
    payload = ipset.encode_set_name(Family.IPV6, "KUBE-X") + attribute(3, b"hash:ip\0") + attribute(5, b"\x0a")
    found = ipset.decode_list(memoryview(payload + attribute(7 | 0x8000, header)))
    assert (found.type, found.family, found.limits) == ("hash:ip", Family.IPV6, limits)


TABLE = """IP Virtual Server version 1.2.1 (size=4096)
Prot LocalAddress:Port Scheduler Flags
  -> RemoteAddress:Port Forward Weight ActiveConn InActConn
TCP  0A600001:0050 rr persistent 30000 FFFFFFFF
  -> 0AF4010B:1F90      Masq    3      7          9
UDP  [fd00:0000:0000:0000:0000:0000:0000:0001]:0035 wlc
  -> [fd00:0010:0000:0000:0000:0000:0000:0002]:0035      Tunnel  0      0          1
FWM  00001234 rr
  -> 0AF4010B:1F90      Route   1      0          0
SCTP 0A600001:0051 rr
"""


def test_the_table_of_real_servers() -> None:
    web = RealServer(WEB, ip("10.244.1.11"), 8080)
    ours = parse_table(TABLE, Family.IPV4)
    assert ours.rows == [
        Row(web, Forwarding(3), 7, 9),
        Row(web._replace(server=MARKED), Forwarding(1, Method.ROUTE), 0, 0),
    ]
    assert ours.listed == {WEB, MARKED, VirtualServer(132, WEB.address, 81)}, (
        "one without real servers is listed, too"
    )
    dns = RealServer(VirtualServer(17, ip("fd00::1"), 53), ip("fd00:10::2"), 53)
    six = parse_table(TABLE, Family.IPV6)
    assert six.rows == [Row(dns, Forwarding(0, Method.TUNNEL), 0, 1)]
    assert six.listed == {dns.server}, "a mark is of the family of its real servers"


def test_a_line_that_is_not_understood_is_shown() -> None:
    with pytest.raises(DecodeError, match="'  -> nowhere'"):
        parse_table("1\n2\n3\nTCP  0A600001:0050 rr\n  -> nowhere\n", Family.IPV4)
