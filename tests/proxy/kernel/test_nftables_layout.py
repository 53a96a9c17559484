"""The table's layout in small: built by us it lists exactly as nft's own, and nft can load the listing."""

import errno
import struct
from collections.abc import Iterator

import pytest
from tests.fakes.own_network import own_network
from tests.proxy.kernel.nft_transactions import Refused, commit, dump, elements, nft

from vipwire.linux.netlink.nftables import decode, encode
from vipwire.linux.netlink.nftables.elements import Element, VerdictData, encode_element
from vipwire.linux.netlink.nftables.encode import HOOKS, NetfilterHook, Operation
from vipwire.linux.netlink.nftables.wire import Code, MessageType, SetFlag
from vipwire.linux.netlink.socket import NETLINK_NETFILTER, NetlinkSocket
from vipwire.model.net import Address, Family, parse_address
from vipwire.modes.nftables.language import SetSpec, compile_rule, compile_set

pytestmark = pytest.mark.kernel

TEXT = """table ip vipwire {
    comment "Services"
    map service-ips {
        typeof ip daddr . meta l4proto . th dport : meta priority
        elements = { 10.96.0.1 . tcp . 80 comment "default/web:http" : 1:a,
                    10.96.0.2 . udp . 53 : 2:3 }
    }

    map endpoints {
        typeof ip daddr . meta l4proto . th dport . meta priority : ip daddr . th dport
        elements = { 10.96.0.1 . tcp . 80 . 0:1 : 10.128.0.1 . 8080,
                    10.96.0.1 . tcp . 80 . 1:1 : 10.128.0.2 . 8081 }
    }

    map affinity {
        typeof ip saddr . ip daddr . meta l4proto . th dport : meta priority
        size 65535
        flags dynamic,timeout
        timeout 3h
    }

    set cluster-ips {
        type ipv4_addr
        elements = { 10.96.0.1 comment "default/web" }
    }

    set allowed {
        typeof ip daddr . meta l4proto . th dport . ip saddr
        flags interval
        elements = { 1.2.3.4 . tcp . 80 . 203.0.113.0/25 comment "default/web" }
    }

    map classes {
        typeof meta priority : verdict
        elements = { 1:a : goto pick-10 }
    }

    chain pick-10 {
        dnat ip to ip daddr . meta l4proto . th dport . meta priority map @endpoints
    }

    chain remember {
        update @affinity { ip saddr . ip daddr . meta l4proto . th dport timeout 30s : meta priority }
    }

    chain services {
        meta priority set ip daddr . meta l4proto . th dport map @service-ips meta priority vmap @classes
    }

    chain firewall-check {
        ip daddr . meta l4proto . th dport . ip saddr != @allowed counter packets 0 bytes 0 drop
    }

    chain nat-prerouting {
        type nat hook prerouting priority dstnat; policy accept;
        jump services
    }
}
"""
KEY = ("ip daddr", "meta l4proto", "th dport")
WEB, DNS, BALANCER = (parse_address(text) for text in ("10.96.0.1", "10.96.0.2", "1.2.3.4"))
SETS = (
    SetSpec("service-ips", KEY, ("meta priority",)),
    SetSpec("endpoints", (*KEY, "meta priority"), ("ip daddr", "th dport")),
    SetSpec("affinity", ("ip saddr", *KEY), ("meta priority",), frozenset({"dynamic", "timeout"}), 10800, 65535),
    SetSpec("cluster-ips", ("ipv4_addr",)),
    SetSpec("allowed", (*KEY, "ip saddr"), flags=frozenset({"interval"})),
    SetSpec("classes", ("meta priority",), "verdict"),
)
CHAINS = {
    "pick-10": "dnat ip to ip daddr . meta l4proto . th dport . meta priority map @endpoints",
    "remember": "update @affinity { ip saddr . ip daddr . meta l4proto . th dport timeout 30s : meta priority }",
    "services": "meta priority set ip daddr . meta l4proto . th dport map @service-ips meta priority vmap @classes",
    "firewall-check": "ip daddr . meta l4proto . th dport . ip saddr != @allowed counter drop",
    "nat-prerouting": "jump services",
}


def frontend(address: Address, protocol: int, port: int) -> bytes:
    return address + struct.pack(">B3xH2x", protocol, port)


def handle(major: int, minor: int) -> bytes:
    return struct.pack("=I", major << 16 | minor)


def slot(number: int) -> bytes:
    return frontend(WEB, 6, 80) + struct.pack("=I", number)


ALLOWED = frontend(BALANCER, 6, 80)
ELEMENTS = {
    "service-ips": [
        Element(frontend(WEB, 6, 80), handle(1, 10), comment="default/web:http"),
        Element(frontend(DNS, 17, 53), handle(2, 3)),
    ],
    "endpoints": [
        Element(slot(1), parse_address("10.128.0.1") + struct.pack(">H2x", 8080)),
        Element(slot(65537), parse_address("10.128.0.2") + struct.pack(">H2x", 8081)),
    ],
    "affinity": [],
    "cluster-ips": [Element(WEB, comment="default/web")],
    "allowed": [
        Element(
            ALLOWED + parse_address("203.0.113.0"),
            key_end=ALLOWED + parse_address("203.0.113.127"),
            comment="default/web",
        ),
    ],
    "classes": [Element(handle(1, 10), verdict=VerdictData(Code.GOTO, "pick-10"))],
}


def operations() -> list[Operation]:
    family = Family.IPV4
    made = [encode.new_table(family, "vipwire", "Services")]
    made += [encode.new_set(family, "vipwire", spec.name, compile_set(spec, family)) for spec in SETS]
    for name in CHAINS:
        hook = NetfilterHook("nat", HOOKS["prerouting"], -100) if name == "nat-prerouting" else None
        made.append(encode.new_chain(family, "vipwire", name, hook))
    for name, text in CHAINS.items():
        made.append(encode.new_rule(family, "vipwire", name, compile_rule(text, family, {"allowed"})))
    for name, members in ELEMENTS.items():
        made += encode.new_elements(family, "vipwire", name, map(encode_element, members))
    return made


@pytest.fixture
def netlink() -> Iterator[NetlinkSocket]:
    with own_network(), NetlinkSocket(NETLINK_NETFILTER) as opened:
        yield opened


@pytest.mark.parametrize("by_nft", [False, True], ids=["ours", "nft's"])
def test_what_was_committed_is_what_is_dumped(netlink: NetlinkSocket, *, by_nft: bool) -> None:
    if by_nft:
        nft("-f", "-", stdin=TEXT)
    else:
        commit(netlink, operations())
    found = dump(
        netlink, MessageType.GETSET, encode.list_objects(Family.IPV4, "vipwire"), decode.decode_set_declaration
    )
    observed = {item.name: set(elements(netlink, Family.IPV4, item)) for item in found}
    assert observed == {name: set(members) for name, members in ELEMENTS.items()}


def test_tables_chains_and_rules_are_dumped_with_what_they_are(netlink: NetlinkSocket) -> None:
    commit(netlink, operations())
    (table,) = dump(netlink, MessageType.GETTABLE, encode.list_tables(), decode.decode_table)
    assert (table.family, table.name) == (2, "vipwire")
    chains = dump(netlink, MessageType.GETCHAIN, encode.list_objects(Family.IPV4, "vipwire"), decode.decode_chain)
    hooks = {"nat-prerouting": NetfilterHook("nat", 0, -100, "accept")}
    assert {chain.name: chain.hook for chain in chains} == dict.fromkeys(CHAINS) | hooks
    rules = dump(netlink, MessageType.GETRULE, encode.list_objects(Family.IPV4, "vipwire"), decode.decode_rule)
    assert [rule.chain for rule in rules] == list(CHAINS)
    sets = dump(
        netlink, MessageType.GETSET, encode.list_objects(Family.IPV4, "vipwire"), decode.decode_set_declaration
    )
    affinity = next(item for item in sets if item.name == "affinity")
    assert affinity.flags == SetFlag.MAP | SetFlag.EVAL | SetFlag.TIMEOUT
    assert (affinity.key_length, affinity.value_length, affinity.timeout, affinity.size) == (16, 4, 10_800_000, 65535)


def test_everything_can_be_taken_away_piece_by_piece(netlink: NetlinkSocket) -> None:
    commit(netlink, operations())
    family = Family.IPV4
    undone = [encode.flush_chain(family, "vipwire", name) for name in CHAINS]
    for name, members in ELEMENTS.items():
        undone += encode.delete_elements(family, "vipwire", name, map(encode_element, members))
    undone += [encode.delete_chain(family, "vipwire", name) for name in CHAINS]
    undone += [encode.delete_set(family, "vipwire", spec.name) for spec in SETS]
    commit(netlink, undone)
    assert nft("list", "ruleset") == 'table ip vipwire {\n\tcomment "Services"\n}\n'
    commit(netlink, [encode.delete_table(family, "vipwire")])
    assert nft("list", "ruleset") == ""


def test_every_kind_of_element_can_be_replaced_in_one_transaction(netlink: NetlinkSocket) -> None:
    commit(netlink, operations())
    before = nft("list", "ruleset")
    replaced: list[Operation] = []
    for name, members in ELEMENTS.items():
        blobs = [encode_element(member) for member in members]
        replaced += encode.delete_elements(Family.IPV4, "vipwire", name, blobs)
        replaced += encode.new_elements(Family.IPV4, "vipwire", name, blobs)
    commit(netlink, replaced)
    assert sorted(nft("list", "ruleset").split()) == sorted(before.split())


def test_ranges_that_overlap_are_refused(netlink: NetlinkSocket) -> None:
    commit(netlink, operations())
    inside = ALLOWED + parse_address("203.0.113.64")
    blob = encode_element(Element(inside, key_end=inside))
    with pytest.raises(Refused) as caught:
        commit(netlink, encode.new_elements(Family.IPV4, "vipwire", "allowed", [blob]))
    assert caught.value.answer.errno == errno.EEXIST


def test_a_refused_operation_is_named_and_nothing_of_its_transaction_happens(netlink: NetlinkSocket) -> None:
    commit(netlink, operations())
    before = nft("list", "ruleset")
    family = Family.IPV4
    bad = encode.delete_chain(family, "vipwire", "no-such-chain")
    attempt = [encode.new_chain(family, "vipwire", "new"), bad, encode.flush_chain(family, "vipwire", "services")]
    with pytest.raises(Refused) as caught:
        commit(netlink, attempt)
    assert caught.value.operation is bad
    assert caught.value.answer.errno == errno.ENOENT
    assert nft("list", "ruleset") == before


def test_timeouts_of_elements_are_carried_both_ways(netlink: NetlinkSocket) -> None:
    commit(netlink, operations())
    key = parse_address("192.0.2.1") + frontend(WEB, 6, 80)
    member = Element(key, handle(1, 1), timeout=5_000_000)
    commit(netlink, encode.new_elements(Family.IPV4, "vipwire", "affinity", [encode_element(member)]))
    found = dump(
        netlink, MessageType.GETSET, encode.list_objects(Family.IPV4, "vipwire"), decode.decode_set_declaration
    )
    affinity = next(item for item in found if item.name == "affinity")
    (observed,) = elements(netlink, Family.IPV4, affinity)
    assert 0 < observed.expiration <= 5_000_000
    assert observed._replace(expiration=0) == member


def test_more_elements_than_one_message_holds_are_all_there(netlink: NetlinkSocket) -> None:
    commit(netlink, operations())
    members = [Element(slot(number), WEB + struct.pack(">H2x", 80)) for number in range(2, 10_002)]
    made = encode.new_elements(Family.IPV4, "vipwire", "endpoints", map(encode_element, members))
    assert len(made) > 1
    commit(netlink, made)
    found = dump(
        netlink, MessageType.GETSET, encode.list_objects(Family.IPV4, "vipwire"), decode.decode_set_declaration
    )
    endpoints = next(item for item in found if item.name == "endpoints")
    # While the kernel's hash still grows, behind the transaction, a dump may leave some out.
    missing, tries = set(members), 0
    while missing and tries < 200:
        missing, tries = set(members) - set(elements(netlink, Family.IPV4, endpoints)), tries + 1
    assert not missing
