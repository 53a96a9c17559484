"""Which frontends the programs translate, for whom: asked of plans."""

import dataclasses

import pytest

from vipwire.model.names import ObjectName, ServicePortName
from vipwire.model.net import Family, Prefix, Protocol, parse_address
from vipwire.model.spread import Algorithm, Spread
from vipwire.modes.ebpf.counts import add_connections
from vipwire.modes.ebpf.layout import (
    FRONTENDS,
    HEAD,
    MEMBERS,
    Flag,
    Head,
    describe,
    endpoint_slot,
    frontend_key,
    is_ours,
    split,
)
from vipwire.modes.ebpf.render import render
from vipwire.modes.ebpf.tables import COOLING_SECONDS, SlotsFullError, Stretches
from vipwire.plan.annotations import Wishes
from vipwire.plan.plan import (
    Action,
    Drop,
    Forward,
    Frontend,
    FrontendKey,
    FrontendKind,
    Masquerade,
    Reason,
    Reject,
    ServicePlan,
    Target,
)
from vipwire.reconcile.counts import Counts, Measure
from vipwire.reconcile.delta import Delta

NAME = ObjectName("default", "web")
VIP, OUTER = parse_address("10.96.0.10"), parse_address("198.18.0.1")
HERE = Target(parse_address("10.244.1.11"), 8080, local=True)
THERE = Target(parse_address("10.244.2.11"), 8080, local=False)
BOTH = (HERE, THERE)
NODE, OTHER, ALIAS = map(parse_address, ("192.168.0.1", "192.168.0.2", "192.168.0.3"))
ALL = Flag.NODE | Flag.POD


def frontend(
    action: Action, kind: FrontendKind = FrontendKind.CLUSTER_IP, protocol: Protocol = Protocol.TCP
) -> Frontend:
    address = {FrontendKind.CLUSTER_IP: VIP, FrontendKind.NODE_PORT: None}.get(kind, OUTER)
    return Frontend(ServicePortName(NAME, "", protocol), kind, FrontendKey(address, protocol, 80), action)


def flags(*frontends: Frontend) -> Flag | None:
    """Tell for whom the last frontend is."""
    key = frontends[-1].key
    held = render(Family.IPV4, ServicePlan(NAME, frontends)).get(
        (FRONTENDS, frontend_key(key.address or VIP, key.protocol, key.port))
    )
    return None if held is None else Flag(HEAD.unpack_from(held)[0])


@pytest.mark.parametrize(
    ("masquerade", "expected"),
    [
        (Masquerade.NEVER, ALL),
        (Masquerade.UNLESS_POD, ALL | Flag.AS_NODE),
        (Masquerade.ALWAYS, Flag.NODE | Flag.AS_NODE),
    ],
)
def test_a_pod_is_translated_where_its_address_is_kept(masquerade: Masquerade, expected: Flag) -> None:
    for pool in ((THERE,), BOTH):
        assert flags(frontend(Forward(pool, masquerade))) == expected | Flag.HAS_LOCAL


def test_endpoints_at_several_ports_are_not_for_pods() -> None:
    other = THERE._replace(port=9090)
    for pool in ((HERE, other), (THERE, other)):
        assert flags(frontend(Forward(pool, Masquerade.NEVER))) == Flag.NODE


@pytest.mark.parametrize(("masquerade", "pods"), [(Masquerade.UNLESS_POD, True), (Masquerade.NEVER, False)])
def test_a_local_policy_has_a_short_circuit_for_pods_that_are_told_from_others(
    masquerade: Masquerade, *, pods: bool
) -> None:
    inner = frontend(Forward((THERE,), masquerade))
    nobody = frontend(Drop(Reason.NO_LOCAL_ENDPOINTS), FrontendKind.EXTERNAL_IP)
    outer = dataclasses.replace(nobody, short_circuit=Forward((THERE,), Masquerade.UNLESS_POD))
    assert flags(inner, outer) == Flag.NODE | Flag.AS_NODE | Flag.HAS_LOCAL | (Flag.POD if pods else Flag(0))


@pytest.mark.parametrize(
    "left",
    [
        frontend(Reject(Reason.NO_ENDPOINTS)),
        frontend(Drop(Reason.NO_LOCAL_ENDPOINTS)),
        frontend(Forward((THERE,), Masquerade.NEVER), protocol=Protocol.SCTP),
        frontend(Forward((THERE,), Masquerade.NEVER, affinity_seconds=60)),
        frontend(Forward(BOTH, Masquerade.NEVER, spread=Spread(Algorithm.ROUND_ROBIN))),
        frontend(Forward(BOTH, Masquerade.NEVER, spread=Spread(Algorithm.SOURCE_HASH))),
        frontend(Forward(BOTH, Masquerade.NEVER, spread=Spread(Algorithm.MAGLEV))),
        dataclasses.replace(
            frontend(Forward((THERE,), Masquerade.NEVER)), allowed_sources=(Prefix.parse("10.0.0.0/8"),)
        ),
    ],
    ids=lambda each: f"{type(each.action).__name__} {each.key}",
)
def test_what_connect_cannot_decide_is_left_to_the_rules(left: Frontend) -> None:
    assert flags(left) is None


def at_node_port(protocol: Protocol = Protocol.TCP) -> ServicePlan:
    served = frontend(Forward((THERE,), Masquerade.ALWAYS), FrontendKind.NODE_PORT, protocol)
    contested = (served.key._replace(address=ALIAS),)
    return ServicePlan(NAME, (served,), node_port_addresses=(NODE, OTHER, ALIAS), contested=contested)


@pytest.mark.parametrize(("protocol", "loose"), [(Protocol.TCP, Flag(0)), (Protocol.UDP, Flag.LOOSE)])
def test_a_node_port_is_served_at_each_address_that_nobody_else_claims(protocol: Protocol, loose: Flag) -> None:
    found = render(Family.IPV4, at_node_port(protocol))
    held = {key: Flag(HEAD.unpack_from(value)[0]) for (space, key), value in found.items() if space == FRONTENDS}
    expected = Flag.NODE | Flag.AS_NODE | Flag.HAS_LOCAL | loose
    assert held == {frontend_key(address, protocol, 80): expected for address in (NODE, OTHER)}


def test_connections_to_a_node_port_count_at_each_address() -> None:
    plan, endpoint = at_node_port(), endpoint_slot(*THERE[:2])
    pairs = [(frontend_key(each, Protocol.TCP, 80) + endpoint, 3) for each in (NODE, OTHER, ALIAS)]
    found = Counts(endpoints=False)
    add_connections(found, Family.IPV4, [plan], pairs)
    assert found == {Measure.CONNECTIONS: {plan.frontends[0].port_name: 6}}


STAYS = Forward((THERE,), Masquerade.UNLESS_POD, affinity_seconds=60)
TCP_ONLY, CONNECTED = frozenset({Protocol.TCP}), frozenset({Protocol.TCP, Protocol.UDP})


def outer(
    action: Forward, kind: FrontendKind = FrontendKind.EXTERNAL_IP, protocol: Protocol = Protocol.TCP
) -> Frontend:
    """Make what has no endpoint of this node, and is short for its Pods."""
    dropping = frontend(Drop(Reason.NO_LOCAL_ENDPOINTS), kind, protocol)
    return dataclasses.replace(dropping, short_circuit=action)


def heads(*frontends: Frontend, remembered: frozenset[Protocol] = TCP_ONLY, contested: bool = False) -> list[Head]:
    """Tell what the frontends of a Service are like that programs lead."""
    claimed = (frontends[-1].key._replace(address=ALIAS),) if contested else ()
    plan = ServicePlan(NAME, frontends, node_port_addresses=(NODE, ALIAS), contested=claimed)
    found = render(Family.IPV4, plan, remembered)
    return [Head.read(value) for (space, _), value in found.items() if space == FRONTENDS]


def test_affinity_is_the_programs_where_that_is_asked_for_and_for_pods_alone() -> None:
    (head,) = heads(frontend(STAYS))
    assert head == Head(Flag.POD | Flag.HAS_LOCAL, 60, head.service_port)
    assert heads(frontend(STAYS), outer(STAYS)) == [head, head], "one memory for a Service port"
    (other,) = heads(dataclasses.replace(frontend(STAYS), port_name=ServicePortName(NAME, "b", Protocol.TCP)))
    assert other.service_port != head.service_port
    (local,) = heads(frontend(dataclasses.replace(STAYS, pool=BOTH)))
    assert local.flags == Flag.POD | Flag.HAS_LOCAL
    assert heads(frontend(STAYS), remembered=frozenset()) == []


def test_who_is_remembered_may_go_on_with_its_endpoint() -> None:
    found = render(Family.IPV4, ServicePlan(NAME, (frontend(STAYS),)), TCP_ONLY)
    assert sum(space == MEMBERS for space, _ in found) == 1


@pytest.mark.parametrize(
    "others",
    [
        pytest.param([outer(dataclasses.replace(STAYS, masquerade=Masquerade.ALWAYS))], id="Pods are masqueraded"),
        pytest.param([outer(dataclasses.replace(STAYS, pool=BOTH))], id="other endpoints"),
        pytest.param([frontend(Reject(Reason.NO_ENDPOINTS), FrontendKind.EXTERNAL_IP)], id="nobody answers"),
        pytest.param(
            [dataclasses.replace(outer(STAYS), allowed_sources=(Prefix.parse("10.0.0.0/8"),))], id="source ranges"
        ),
    ],
)
def test_a_service_port_that_rules_serve_in_part_is_theirs(others: list[Frontend]) -> None:
    assert heads(frontend(STAYS), *others) == []


def test_a_memory_for_all_ports_is_the_rules() -> None:
    assert heads(frontend(dataclasses.replace(STAYS, shared_affinity=True))) == []


def test_affinity_of_datagrams_is_the_programs_if_connected_sockets_are() -> None:
    served = frontend(STAYS, protocol=Protocol.UDP)
    assert heads(served) == []
    assert len(heads(served, remembered=CONNECTED)) == 1
    at_port = outer(STAYS, FrontendKind.NODE_PORT, Protocol.UDP)
    assert heads(served, at_port, remembered=CONNECTED) == [], "of node ports they are not"


def test_affinity_of_a_node_port_that_is_claimed_by_the_address_is_the_rules() -> None:
    at_port = outer(STAYS, FrontendKind.NODE_PORT)
    assert len(heads(frontend(STAYS), at_port)) == 3
    assert heads(frontend(STAYS), at_port, contested=True) == []


def test_ejection_is_left_to_the_rules_whose_connections_are_watched() -> None:
    plan = ServicePlan(NAME, (frontend(Forward(BOTH, Masquerade.NEVER)),))
    assert render(Family.IPV4, plan)
    assert not render(Family.IPV4, dataclasses.replace(plan, wishes=Wishes(eject_after=3)))


def test_datagrams_have_members() -> None:
    plan = ServicePlan(NAME, (frontend(Forward(BOTH, Masquerade.NEVER), protocol=Protocol.UDP),))
    found = render(Family.IPV4, plan)
    assert sum(space == MEMBERS for space, _ in found) == len(BOTH)
    assert {describe(key).split(" in ")[0] for key in found} == {
        "10.96.0.10:80/udp",
        "10.96.0.10:80/udp to 10.244.1.11:8080",
        "10.96.0.10:80/udp to 10.244.2.11:8080",
    }


def test_a_difference_is_taken_apart() -> None:
    ours, theirs = (FRONTENDS, b"key"), ("service-ips", b"key")
    rules, maps = split(Delta(added={ours: b"1", theirs: b"2"}, removed={theirs: b"3"}))
    assert (rules.added, rules.removed) == ({theirs: b"2"}, {theirs: b"3"})
    assert (maps.added, maps.removed) == ({ours: b"1"}, {})
    assert is_ours(ours)
    assert not is_ours(theirs)


def test_stretches_never_overlap_and_cool_before_they_are_used_again() -> None:
    free = Stretches(8, [(2, 2)])
    assert free.take(2, 0.0) == 0
    assert free.take(4, 0.0) == 4
    free.give(4, 4, 0.0)
    with pytest.raises(SlotsFullError):
        free.take(1, COOLING_SECONDS / 2)
    assert free.take(3, COOLING_SECONDS) == 4
    assert free.take(1, COOLING_SECONDS) == 7


def test_an_address_of_this_machine_is_left_to_the_rules() -> None:
    action = Forward(BOTH, Masquerade.NEVER)
    plan = ServicePlan(NAME, (frontend(action), frontend(action, FrontendKind.EXTERNAL_IP)))
    inner, outer = ((FRONTENDS, frontend_key(address, Protocol.TCP, 80)) for address in (VIP, OUTER))
    assert {inner, outer} <= render(Family.IPV4, plan).keys()
    for own, left in ((VIP, outer), (OUTER, inner)):
        found = render(Family.IPV4, dataclasses.replace(plan, own_addresses=(own,)))
        assert {inner, outer} & found.keys() == {left}
