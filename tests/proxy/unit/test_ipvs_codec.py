"""The bytes of IPVS and ipset, and the text of /proc/net/ip_vs, as kernels speak them."""

import struct

import pytest
from tests.fakes.values import ip

from vipwire.errors import DecodeError
from vipwire.linux.netlink import ipset, ipvs
from vipwire.linux.netlink.ipvs import (
    Command,
    Forwarding,
    Method,
    RealServer,
    Scheduling,
    VirtualServer,
    encode_command,
    encode_get_family,
    family_number,
)
from vipwire.linux.netlink.message import collect_attributes, encode_attribute, encode_nested
from vipwire.model.net import Address, Family
from vipwire.modes.ipvs.objects.servers import Row, parse_table, read_until_stable

WEB = VirtualServer(6, ip("10.96.0.1"), 80)
MARKED = VirtualServer(0, Address(b""), 0, 0x1234)


def test_the_kernels_own_flag_is_no_flag_of_ours() -> None:
    inside = b"".join(
        (
            encode_attribute(1, struct.pack("=H", 2)),
            encode_attribute(5, struct.pack("=I", 7)),
            encode_attribute(6, b"rr\0"),
            encode_attribute(7, struct.pack("=II", 0x02, 0xFFFFFFFF)),
        )
    )
    assert ipvs.decode_service(memoryview(encode_command(1, encode_nested(1, inside))))[2] == Scheduling("rr")


def test_a_list_counts_once_two_in_a_row_name_the_same() -> None:
    """What goes while the kernel lists lets it pass over others; what they have counted may differ."""
    one, two, three = (
        encode_command(
            Command.GET_SERVICE,
            encode_nested(1, ipvs.encode_identity(Family.IPV4, server)) + encode_attribute(12, bytes(40)),
        )
        for server in (WEB, WEB._replace(port=81), MARKED)
    )
    counted = memoryview(one[:-1] + b"\7")
    lists = [[memoryview(one), memoryview(two)], [memoryview(one), memoryview(three)], [memoryview(three), counted]]
    assert read_until_stable(iter(lists).__next__) == lists[2]
    changing = ([memoryview(one)] if number % 2 else [] for number in range(6))
    assert read_until_stable(changing.__next__) == [memoryview(one)], "a list that never stops changing: the last one"


def test_the_family_is_asked_for_by_name() -> None:
    assert bytes(collect_attributes(encode_get_family("IPVS"), 4)[2]) == b"IPVS\0"
    assert family_number(memoryview(encode_command(1, encode_attribute(1, struct.pack("=H", 33))))) == 33
    with pytest.raises(DecodeError, match="no number"):
        family_number(memoryview(encode_command(1)))


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
    header = b"".join(encode_attribute(kind | 0x4000, value.to_bytes(size)) for kind, value, size in options)
    payload = (
        ipset.encode_set_name(Family.IPV6, "KUBE-X")
        + encode_attribute(3, b"hash:ip\0")
        + encode_attribute(5, b"\x0a")
    )
    found = ipset.decode_list(memoryview(payload + encode_attribute(7 | 0x8000, header)))
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
