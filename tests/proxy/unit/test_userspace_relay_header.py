"""The PROXY protocol's header, against the examples and layouts of its specification."""

import pytest

from vipwire.relay.header import encode_proxy_header


def test_version_1_is_a_line() -> None:
    assert (
        encode_proxy_header(1, ("192.0.2.1", 56324), ("10.96.0.1", 443))
        == b"PROXY TCP4 192.0.2.1 10.96.0.1 56324 443\r\n"
    )
    assert encode_proxy_header(1, ("2001:db8::1", 1), ("fd00::2", 2)) == b"PROXY TCP6 2001:db8::1 fd00::2 1 2\r\n"


@pytest.mark.parametrize(("datagram", "kind"), [(False, 1), (True, 2)])
def test_version_2_is_binary(datagram: bool, kind: int) -> None:  # noqa: FBT001
    four = encode_proxy_header(2, ("192.0.2.1", 56324), ("10.96.0.1", 443), datagram=datagram)
    assert four[:12] == b"\x0d\x0a\x0d\x0a\x00\x0d\x0a\x51\x55\x49\x54\x0a"
    assert four[12:16] == bytes((0x21, 0x10 | kind, 0, 12))
    assert four[16:] == bytes((192, 0, 2, 1, 10, 96, 0, 1)) + (56324).to_bytes(2) + (443).to_bytes(2)
    six = encode_proxy_header(2, ("2001:db8::1", 1), ("fd00::2", 2), datagram=datagram)
    assert six[12:16] == bytes((0x21, 0x20 | kind, 0, 36))
    assert len(six) == 16 + 36


def test_version_1_knows_no_datagrams() -> None:
    assert encode_proxy_header(1, ("192.0.2.1", 1), ("10.96.0.1", 53), datagram=True) == b""
