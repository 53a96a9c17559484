"""What `vipwire explain` says of a health check node port: who answers there, for whom, and with what."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.proxy.unit.inspected import HTTP, PODS, Teller, look, make_config

from vipwire.inspect.explain.document import explain_document
from vipwire.inspect.explain.explanation import explain_packet
from vipwire.inspect.explain.packet import read_packet
from vipwire.inspect.node.situation import Situation
from vipwire.model.net import parse_address
from vipwire.reconcile.explainer import Walk
from vipwire.reconcile.steps import End
from vipwire_lab.cluster import manifests
from vipwire_lab.cluster.manifests import Backend, Port
from vipwire_lab.namespaces.topology import DEFAULT

OUTSIDE, NODE, OTHER_NODE = "203.0.113.9", "192.168.0.1", "192.168.0.2"


def checked(name: str, port: int, backends: list[Backend], *vips: str, **more: Any) -> list[Any]:
    """Make a load balancer Service that asks for a health check."""
    spec: dict[str, Any] = {
        "type": "LoadBalancer",
        "externalTrafficPolicy": "Local",
        "healthCheckNodePort": port,
    } | more
    return manifests.build_service_with_slices(DEFAULT, name, vips, [HTTP], backends, **spec)


HERE, AWAY = Backend(PODS["pod-1a"]), Backend(PODS["pod-2a"])
LEAVING = Backend(PODS["pod-1b"], ready=False, serving=True, terminating=True)
SERVICES = [
    *checked("well", 32000, [HERE, AWAY, LEAVING], "10.96.0.10"),
    *checked("away", 32001, [AWAY, LEAVING], "10.96.0.11"),
    *checked("first", 32002, [HERE], "10.96.0.12"),
    *checked("second", 32002, [AWAY], "10.96.0.13"),
    *checked("hidden", 31080, [HERE], "10.96.0.14"),
    *manifests.build_service_with_slices(
        DEFAULT, "taker", ["10.96.0.15"], [Port(80, node_port=31080)], [HERE], type="NodePort"
    ),
]


def asked(situation: Situation, destination: str, source: str = OUTSIDE) -> Any:
    made = explain_packet(situation, read_packet(situation, source, destination), lambda _: None)
    assert made is not None
    return explain_document(made)


@pytest.fixture
def situation(tmp_path: Path) -> Situation:
    return look(make_config(tmp_path, SERVICES), None)


@pytest.mark.parametrize("source", [OUTSIDE, "10.244.1.10", ""], ids=["from outside", "from a Pod", "from here"])
@pytest.mark.parametrize(
    ("port", "service", "status", "words"),
    [
        (
            32000,
            "default/well",
            200,
            "the health check of default/well: vipwire itself answers, HTTP 200, 1 ready endp",
        ),
        (
            32001,
            "default/away",
            503,
            "the health check of default/away: vipwire itself answers, HTTP 503, no ready end",
        ),
    ],
)
def test_vipwire_itself_answers(
    situation: Situation, source: str, port: int, service: str, status: int, words: str
) -> None:
    document = asked(situation, f"{NODE}:{port}", source)
    local = 1 if status == 200 else 0
    assert document["healthChecks"] == [{"service": service, "status": status, "localEndpoints": local}]
    (why,) = document["why"]
    assert f"{NODE}:{port}/tcp is {words}" in why
    assert document["outcome"] == "untouched"


def test_all_who_ask_for_one_port_are_named(situation: Situation) -> None:
    document = asked(situation, f"{NODE}:32002")
    assert [each["service"] for each in document["healthChecks"]] == ["default/first", "default/second"]
    assert document["why"][-1].endswith("vipwire answers for the newest")


@pytest.mark.parametrize(
    ("destination", "outcome", "words"),
    [
        pytest.param(f"{NODE}:32003", "untouched", f"is at {NODE}:32003/tcp, and no health check", id="none"),
        pytest.param(
            f"{NODE}:32003", "untouched", "32000/tcp (health check), 32001/tcp (health", id="others are named"
        ),
        pytest.param(
            "127.0.0.1:32000", "untouched", "is at 127.0.0.1:32000/tcp, and no health check", id="its loopback"
        ),
        pytest.param(f"{NODE}:32000/udp", "untouched", "no Service is at 192.168.0.1:32000/udp: the", id="UDP"),
        pytest.param("10.96.0.10:32000", "rejected", "the ClusterIP has no such port", id="a VIP"),
        pytest.param(
            f"{NODE}:31080", "answered", "node port 31080/tcp is the node port of default/taker", id="taken"
        ),
        pytest.param(
            f"{OTHER_NODE}:32000",
            "untouched",
            f"32000 is the health check of default/well, but {OTHER_NODE} is not an address of this node",
            id="another node",
        ),
    ],
)
def test_nobody_answers_a_check_elsewhere(situation: Situation, destination: str, outcome: str, words: str) -> None:
    document = asked(situation, destination)
    assert document["healthChecks"] == []
    assert document["outcome"] == outcome
    assert any(words in why for why in document["why"]), document["why"]


def test_where_a_mode_gives_the_node_every_vip_checks_are_answered_there_too(situation: Situation) -> None:
    """So does ipvs mode. The plan refuses the port at a ClusterIP; what the kernel does is not known here."""
    external = parse_address("198.51.100.1")
    given = replace(situation, vips=frozenset((external, parse_address("10.96.0.10"))))
    assert asked(situation, "198.51.100.1:32000")["healthChecks"] == []
    (check,) = asked(given, "198.51.100.1:32000")["healthChecks"]
    assert check["service"] == "default/well"
    refused = asked(given, "10.96.0.10:32000")
    assert (refused["outcome"], refused["healthChecks"]) == ("rejected", [])
    left_alone = replace(given, sides=(replace(given.sides[0], explainer=Teller(Walk(End.UNTOUCHED)), observed={}),))
    allowed = asked(left_alone, "10.96.0.10:32000")
    assert (allowed["outcome"], allowed["healthChecks"]) == ("rejected", [check])
    assert allowed["kernel"]["agrees"] is False
