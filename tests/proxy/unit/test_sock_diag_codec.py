"""sock_diag's answers: whose socket it is and with whom it is connected."""

import pytest

from vipwire.errors import DecodeError
from vipwire.linux.netlink.sock_diag import decode_socket, encode_destroy, encode_list_connected
from vipwire.model.net import Family, parse_address

COOKIE = bytes(range(8))


def answer(family: int, peer: str, port: int = 53) -> bytes:
    identity = (1234).to_bytes(2) + port.to_bytes(2) + bytes(16) + parse_address(peer).ljust(16, b"\0") + bytes(4)
    return bytes((family, 1, 0, 0)) + identity + COOKIE + bytes(20)


@pytest.mark.parametrize(
    ("family", "told", "peer"),
    [(2, "10.0.0.1", "10.0.0.1"), (10, "fd00::1", "fd00::1")],
    ids=["IPv4", "IPv6"],
)
def test_a_socket_tells_its_peer(family: int, told: str, peer: str) -> None:
    found = decode_socket(answer(family, told))
    assert found.peer == (parse_address(peer), 53)
    assert found.cookie == COOKIE
    assert encode_destroy(found)[8:] == found.identity


def test_a_socket_of_ipv6_may_have_an_ipv4_peer() -> None:
    mapped = bytearray(answer(10, "fd00::1"))
    mapped[24:40] = bytes(10) + b"\xff\xff" + parse_address("10.0.0.1")
    assert decode_socket(bytes(mapped)).peer == (parse_address("10.0.0.1"), 53)


@pytest.mark.parametrize("data", [b"", bytes(51), bytes((7, 1, 0, 0)) + bytes(60)], ids=["none", "short", "family"])
def test_what_is_no_socket_is_refused(data: bytes) -> None:
    with pytest.raises(DecodeError, match="sock_diag"):
        decode_socket(data)


def test_all_udp_sockets_of_a_family_are_asked_for() -> None:
    assert [encode_list_connected(family)[:2] for family in Family] == [bytes((2, 17)), bytes((10, 17))]
