"""What people see on a terminal of 80 columns, with 3 Services and with 3,000; and that wider ones are filled.

Words are recorded at one width. At others, tables and lines have to fit.
"""

import io
from typing import Any, Final

import pytest
from rich.console import Console, RenderableType
from tests.fakes.golden_text import matches_golden
from tests.proxy.unit.inspected import REFUSING, Teller, example, look, make_config, programmed

from vipwire.inspect.check.findings import Finding, Level, check_document, check_view
from vipwire.inspect.command import show
from vipwire.inspect.decisions import plan_document, plan_view
from vipwire.inspect.explain.document import Way, explain_document, explain_view
from vipwire.inspect.explain.explanation import explain_packet
from vipwire.inspect.explain.packet import find_services, read_packet
from vipwire.inspect.node.situation import Situation
from vipwire.inspect.status.document import build_status_document
from vipwire.inspect.status.tables import build_status_view
from vipwire.inspect.top import build_top_view
from vipwire.inspect.trace import BEHIND_THE_TIME, build_event_view
from vipwire.terminal.columns import Prose

WIDTHS = (80, 120, 200)
MANY = 3000


def screen(view: RenderableType, width: int) -> str:
    out = io.StringIO()
    show.write_view(Console(file=out, width=width, force_terminal=True, color_system=None, highlight=False), view)
    return "".join(f"{line.rstrip()}\n" for line in out.getvalue().splitlines())


def check_shown(name: str, *views: RenderableType) -> None:
    """Compare with what was recorded; at every width, no line is longer."""
    said = {width: "\n".join(screen(view, width) for view in views) for width in WIDTHS}
    assert [width for width in WIDTHS if max(map(len, said[width].splitlines())) > width] == []
    assert matches_golden(name, said[WIDTHS[0]])


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Situation:
    config = make_config(tmp_path_factory.mktemp("three"), example()[:-1])
    return look(config, programmed(config), Teller(REFUSING))


def thousands(three: Situation) -> Any:
    """Make a document of many Services out of that of one."""
    document = status(three, "web")
    (web,) = document["services"]

    def another(number: int) -> Any:
        name = f"a-service-with-a-long-name-{number}" if number % 500 == 0 else f"service-{number}"
        address = f"10.96.{number // 250}.{number % 250 + 1}"
        (port,) = web["ports"]
        fronts = [{**front, "address": front["address"] and address} for front in port["frontends"]]
        ports = [{**port, "frontends": fronts}]
        return {**web, "name": name, "namespace": f"team-{number % 7}", "ports": ports}

    return {**document, "services": [another(number) for number in range(MANY)]}


def status(situation: Situation, service: str = "") -> Any:
    return build_status_document(situation, find_services(situation.store.services, service))


def test_status(three: Situation) -> None:
    all_of_them = build_status_view(status(three), wide=False, details=False)
    check_shown("screen-status.txt", all_of_them, build_status_view(status(three, "web"), wide=False, details=True))


def test_a_wide_status_in_a_file_lines_up_where_a_mode_listens_at_ports_of_its_own(three: Situation) -> None:
    document = status(three, "web")
    for number, front in enumerate(document["services"][0]["ports"][0]["frontends"]):
        front["listening"] = [f"127.96.0.10:{8000 + number}"]
    out = io.StringIO()
    show.write_view(
        Console(file=out, width=80, highlight=False), build_status_view(document, wide=True, details=False)
    )
    assert matches_golden("screen-status-listening-in-a-file.txt", out.getvalue())


def test_plan(three: Situation) -> None:
    check_shown("screen-plan.txt", plan_view(plan_document(three, find_services(three.store.services, "web"))))


def test_explain_on_the_narrowest_terminal(three: Situation) -> None:
    found = explain_packet(three, read_packet(three, "203.0.113.9", "default/web"), lambda _: None)
    assert found is not None
    check_shown("screen-explain.txt", explain_view(explain_document(found), wide=False))


SERVED: Final = (
    ("prerouting: chain nat-prerouting", "jump services", "goes through services"),
    (
        "prerouting: chain services",
        "meta priority set ip daddr . meta l4proto . th dport map @service-ips goto service-ip",
        "goes to service-ip",
    ),
    ("element of service-ips", '10.96.0.10 . tcp . 80 comment "default/web:http" : 1:4', "is met"),
    ("prerouting: chain cluster-ip", "meta priority vmap @spread", "goes to service-pick-4"),
    ("element of spread", "1:4 : goto service-pick-4", "is met"),
    ("element of service-endpoints", "10.96.0.10 . tcp . 80 . 0:1 : 10.244.1.11 . 80", "is met"),
    ("element of service-endpoints", "fd00:10:96::10 . tcp . 80 . 0:2 : fd00:10:244:2::aaaa:bbbb . 8080", "is met"),
    (
        "postrouting: chain masquerading",
        "meta mark and 0x4000 != 0 meta mark set meta mark xor 0x4000 masquerade fully-random",
        "replaces the client's address with the node's",
    ),
)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("state", ["as planned", "not ours"])
def test_the_way_of_a_packet_is_never_broken_inside_an_element(width: int, state: str) -> None:
    steps = [{"object": place, "text": text, "effect": does, "state": "as planned"} for place, text, does in SERVED]
    steps[0]["state"] = state
    said = screen(Way(steps), width)
    for _, text, _ in SERVED:
        element = text.partition(" comment ")[0]
        assert not text[0].isdigit() or element in said
    assert max(map(len, said.splitlines())) <= width
    if state == "as planned":
        assert state not in said
    else:
        assert state in " ".join(said.split())
        assert width != WIDTHS[0] or matches_golden("screen-way-not-ours.txt", said)


def test_top() -> None:
    names = ("newPerSecond", "endedPerSecond", "unansweredPerSecond", "tracked", "bytesPerSecond")
    rows = [
        {"service": "default/web:http", "endpoint": f"10.244.1.{number}:8080"}
        | dict(zip(names, (12.5 / number, 12, 0, 300, 15_000), strict=True))
        | {"replyBytesPerSecond": 1_500_000}
        for number in (11, 12)
    ]
    document = {"seconds": 10.0, "source": "connection tracking events", "lostEvents": True, "rows": rows}
    document["refusedPerSecond"] = {"no-endpoints": 3.0}
    check_shown("screen-top.txt", build_top_view(document, 20))


def test_trace() -> None:
    event = {"service": "default/web:http", "protocol": "tcp", "sees": "2001:db8:192:168::1", "answered": True}
    event |= {"client": "[2001:db8:113::2]:35858", "vip": "[fd00:10:96::10]:80", "endpoint": "[fd00:10:244:1::12]:80"}
    new = event | {"event": "new", "time": "2026-11-23T09:06:19.868000+00:00"}
    ended = event | {"event": "destroyed", "time": "2026-11-23T09:06:29.868000+00:00", "seconds": 10.0}
    check_shown("screen-trace.txt", *(Prose(build_event_view(each), BEHIND_THE_TIME) for each in (new, ended)))


def test_check() -> None:
    findings = [
        Finding("kernel", "release", Level.OK, "Linux 6.18.44"),
        Finding("mode", "ipvs", Level.WARNING, "the kernel has no IPVS: load the module ip_vs", "modprobe ip_vs"),
        Finding("others", "kube-ipvs0", Level.BAD, "the interface kube-ipvs0 exists", "ip link delete kube-ipvs0"),
    ]
    check_shown("screen-check.txt", check_view(check_document(findings, "nftables"), wide=False))


@pytest.mark.slow
@pytest.mark.parametrize("width", WIDTHS)
def test_thousands_of_services_have_a_line_each_and_every_word_is_whole(three: Situation, width: int) -> None:
    document = thousands(three)
    said = screen(build_status_view(document, wide=False, details=False), width)
    lines = said.splitlines()
    assert MANY < len(lines) < MANY + 10
    over = [line for line in lines if len(line) > width]
    assert all("a-service-with-a-long-name" in line for line in over), "what is long goes over the edge alone"
    words = set(said.split())
    for service in document["services"]:
        assert f"{service['namespace']}/{service['name']}:http" in words
        assert f"{service['ports'][0]['frontends'][0]['address']}:80/tcp" in words
    shown = "\n".join([*lines[:12], "…", *lines[-4:], ""])
    assert width != WIDTHS[0] or matches_golden(f"screen-status-of-{MANY}.txt", shown)
