"""What `vipwire explain` says of how a target is chosen, and of routes that a packet would need."""

from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from tests.proxy.unit.inspected import HTTP, PODS, Shelf, Teller, look, make_config

from vipwire.inspect.explain.document import explain_document
from vipwire.inspect.explain.explanation import explain_packet
from vipwire.inspect.explain.packet import read_packet
from vipwire.model.net import Address, parse_address
from vipwire.reconcile.explainer import BY_CHANCE, IN_TURN, Direct, Walk
from vipwire.reconcile.steps import End
from vipwire_lab.cluster import manifests
from vipwire_lab.cluster.manifests import Backend
from vipwire_lab.namespaces.topology import DEFAULT

NODE, CLIENT, VIP = parse_address("192.168.0.1"), "203.0.113.9", "10.96.0.10"
TARGETS = [(parse_address(PODS[name].addresses[0]), 8080) for name in ("pod-1a", "pod-2a")]
EVENLY: dict[tuple[Address, int] | None, Fraction] = dict.fromkeys(TARGETS, Fraction(1, 2))
WEIGHTED: dict[tuple[Address, int] | None, Fraction] = dict(
    zip(TARGETS, (Fraction(1, 4), Fraction(3, 4)), strict=True)
)


def asked(
    folder: Path, walk: Walk, *, source: str = CLIENT, without: dict[str, str] | None = None, **spec: Any
) -> Any:
    backends = [Backend(PODS["pod-1a"]), Backend(PODS["pod-2a"])]
    config = make_config(folder, manifests.build_service_with_slices(DEFAULT, "web", [VIP], [HTTP], backends, **spec))
    situation = look(config, Shelf({"x": ""}), Teller(walk))
    unreachable = {parse_address(text): why for text, why in (without or {}).items()}
    packet = read_packet(situation, source, f"{VIP}:80")
    made = explain_packet(situation, packet, lambda _: NODE, lambda address: unreachable.get(address, ""))
    assert made is not None
    return explain_document(made)


def answered(**more: Any) -> Walk:
    return Walk(End.ANSWERED, (), more.pop("shares", EVENLY), frozenset(address for address, _ in TARGETS), **more)


@pytest.mark.parametrize(
    ("walk", "said"),
    [
        (answered(choice=BY_CHANCE), BY_CHANCE),
        (answered(choice=IN_TURN), IN_TURN),
        (answered(choice=IN_TURN, shares=WEIGHTED), f"{IN_TURN}, by weight"),
        (answered(), "each new connection goes to an endpoint, by this mode's choice"),
        (Walk(End.REJECTED, choice=IN_TURN), "each new connection goes to an endpoint, by this mode's choice"),
    ],
)
def test_how_a_target_is_chosen_is_what_the_kernels_objects_do(tmp_path: Path, walk: Walk, said: str) -> None:
    assert said in asked(tmp_path, walk)["why"]


def test_affinity_that_is_not_kept_is_said(tmp_path: Path) -> None:
    sticky: dict[str, Any] = {"sessionAffinity": "ClientIP"}
    kept = asked(tmp_path, answered(), **sticky)["why"]
    assert "session affinity: the client keeps its endpoint for 10800 s" in kept
    lost = asked(tmp_path, answered(affinity="clients are not remembered"), **sticky)["why"]
    assert "the Service has session affinity, but clients are not remembered" in lost
    assert not any("keeps its endpoint" in sentence for sentence in lost)


@pytest.mark.parametrize(
    ("source", "without", "said"),
    [
        ("", {VIP: "network is unreachable"}, "this node has no route to 10.96.0.10 (network is unreachable)"),
        (
            CLIENT,
            {CLIENT: "host is unreachable"},
            "this node has no route back to the client 203.0.113.9 (host is unreachable)",
        ),
        (CLIENT, {PODS["pod-2a"].addresses[0]: "x"}, f"this node has no route to {PODS['pod-2a'].addresses[0]}:8080"),
    ],
    ids=["to the VIP", "to the client", "to an endpoint"],
)
def test_a_route_that_is_missing_is_the_headline(
    tmp_path: Path, source: str, without: dict[str, str], said: str
) -> None:
    kernel = asked(tmp_path, answered(), source=source, without=without)["kernel"]
    assert kernel["agrees"] is False
    assert kernel["difference"].startswith(said)


def test_a_packet_from_elsewhere_needs_no_route_to_the_vip(tmp_path: Path) -> None:
    """It has its new address when it is routed."""
    assert asked(tmp_path, answered(), without={VIP: "network is unreachable"})["kernel"]["agrees"] is True


AS_PLANNED, ASTRAY = Direct(node=True, pods=True), Direct(node=True, pods=False, difference="programs lead elsewhere")


def test_who_is_led_by_programs_needs_no_route_to_the_service(tmp_path: Path) -> None:
    nowhere = {VIP: "network is unreachable"}
    assert asked(tmp_path, answered(direct=AS_PLANNED), source="", without=nowhere)["kernel"]["agrees"]
    assert not asked(tmp_path, answered(), source="", without=nowhere)["kernel"]["agrees"]
