"""What carries established connections past the rules: its objects, their order, what is said of them."""

import errno
from itertools import count

import pytest
from tests.fakes.values import node_plan

from vipwire.errors import DecodeError
from vipwire.linux.netlink.message import Acknowledgement
from vipwire.linux.netlink.nftables import encode
from vipwire.linux.netlink.nftables.encode import Operation
from vipwire.linux.netlink.nftables.flowtables import (
    decode_flowtable,
)
from vipwire.linux.netlink.nftables.wire import MessageType
from vipwire.model.net import Address, Family, Protocol, parse_address
from vipwire.modes.nftables.explain.explainer import describe_offloading
from vipwire.modes.nftables.explain.table import Run, Table
from vipwire.modes.nftables.probe import try_offloading
from vipwire.modes.nftables.table import fastpath
from vipwire.modes.nftables.table.names import Chain, Object, ObjectKey
from vipwire.modes.nftables.table.script import build_operations
from vipwire.modes.nftables.table.skeleton import build_node_objects, compile_cached
from vipwire.plan.resolve import Packet
from vipwire.reconcile.delta import Delta
from vipwire.reconcile.steps import ObjectState

FAMILIES = pytest.mark.parametrize("family", Family)
CLIENT, VIP, POD, NODE = map(parse_address, ("203.0.113.9", "10.96.0.1", "10.244.1.11", "192.168.0.1"))


def words(delta: Delta[ObjectKey, Object], family: Family = Family.IPV4) -> list[str]:
    return [step.words for step in build_operations(family, delta)]


@FAMILIES
def test_without_a_threshold_there_is_nothing_of_it(family: Family) -> None:
    plain, offloads = build_node_objects(node_plan(family)), build_node_objects(node_plan(family), offload_after=20)
    assert plain.items() <= offloads.items()
    assert set(offloads) - set(plain) == {fastpath.KEY, fastpath.ENTRY}


@FAMILIES
@pytest.mark.parametrize("packets", [1, 20, 255, 256, 1 << 40])
def test_the_threshold_is_read_from_the_kernels_rule_and_from_the_text(family: Family, packets: int) -> None:
    entry = fastpath.build_fastpath_objects(packets)[fastpath.ENTRY]
    assert isinstance(entry, Chain)
    assert fastpath.read_threshold(family, compile_cached(entry.rules[0], family)) == packets
    assert fastpath.parse_threshold(entry) == packets


@pytest.mark.parametrize("rule", ["accept", "ct packets > 20 accept", "ct state established"])
def test_another_rule_has_no_threshold(rule: str) -> None:
    assert fastpath.read_threshold(Family.IPV4, compile_cached(rule, Family.IPV4)) == 0
    assert fastpath.read_threshold(Family.IPV4, b"\7\0\1\0") == 0
    assert fastpath.parse_threshold(Chain((rule,))) == 0


def test_the_flowtable_is_there_before_rules_use_it_and_goes_after_them() -> None:
    objects = fastpath.build_fastpath_objects(20)
    coming, going = words(Delta(added=objects)), words(Delta(removed=objects))
    assert coming.index("add flowtable fastpath") < min(at for at, each in enumerate(coming) if "rule" in each)
    assert going[-1] == "delete flowtable fastpath"


@pytest.mark.parametrize("payload", [b"", b"\2\0\0", encode.list_objects(Family.IPV4, "t")])
def test_a_flowtable_without_a_name_is_refused(payload: bytes) -> None:
    with pytest.raises(DecodeError):
        decode_flowtable(memoryview(payload))


def test_a_kernel_without_flowtables_is_told_by_what_it_does_not_take() -> None:
    def send(operations: list[Operation]) -> tuple[int, list[Acknowledgement]]:
        refused = [
            Acknowledgement(errno.ENOENT, number)
            for number, each in zip(count(2), operations, strict=False)
            if each.kind is MessageType.NEWFLOWTABLE
        ]
        return 1, [*refused, Acknowledgement(errno.ENOENT, 1 + len(operations))]

    said = try_offloading(Family.IPV6, send)
    assert "refuses `add flowtable tried-flowtable` (ENOENT)" in said
    assert "CONFIG_NF_FLOW_TABLE_INET, CONFIG_NFT_FLOW_OFFLOAD" in said
    assert not try_offloading(Family.IPV4, lambda each: (1, [Acknowledgement(errno.ENOENT, 1 + len(each))]))


def said(
    observed: int, wanted: int, *, protocol: Protocol = Protocol.TCP, target: Address = POD, node: bool = False
) -> str:
    """Explain a connection by a table with these thresholds; 0 for none."""
    has, should = (fastpath.build_fastpath_objects(packets) for packets in (observed, wanted))
    table = Table(Family.IPV4, has, should, own=frozenset({NODE}))
    packet = Packet(NODE if node else CLIENT, VIP, protocol, 80, "" if node else "eth0", from_node=node)
    found = describe_offloading(table, packet, Run(target=(target, 80)))
    return "; ".join(f"{each.state.name}: {each.effect}" for each in found)


def test_explain_says_after_how_many_packets_and_where_the_plan_has_it_otherwise() -> None:
    assert said(20, 20) == "PLANNED: offloads the connection after 20 packets"
    assert said(7, 20) == "DIFFERENT: offloads the connection after 7 packets"
    assert said(20, 0).startswith(ObjectState.DIFFERENT.name)
    assert said(0, 20) == "MISSING: does not exist"
    assert said(0, 0) == ""


def test_explain_is_silent_of_what_is_never_offloaded() -> None:
    assert said(20, 20, protocol=Protocol.UDP) == ""
    assert said(20, 20, target=NODE) == "", "it is not forwarded"
    assert said(20, 20, node=True) == ""
