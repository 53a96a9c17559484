"""The names of chains are read without the rest, whatever order a kernel says it in."""

import pytest
from tests.proxy.unit.test_netlink_dump_whole import Kernel, done

from vipwire.errors import DecodeError
from vipwire.linux.netlink.message import (
    NLM_F_DUMP_INTR,
    encode_attribute,
    encode_message,
    encode_nested,
    encode_string,
    encode_u32be,
)
from vipwire.linux.netlink.nftables import wire
from vipwire.linux.netlink.nftables.decode import list_chain_names
from vipwire.linux.netlink.socket import NETLINK_NETFILTER, DumpInterruptedError, NetlinkSocket
from vipwire.model.net import Family

NAT = encode_string(wire.CHAIN_TABLE, "nat")
HANDLE = encode_attribute(wire.CHAIN_HANDLE, bytes(8))
USE = encode_u32be(6, 1)
HOOK = encode_nested(wire.CHAIN_HOOK, encode_u32be(wire.HOOK_NUMBER, 0), encode_u32be(wire.HOOK_PRIORITY, 0))


def chain(*attributes: bytes, flags: int = 2) -> bytes:
    return encode_message(0xA03, flags, 1, bytes(4) + b"".join(attributes))


def name(text: str) -> bytes:
    return encode_string(wire.CHAIN_NAME, text)


def listed(*datagrams: bytes) -> dict[str, dict[str, bool]]:
    netlink = NetlinkSocket(NETLINK_NETFILTER)
    netlink.close()
    netlink._socket = Kernel(*datagrams, done())  # type: ignore[assignment]  # noqa: SLF001
    return list_chain_names(netlink, Family.IPV4)


def test_chains_are_listed_by_table_with_whether_they_are_base_chains() -> None:
    others = chain(encode_string(wire.CHAIN_TABLE, "filter"), HANDLE, name("INPUT"), HOOK)
    assert listed(chain(NAT, HANDLE, name("KUBE-A"), USE) + others, chain(NAT, HANDLE, name("KUBE-BCDE"), USE)) == {
        "nat": {"KUBE-A": False, "KUBE-BCDE": False},
        "filter": {"INPUT": True},
    }


@pytest.mark.parametrize(
    "message",
    [
        chain(NAT, name("A"), USE, HANDLE),
        chain(name("A"), NAT, HANDLE),
        chain(NAT, USE, name("A")),
        chain(NAT, name("A")),
    ],
)
def test_another_order_is_read_as_well(message: bytes) -> None:
    assert listed(message) == {"nat": {"A": False}}


def test_a_list_that_was_interrupted_or_is_no_list_raises() -> None:
    with pytest.raises(DumpInterruptedError):
        listed(chain(NAT, HANDLE, name("A"), USE, flags=2 | NLM_F_DUMP_INTR))
    for broken in (chain(), chain(NAT), chain(NAT, HANDLE, name("A"), USE)[:-4]):
        with pytest.raises(DecodeError):
            listed(broken)
