"""What the sets of counters mean, and what the table has of them by each setting."""

import pytest

from vipwire.config.sections import CounterLevel
from vipwire.linux.netlink.nftables.elements import ElementCounter
from vipwire.model.names import ObjectName, ServicePortName
from vipwire.model.net import Address, Family, Protocol, parse_address
from vipwire.modes.nftables.table.counts import (
    COUNTING,
    build_connection_chains,
    build_refusal_chain,
    build_traffic_chains,
    count_by_service,
    list_counting_sets,
)
from vipwire.modes.nftables.table.names import encode_frontend
from vipwire.plan.plan import Frontend, FrontendKey, FrontendKind, Reason, Reject, ServicePlan
from vipwire.reconcile.counts import Refusal

NAME = ServicePortName(ObjectName("default", "web"), "http", Protocol.TCP)
VIP, NODE, POD = (parse_address(text) for text in ("10.96.0.10", "192.168.0.1", "10.244.1.11"))
NOBODY = Reject(Reason.NO_ENDPOINTS)
PLAN = ServicePlan(
    NAME.service,
    (
        Frontend(NAME, FrontendKind.CLUSTER_IP, FrontendKey(VIP, Protocol.TCP, 80), NOBODY),
        Frontend(NAME, FrontendKind.NODE_PORT, FrontendKey(None, Protocol.TCP, 30080), NOBODY),
    ),
)


def pair(frontend: Address, port: int, endpoint: Address = POD, protocol: Protocol = Protocol.TCP) -> bytes:
    return encode_frontend(FrontendKey(frontend, protocol, port)) + endpoint + (8080).to_bytes(2) + bytes(2)


def test_what_others_translate_is_left_out() -> None:
    foreign = [
        ElementCounter(pair(NODE, 8443), 9, 0),
        ElementCounter(pair(VIP, 80, protocol=Protocol.UDP), 9, 0),
        ElementCounter(pair(VIP, 81), 9, 0),
    ]
    assert count_by_service(Family.IPV4, [PLAN], {"connections": foreign}, endpoints=True) == {}


@pytest.mark.parametrize("family", list(Family))
def test_the_sets_are_declared_in_any_case_and_filled_only_if_asked_for(family: Family) -> None:
    declared = {spec.name: spec for spec in list_counting_sets(family)}
    assert declared.keys() == COUNTING
    assert all(spec.counter and {"dynamic", "timeout"} == spec.flags and spec.size for spec in declared.values())
    assert list(build_connection_chains(family, CounterLevel.NOTHING)) == []
    assert list(build_traffic_chains(family, CounterLevel.CONNECTIONS)) == []
    for reason in Refusal:
        _, silent = build_refusal_chain(family, reason, CounterLevel.NOTHING)
        name, counting = build_refusal_chain(family, reason, CounterLevel.CONNECTIONS)
        assert counting.rules == (f"update @{name} {{ {' . '.join(declared[name].key)} }}", *silent.rules)


def test_no_refusal_is_counted_by_what_a_client_may_choose_at_will() -> None:
    keys = {spec.name: spec.key for spec in list_counting_sets(Family.IPV4)}
    assert keys["refused-undefined-port"] == ("ip daddr",)
    assert keys["refused-unallocated"] == ("meta l4proto",)
