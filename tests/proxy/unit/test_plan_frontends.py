"""What a Service's plan says: which frontends, which action, who is let in."""

from typing import Any

import pytest
from tests.fakes.values import (
    HERE,
    cidr,
    endpoint,
    ip,
    ips,
    key,
    named,
    node_plan,
    port,
    service,
    slice_of,
)

from vipwire.model.endpoint import EndpointPort, EndpointSlice
from vipwire.model.net import Family, Protocol
from vipwire.model.service import Service, TrafficPolicy
from vipwire.plan.frontends import claims, plan_service
from vipwire.plan.node import NodePlan
from vipwire.plan.plan import (
    Action,
    Drop,
    Forward,
    Frontend,
    FrontendKey,
    FrontendKind,
    HealthCheck,
    Masquerade,
    RangeKey,
    Reason,
    Reject,
)

LOCAL, CLUSTER = TrafficPolicy.LOCAL, TrafficPolicy.CLUSTER
CLUSTER_IP, EXTERNAL_IP = FrontendKind.CLUSTER_IP, FrontendKind.EXTERNAL_IP
LOAD_BALANCER, NODE_PORT = FrontendKind.LOAD_BALANCER, FrontendKind.NODE_PORT
BOTH = [slice_of("web", endpoint("10.1.0.1", HERE), endpoint("10.2.0.1"))]
REMOTE = [slice_of("web", endpoint("10.2.0.1"))]


def exposed(cluster_ip: str = "10.96.0.1", **fields: Any) -> Service:
    addresses = {"external_ips": ips("1.1.1.1"), "load_balancer_ips": ips("2.2.2.2")}
    return service("web", cluster_ip, port(node_port=30080), **{**addresses, **fields})


def by_kind(
    subject: Service, slices: list[EndpointSlice] | None = None, node: NodePlan | None = None
) -> dict[FrontendKind, Frontend]:
    plan = plan_service(node or node_plan(), subject, BOTH if slices is None else slices)
    return {frontend.kind: frontend for frontend in plan.frontends}


def said(action: Action | None) -> str:
    """Put an action into few words: `1 2 always`, the first octets after 10 and the masquerading."""
    match action:
        case Forward(pool, masquerade, _):
            return " ".join([*(str(target.address[1]) for target in pool), masquerade.name.lower()])
        case Drop(reason) | Reject(reason):
            return f"{type(action).__name__.lower()}: {reason.value}"
    return "-"


@pytest.mark.parametrize(
    ("policies", "slices", "internal", "external", "short_circuit"),
    [
        pytest.param({}, BOTH, "1 2 unless_pod", "1 2 always", "-", id="cluster"),
        pytest.param({"internal_policy": LOCAL}, BOTH, "1 unless_pod", "1 2 always", "-", id="internal local"),
        pytest.param(
            {"external_policy": LOCAL}, BOTH, "1 2 unless_pod", "1 never", "1 2 unless_pod", id="external local"
        ),
        pytest.param(
            {"internal_policy": LOCAL, "external_policy": LOCAL},
            BOTH,
            "1 unless_pod",
            "1 never",
            "1 2 unless_pod",
            id="both local",
        ),
        pytest.param(
            {"internal_policy": LOCAL},
            REMOTE,
            "drop: has no local endpoints",
            "2 always",
            "-",
            id="internal local, none here",
        ),
        pytest.param(
            {"external_policy": LOCAL},
            REMOTE,
            "2 unless_pod",
            "drop: has no local endpoints",
            "2 unless_pod",
            id="external local, none here",
        ),
        pytest.param({}, [], "reject: has no endpoints", "reject: has no endpoints", "-", id="nobody"),
        pytest.param(
            {"internal_policy": LOCAL, "external_policy": LOCAL},
            [],
            "reject: has no endpoints",
            "reject: has no endpoints",
            "-",
            id="nobody, local policies",
        ),
    ],
)
def test_who_answers_by_policy(
    policies: dict[str, Any], slices: list[EndpointSlice], internal: str, external: str, short_circuit: str
) -> None:
    found = by_kind(exposed(**policies), slices)
    assert said(found[CLUSTER_IP].action) == internal
    assert found[CLUSTER_IP].short_circuit is None
    for kind in (EXTERNAL_IP, LOAD_BALANCER, NODE_PORT):
        assert said(found[kind].action) == external
        assert said(found[kind].short_circuit) == short_circuit


@pytest.mark.parametrize(
    ("settings", "masquerade"),
    [
        ({}, Masquerade.UNLESS_POD),
        ({"pod_traffic": None}, Masquerade.NEVER),
        ({"masquerade_all": True}, Masquerade.ALWAYS),
        ({"masquerade_all": True, "pod_traffic": None}, Masquerade.ALWAYS),
    ],
)
def test_a_cluster_ip_is_masqueraded_as_far_as_pods_can_be_told(
    settings: dict[str, Any], masquerade: Masquerade
) -> None:
    action = by_kind(exposed(), node=node_plan(**settings))[CLUSTER_IP].action
    assert isinstance(action, Forward)
    assert action.masquerade is masquerade


def test_the_keys_are_those_of_the_services_fields() -> None:
    found = by_kind(exposed())
    assert {kind: frontend.key for kind, frontend in found.items()} == {
        CLUSTER_IP: key("10.96.0.1"),
        EXTERNAL_IP: key("1.1.1.1"),
        LOAD_BALANCER: key("2.2.2.2"),
        NODE_PORT: key(None, 30080),
    }
    assert set(claims(node_plan(), exposed())) == {frontend.key for frontend in found.values()}


def test_without_the_gate_there_are_no_external_ips() -> None:
    node = node_plan(external_ips=False)
    assert EXTERNAL_IP not in by_kind(exposed(), node=node)
    assert key("1.1.1.1") not in set(claims(node, exposed()))


def test_a_service_without_a_cluster_ip_of_the_family_has_nothing_of_that_family() -> None:
    plan = plan_service(node_plan(Family.IPV6), exposed(load_balancer_ips=ips("2001:db8::2")), [])
    assert plan.frontends == ()
    assert plan.cluster_ips == ()


def test_each_family_takes_its_own_addresses_and_endpoints() -> None:
    subject = exposed(
        "10.96.0.1,fd00:96::1",
        external_ips=ips("1.1.1.1", "2001:db8::11"),
        load_balancer_ips=ips("2001:db8::22"),
    )
    six = slice_of("web", endpoint("fd00:10::1"), name="six", family=Family.IPV6)
    plan = plan_service(node_plan(Family.IPV6), subject, [*BOTH, six])
    assert [(str(frontend.key), said(frontend.action)) for frontend in plan.frontends] == [
        ("[fd00:96::1]:80/tcp", "0 unless_pod"),
        ("[2001:db8::11]:80/tcp", "0 always"),
        ("[2001:db8::22]:80/tcp", "0 always"),
        ("node port 30080/tcp", "0 always"),
    ]
    assert plan.cluster_ips == ips("fd00:96::1")


def test_affinity_is_part_of_every_way_to_the_endpoints() -> None:
    found = by_kind(exposed(affinity_seconds=60, external_policy=LOCAL))
    actions = [item for frontend in found.values() for item in (frontend.action, frontend.short_circuit)]
    forwards = [action for action in actions if isinstance(action, Forward)]
    assert len(forwards) == 7
    assert {action.affinity_seconds for action in forwards} == {60}


@pytest.mark.parametrize(
    ("ranges", "allowed"),
    [
        ((), None),
        (("203.0.113.0/24",), ["203.0.113.0/24"]),
        (("203.0.113.0/24", "203.0.113.0/24"), ["203.0.113.0/24"]),
        (("203.0.113.0/24", "203.0.113.64/26", "203.0.112.0/24"), ["203.0.112.0/24", "203.0.113.0/24"]),
        (("203.0.113.64/26", "203.0.112.0/23"), ["203.0.112.0/23"]),
        (("203.0.113.0/24", "0.0.0.0/0"), None),
        (("fd00::/8",), None),
        (("::/0", "203.0.113.0/24"), ["203.0.113.0/24"]),
        (("192.168.0.0/24",), ["2.2.2.2/32", "192.168.0.0/24"]),
        (("192.168.0.2/32", "2.2.2.0/24"), ["2.2.2.0/24", "192.168.0.2/32"]),
        (("192.168.1.0/24",), ["192.168.1.0/24"]),
    ],
)
def test_a_load_balancer_ip_lets_in_its_source_ranges(ranges: tuple[str, ...], allowed: list[str] | None) -> None:
    found = by_kind(exposed(source_ranges=tuple(map(cidr, ranges))))
    let_in = found[LOAD_BALANCER].allowed_sources
    assert (None if let_in is None else [str(prefix) for prefix in let_in]) == allowed
    assert {found[kind].allowed_sources for kind in (CLUSTER_IP, EXTERNAL_IP, NODE_PORT)} == {None}


def test_a_node_without_an_address_adds_no_source() -> None:
    found = by_kind(exposed(source_ranges=(cidr("192.168.0.0/24"),)), node=node_plan(address=None))
    assert found[LOAD_BALANCER].allowed_sources == (cidr("192.168.0.0/24"),)


def test_an_address_both_external_and_load_balancer_ip_is_guarded_where_there_are_ranges() -> None:
    twice: dict[str, Any] = {"external_ips": ips("2.2.2.2"), "load_balancer_ips": ips("2.2.2.2")}
    free = plan_service(node_plan(), exposed(**twice), BOTH)
    guarded = plan_service(node_plan(), exposed(**twice, source_ranges=(cidr("203.0.113.0/24"),)), BOTH)
    assert [f.kind for f in free.frontends if f.key == key("2.2.2.2")] == [EXTERNAL_IP]
    assert [f.allowed_sources for f in guarded.frontends if f.key == key("2.2.2.2")] == [(cidr("203.0.113.0/24"),)]


def test_a_cluster_ip_stays_one_whatever_else_names_it() -> None:
    subject = exposed(
        external_ips=ips("10.96.0.1"), load_balancer_ips=ips("10.96.0.1"), source_ranges=(cidr("203.0.113.0/24"),)
    )
    found = [f for f in plan_service(node_plan(), subject, BOTH).frontends if f.key == key("10.96.0.1")]
    assert [(f.kind, f.allowed_sources) for f in found] == [(CLUSTER_IP, None)]


def test_what_another_service_holds_is_lost_once_and_the_rest_stays() -> None:
    subject = exposed(external_ips=ips("2.2.2.2"))

    def holder(wanted: FrontendKey | RangeKey) -> Any:
        return named("older") if wanted.address == ip("2.2.2.2") else None

    plan = plan_service(node_plan(), subject, BOTH, holder)
    assert [frontend.kind for frontend in plan.frontends] == [CLUSTER_IP, NODE_PORT]
    assert plan.lost == ((key("2.2.2.2"), named("older")),)


def test_ports_of_three_protocols_have_their_own_endpoints() -> None:
    ports = [port(53, protocol.label, protocol) for protocol in Protocol]
    served = [EndpointPort(protocol.label, protocol, 1000 + protocol) for protocol in Protocol]
    plan = plan_service(
        node_plan(), service("dns", "10.96.0.10", *ports), [slice_of("dns", endpoint("10.1.0.1"), ports=served)]
    )
    pools = {
        str(f.key): [str(target) for target in f.action.pool] for f in plan.frontends if isinstance(f.action, Forward)
    }
    assert pools == {
        "10.96.0.10:53/tcp": ["10.1.0.1:1006"],
        "10.96.0.10:53/udp": ["10.1.0.1:1017"],
        "10.96.0.10:53/sctp": ["10.1.0.1:1132"],
    }


def test_two_ports_with_one_node_port_leave_it_to_the_first() -> None:
    subject = service("web", "10.96.0.1", port(80, "a", node_port=30080), port(81, "b", node_port=30080))
    found = [f for f in plan_service(node_plan(), subject, []).frontends if f.kind is NODE_PORT]
    assert [f.port_name.port for f in found] == ["a"]


def test_udp_frontends_know_who_may_still_answer_old_flows() -> None:
    piece = slice_of(
        "dns",
        endpoint("10.1.0.1"),
        endpoint("10.1.0.2", ready=False),
        endpoint("10.1.0.3", ready=False, terminating=True),
        endpoint("10.1.0.4", ready=False, serving=False, terminating=True),
        ports=[EndpointPort("", Protocol.UDP, 53), EndpointPort("", Protocol.TCP, 53)],
    )
    subject = service("dns", "10.96.0.10", port(53, protocol=Protocol.UDP), port(53))
    found = {f.key.protocol: f.serving for f in plan_service(node_plan(), subject, [piece]).frontends}
    assert found[Protocol.UDP] == {(ip(f"10.1.0.{octet}"), 53) for octet in (1, 2, 3)}
    assert found[Protocol.TCP] == frozenset()


def test_the_health_check_counts_ready_addresses_here_over_all_ports() -> None:
    ports = [port(80, "a"), port(81, "b")]
    subject = service("web", "10.96.0.1", *ports, health_check_node_port=32000, external_policy=LOCAL)
    here = [endpoint(f"10.1.0.{octet}", HERE) for octet in (1, 2, 3)]
    pieces = [
        slice_of("web", here[0], here[1], name="a", ports=[EndpointPort("a", Protocol.TCP, 80)]),
        slice_of("web", here[1], here[2], name="b", ports=[EndpointPort("b", Protocol.TCP, 80)]),
        slice_of("web", endpoint("10.1.0.9"), name="c", ports=[EndpointPort("b", Protocol.TCP, 80)]),
    ]
    assert plan_service(node_plan(), subject, pieces).health_check == HealthCheck(32000, 3)
    assert plan_service(node_plan(), exposed(), BOTH).health_check is None


def test_a_pool_tells_which_of_it_run_here() -> None:
    action = by_kind(exposed())[CLUSTER_IP].action
    assert isinstance(action, Forward)
    assert [(str(target), target.local) for target in action.pool] == [
        ("10.1.0.1:8080", True),
        ("10.2.0.1:8080", False),
    ]


def test_the_reason_of_a_refusal_is_in_words_of_kube_proxy() -> None:
    assert [reason.value for reason in Reason] == ["has no endpoints", "has no local endpoints"]
