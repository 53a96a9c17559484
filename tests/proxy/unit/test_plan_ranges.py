"""Ranges of ports: what an annotation may say, what it makes of a plan, and who holds what."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.fakes.values import endpoint, ip, ips, node_plan, service, slice_of

from vipwire.model.names import ObjectName
from vipwire.model.net import Address, Protocol
from vipwire.model.service import EndpointPort, Service, ServicePort
from vipwire.plan.claims import Claimant, Claims
from vipwire.plan.frontends import plan_service
from vipwire.plan.plan import Forward, FrontendKey, RangeKey
from vipwire.plan.resolve import Answered, Packet, Plan, resolve_packet

NODE = replace(node_plan(), port_ranges=True)
TCP = Protocol.TCP
ONE = (ServicePort("", TCP, 10000),)
SEVERAL = (ServicePort("rtp", TCP, 10000), ServicePort("ctl", TCP, 5000), ServicePort("udp", Protocol.UDP, 10100))


def ranged(text: str, ports: tuple[ServicePort, ...] = ONE, affinity: int | None = None) -> Service:
    made = replace(service(annotations=(("vipwire.io/port-range", text),)), ports=ports)
    return replace(made, affinity_seconds=affinity)


def ranges_of(subject: Service) -> list[str]:
    return [str(wide.key) for wide in plan_service(NODE, subject, []).ranges]


@pytest.mark.parametrize(
    ("text", "ports", "expected"),
    [
        ("10000-20000", ONE, ["10000-20000/tcp"]),
        (" 10000-10000 ", ONE, ["10000-10000/tcp"]),
        ("rtp=9000-11000, ctl=5000-5009", SEVERAL, ["9000-11000/tcp", "5000-5009/tcp"]),
        ("udp=10000-10200", SEVERAL, ["10000-10200/udp"]),
    ],
)
def test_a_range_is_of_the_only_port_or_of_those_that_are_named(
    text: str, ports: tuple[ServicePort, ...], expected: list[str]
) -> None:
    assert [key.partition(":")[2] for key in ranges_of(ranged(text, ports))] == expected


@pytest.mark.parametrize(
    ("text", "ports", "affinity", "said"),
    [
        ("all", ONE, None, "'all' is no range of ports"),
        ("20000-10000", ONE, None, "is no range of ports"),
        ("0-10000", ONE, None, "is no range of ports"),
        ("10000-65536", ONE, None, "is no range of ports"),
        ("10000-20000,10000-20001", ONE, None, "two ranges"),
        ("10001-20000", ONE, None, "must contain the port 10000"),
        ("10000-20000", SEVERAL, None, "several ports"),
        ("media=10000-20000", SEVERAL, None, "no port 'media'; its ports: rtp, ctl, udp"),
        ("rtp=4000-20000", SEVERAL, None, "contains 5000, another port"),
        ("10000-20000", ONE, 60, "source-hash"),
    ],
)
def test_what_cannot_be_served_is_said_and_the_port_stays(
    text: str, ports: tuple[ServicePort, ...], affinity: int | None, said: str
) -> None:
    plan = plan_service(NODE, ranged(text, ports, affinity), [])
    assert plan.ranges == ()
    assert len(plan.frontends) == len(ports)
    (problem,) = plan.problems
    assert said in problem.message
    assert problem.field == "metadata.annotations[vipwire.io/port-range]"


def test_where_a_mode_serves_no_ranges_there_are_none_and_the_mode_says_so() -> None:
    plan = plan_service(node_plan(), ranged("10000-20000"), [])
    assert (plan.ranges, plan.problems) == ((), ())
    assert "port_ranges" in plan.wishes.given


def test_the_packets_port_is_kept_where_the_endpoint_has_the_services_own() -> None:
    subject = ranged("10000-20000")
    for target, expected in ((10000, 12345), (8080, 8080)):
        piece = slice_of("a", endpoint("10.2.0.1"), ports=(EndpointPort("", TCP, target),))
        plan = plan_service(NODE, subject, [replace(piece, service=subject.name)])
        outcome = resolve_packet(Plan(NODE, {subject.name: plan}), packet(subject.cluster_ips[0], 12345))
        assert isinstance(outcome, Answered)
        assert isinstance(outcome.frontend.action, Forward)
        assert [each.port for each in outcome.pool] == [expected]


def packet(destination: Address, port: int) -> Packet:
    return Packet(ip("203.0.113.2"), destination, TCP, port, "eth0")


VIP, OTHER = ips("198.18.0.1", "198.18.0.2")
Claim = tuple[int, tuple[FrontendKey | RangeKey, ...]]
addresses = st.sampled_from([VIP, OTHER])
protocols = st.sampled_from([TCP, Protocol.UDP])
numbers = st.integers(1, 12)
keys = st.builds(FrontendKey, addresses, protocols, numbers) | st.builds(
    lambda address, protocol, ends: RangeKey(address, protocol, min(ends), max(ends)),
    addresses,
    protocols,
    st.tuples(numbers, numbers),
)
claim_lists = st.lists(st.tuples(st.integers(0, 4), st.lists(keys, max_size=4, unique=True).map(tuple)), max_size=12)


def ports_of(key: FrontendKey | RangeKey) -> range:
    return range(key.first, key.last + 1) if isinstance(key, RangeKey) else range(key.port, key.port + 1)


def overlap(one: FrontendKey | RangeKey, other: FrontendKey | RangeKey) -> bool:
    ours, theirs = ports_of(one), ports_of(other)
    return one[:2] == other[:2] and max(ours.start, theirs.start) < min(ours.stop, theirs.stop)


def claimant(number: int) -> Claimant:
    return Claimant(float(number % 3), ObjectName("default", f"s{number}"))


@given(claim_lists)
def test_the_oldest_of_all_that_overlap_holds_a_claim(history: Sequence[Claim]) -> None:
    """Claims that are kept up to date answer as a search through all of them would."""
    claims, now = Claims(), dict[int, tuple[FrontendKey | RangeKey, ...]]()
    for number, wanted in history:
        before = holders(claims, now)
        concerned = claims.replace(claimant(number), wanted, ())
        now[number] = wanted
        after = holders(claims, now)
        for name, key in before.keys() & after.keys():
            if name != claimant(number).name and before[name, key] != after[name, key]:
                assert name in concerned, "whoever wins or loses by a change is told"
        for number_, keys_ in now.items():
            for key in keys_:
                rivals = [claimant(n) for n, others in now.items() for other in others if overlap(key, other)]
                name = claimant(number_).name
                expected = min(rivals).name
                assert claims.find_holder(name, key) == (None if expected == name else expected)


def holders(
    claims: Claims, now: dict[int, tuple[FrontendKey | RangeKey, ...]]
) -> dict[tuple[ObjectName, FrontendKey | RangeKey], ObjectName | None]:
    return {
        (claimant(number).name, key): claims.find_holder(claimant(number).name, key)
        for number, found in now.items()
        for key in found
    }


def test_what_is_removed_leaves_nothing_behind() -> None:
    claims = Claims()
    wide, single = RangeKey(VIP, TCP, 10, 20), FrontendKey(VIP, TCP, 15)
    claims.replace(claimant(1), [wide], ())
    assert claims.replace(claimant(2), [single], ()) == {claimant(1).name}
    assert claims.remove(claimant(1).name) == {claimant(2).name}
    assert claims.remove(claimant(2).name) == claims.remove(claimant(2).name) == set()
    assert claims.replace(claimant(3), [wide, single], ()) == set()
    assert claims.find_holder(claimant(3).name, wide) is None


def test_nobody_takes_a_range_of_anothers_cluster_ip() -> None:
    claims = Claims()
    claims.replace(claimant(4), [FrontendKey(VIP, TCP, 80)], (VIP,))
    wide = RangeKey(VIP, TCP, 1, 100)
    claims.replace(claimant(0), [wide], ())
    assert claims.find_holder(claimant(0).name, wide) == claimant(4).name
