"""What the sets of counters mean, and what the table has of them by each setting."""

import pytest

from vipwire.config.sections import CounterLevel
from vipwire.linux.netlink.nftables.elements import ElementCounter
from vipwire.model.names import ObjectName, ServicePortName
from vipwire.model.net import Address, Family, Protocol, parse_address
from vipwire.modes.nftables.table.counts import (
    COUNTING,
    connection_chains,
    counting_sets,
    counts,
    refusal,
    traffic_chains,
)
from vipwire.modes.nftables.table.names import frontend_bytes
from vipwire.plan.plan import Frontend, FrontendKey, FrontendKind, Reason, Reject, ServicePlan
from vipwire.reconcile.counts import EndpointName, Measure, Refusal

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
    return frontend_bytes(FrontendKey(frontend, protocol, port)) + endpoint + (8080).to_bytes(2) + bytes(2)


def test_frontends_of_a_port_are_one_and_node_ports_are_known_at_any_address() -> None:
    seen = [ElementCounter(pair(VIP, 80), 3, 180), ElementCounter(pair(NODE, 30080), 4, 240)]
    found = counts(Family.IPV4, [PLAN], {"connections": seen}, endpoints=True)
    assert found == {Measure.CONNECTIONS: {NAME: 7, EndpointName(NAME, POD, 8080): 7}}
    without = counts(Family.IPV4, [PLAN], {"connections": seen}, endpoints=False)
    assert without == {Measure.CONNECTIONS: {NAME: 7}}


def test_traffic_has_two_ways() -> None:
    tables = {
        "traffic": [ElementCounter(pair(VIP, 80), 5, 500)],
        "traffic-replies": [ElementCounter(pair(VIP, 80), 6, 6000)],
    }
    found = counts(Family.IPV4, [PLAN], tables, endpoints=False)
    assert found == {
        Measure.PACKETS: {NAME: 5},
        Measure.BYTES: {NAME: 500},
        Measure.REPLY_PACKETS: {NAME: 6},
        Measure.REPLY_BYTES: {NAME: 6000},
    }


def test_what_others_translate_is_left_out() -> None:
    foreign = [
        ElementCounter(pair(NODE, 8443), 9, 0),
        ElementCounter(pair(VIP, 80, protocol=Protocol.UDP), 9, 0),
        ElementCounter(pair(VIP, 81), 9, 0),
    ]
    assert counts(Family.IPV4, [PLAN], {"connections": foreign}, endpoints=True) == {}


def test_refusals_are_of_a_port_or_of_nobody() -> None:
    tables = {
        "refused-no-endpoint": [
            ElementCounter(frontend_bytes(FrontendKey(VIP, Protocol.TCP, 80)), 2, 0),
            ElementCounter(frontend_bytes(FrontendKey(NODE, Protocol.TCP, 30080)), 3, 0),
            ElementCounter(frontend_bytes(FrontendKey(VIP, Protocol.TCP, 999)), 100, 0),  # of a Service that is gone
        ],
        "refused-undefined-port": [ElementCounter(VIP, 4, 0), ElementCounter(NODE, 5, 0)],
        "refused-unallocated": [
            ElementCounter(bytes((6, 0, 0, 0)), 6, 0),
            ElementCounter(bytes((17, 0, 0, 0)), 7, 0),
        ],
    }
    assert counts(Family.IPV4, [PLAN], tables, endpoints=False).refusals() == {
        (Refusal.NO_ENDPOINTS, NAME): 5,
        (Refusal.UNDEFINED_PORT, None): 9,
        (Refusal.UNALLOCATED_CLUSTER_IP, None): 13,
    }


@pytest.mark.parametrize("family", list(Family))
def test_the_sets_are_declared_in_any_case_and_filled_only_if_asked_for(family: Family) -> None:
    declared = {spec.name: spec for spec in counting_sets(family)}
    assert declared.keys() == COUNTING
    assert all(spec.counter and {"dynamic", "timeout"} == spec.flags and spec.size for spec in declared.values())
    assert list(connection_chains(family, CounterLevel.NOTHING)) == []
    assert list(traffic_chains(family, CounterLevel.CONNECTIONS)) == []
    for reason in Refusal:
        _, silent = refusal(family, reason, CounterLevel.NOTHING)
        name, counting = refusal(family, reason, CounterLevel.CONNECTIONS)
        assert counting.rules == (f"update @{name} {{ {' . '.join(declared[name].key)} }}", *silent.rules)


def test_no_refusal_is_counted_by_what_a_client_may_choose_at_will() -> None:
    keys = {spec.name: spec.key for spec in counting_sets(Family.IPV4)}
    assert keys["refused-undefined-port"] == ("ip daddr",)
    assert keys["refused-unallocated"] == ("meta l4proto",)
