"""What status, plan, diff and explain print, for a person and for a program: recorded."""

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console, RenderableType
from tests.fakes.golden_text import matches_golden
from tests.proxy.unit.inspected import REFUSING, Shelf, Teller, example, look, make_config, programmed

from vipwire.config.configuration import Config
from vipwire.inspect.decisions import plan_document
from vipwire.inspect.difference import choose_diff_exit_status, diff_document, write_script_lines
from vipwire.inspect.explain.document import explain_document
from vipwire.inspect.explain.explanation import explain_packet
from vipwire.inspect.explain.packet import find_services, read_packet
from vipwire.inspect.node.situation import Situation
from vipwire.inspect.status.document import build_status_document
from vipwire.inspect.status.tables import build_status_view
from vipwire.model.net import Address, Family
from vipwire.modes.inspection import Remark


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return make_config(tmp_path, example())


@pytest.fixture
def drifted(config: Config) -> Situation:
    """Everything is as planned but one object that is gone, one that is another, and one that nobody wants."""
    shelf = programmed(config)
    del shelf.objects["10.96.0.10:80/tcp"]
    shelf.objects["10.96.0.3:80/tcp"] = "Forward"
    shelf.objects["stranger"] = "?"
    return look(config, shelf, Teller(REFUSING))


def shown(view: RenderableType) -> str:
    out = io.StringIO()
    Console(file=out, width=200, highlight=False).print(view)
    return "".join(f"{line.rstrip()}\n" for line in out.getvalue().splitlines())


def as_json(document: Any) -> str:
    return json.dumps(document, indent=1) + "\n"


@pytest.mark.parametrize(
    ("name", "view"),
    [
        ("inspect-status-wide.txt", lambda made: shown(build_status_view(made, wide=True, details=True))),
        ("inspect-status.json", as_json),
    ],
)
def test_status_is_the_recorded_one(drifted: Situation, name: str, view: Callable[[Any], str]) -> None:
    document = build_status_document(drifted, find_services(drifted.store.services, ""))
    assert matches_golden(name, view(document))


def test_what_a_mode_has_beside_rules_stands_in_the_head(drifted: Situation) -> None:
    standing = (Remark("programs", "8 of 9", "rules serve the others", bad=True), Remark("maps", "1 of 2"))
    document = build_status_document(drifted, [], standing=standing)
    head = shown(build_status_view(document, wide=False, details=False)).splitlines()
    assert "programs: 8 of 9 (rules serve the others)" in head
    assert "maps: 1 of 2" in head
    assert [each["bad"] for each in document["standing"]] == [True, False]


def test_the_plan_is_the_recorded_one(drifted: Situation) -> None:
    document = plan_document(drifted, find_services(drifted.store.services, ""))
    assert matches_golden("inspect-plan.json", as_json(document))


def test_a_difference_is_written_and_counts_in_the_exit_status(drifted: Situation) -> None:
    document = diff_document(drifted, None)
    assert document["families"][0]["script"] == [
        "delete stranger",
        "set 10.96.0.3:80/tcp Reject",
        "set 10.96.0.10:80/tcp Forward",
    ]
    assert choose_diff_exit_status(document) == 1


def test_the_difference_of_one_service_is_its_own(drifted: Situation) -> None:
    document = diff_document(drifted, find_services(drifted.store.services, "web"))
    assert document["families"][0]["script"] == ["set 10.96.0.10:80/tcp Forward"]


def test_nothing_to_do_is_exit_status_0(config: Config) -> None:
    document = diff_document(look(config, programmed(config), Teller(REFUSING)), None)
    assert (document["families"][0]["state"], choose_diff_exit_status(document)) == ("as planned", 0)


def test_without_the_kernel_the_state_is_unknown_with_its_reason(config: Config) -> None:
    blind = look(config, None, None, "run as root")
    document = build_status_document(blind, find_services(blind.store.services, "web"))
    assert document["families"][0]["state"] == "unknown"
    assert document["families"][0]["reason"] == "run as root"
    assert document["services"][0]["kernel"][0]["state"] == "unknown"
    assert "run as root" in shown(build_status_view(document, wide=False, details=False))
    assert choose_diff_exit_status(diff_document(blind, None)) == 2


def test_what_another_version_left_is_said_and_would_be_cleared(config: Config) -> None:
    old = look(config, Shelf({}), Teller(REFUSING, "a table of 2019"))
    document = diff_document(old, None)
    assert document["families"][0]["state"] == "of another version"
    assert document["families"][0]["reason"] == "a table of 2019"
    assert document["families"][0]["script"][0] == "clear"


def test_a_difference_is_text_for_one_tool_a_family(drifted: Situation) -> None:
    """Whatever is no command of the tool is a comment, line by line, however long."""
    document = diff_document(drifted, None)
    (family,) = document["families"]
    lines = list(write_script_lines(family | {"reason": f"read\nby halves, {'long ' * 100}"}))
    assert lines[:3] == ["# IPv4: read", f"# by halves, {'long ' * 100}", "# IPv4, for shelf --family IPv4"]
    assert lines[3:] == family["script"]
    assert diff_document(drifted, None, [Family.IPV6])["families"] == []


def explanation(situation: Situation, source: str, destination: str) -> Any:
    made = explain_packet(
        situation, read_packet(situation, source, destination), lambda _: Address(bytes((192, 168, 0, 1)))
    )
    assert made is not None
    return explain_document(made)


def test_a_kernel_that_does_otherwise_is_the_headline(drifted: Situation) -> None:
    document = explanation(drifted, "10.244.2.12", "web")
    assert document["outcome"] == "answered"
    assert document["kernel"]["agrees"] is False
    assert matches_golden("inspect-explain.json", as_json(document))


def test_a_rejection_that_the_kernel_makes_too_is_agreed(drifted: Situation) -> None:
    document = explanation(drifted, "203.0.113.9", "10.96.0.3:80")
    assert (document["outcome"], document["kernel"]["agrees"]) == ("rejected", True)
    assert "default/empty has no endpoints" in document["why"]


@pytest.mark.parametrize(
    ("source", "destination", "outcome", "why"),
    [
        ("203.0.113.9", "198.51.100.1:53", "dropped", "kube-system/away has no local endpoints"),
        ("198.18.0.1", "198.51.100.1:53", "dropped", "the source is not in loadBalancerSourceRanges"),
        ("203.0.113.9", "10.96.0.10:81", "rejected", "ports at this address: 80/tcp"),
        ("203.0.113.9", "10.96.0.11:80", "untouched", "similar addresses: 10.96.0.10 (default/web:http)"),
        ("203.0.113.9", "192.168.9.9:30080", "untouched", "30080 is a node port, but 192.168.9.9 is not an address"),
        ("", "192.168.0.1:30080", "answered", "masqueraded, so that the reply passes this node"),
    ],
)
def test_each_outcome_says_why(drifted: Situation, source: str, destination: str, outcome: str, why: str) -> None:
    document = explanation(drifted, source, destination)
    assert document["outcome"] == outcome
    assert any(sentence.startswith(why) for sentence in document["why"]), document["why"]
