"""Following connections: which are to a Service, what each line says, what the rates are."""

import pytest

from vipwire.inspect.command.show import build_console
from vipwire.inspect.node.flows import FlowNotification, Frontends
from vipwire.inspect.top import Rates, build_top_view
from vipwire.inspect.trace import Tracer, build_event_view, build_summary_view
from vipwire.linux.netlink.conntrack import STATUS_SEEN_REPLY, Flow, FlowChange, FlowEvent
from vipwire.model.names import ObjectName, ServicePortName
from vipwire.model.net import Protocol, parse_address
from vipwire.plan.plan import FrontendKey
from vipwire.reconcile.counts import Counts, EndpointName, Measure, Refusal

VIP, NODE, CLIENT = (parse_address(text) for text in ("10.96.0.10", "192.168.0.1", "203.0.113.2"))
ONE, TWO = (parse_address(text) for text in ("10.244.1.11", "10.244.2.11"))
WEB = ServicePortName(ObjectName("default", "web"), "http", Protocol.TCP)


@pytest.fixture
def frontends() -> Frontends:
    named = {FrontendKey(VIP, Protocol.TCP, 80): WEB, FrontendKey(None, Protocol.TCP, 30080): WEB}
    return Frontends(named, frozenset({NODE}))


def flow(
    to: bytes, port: int, endpoint: bytes, *, identifier: int = 1, protocol: int = 6, answered: bool = True
) -> Flow:
    ends = (parse_address("203.0.113.2"), 40000, type(VIP)(to), port, type(VIP)(endpoint), 8080, NODE, 40000)
    return Flow(protocol, *ends, STATUS_SEEN_REPLY if answered else 0, identifier=identifier)


def notification(change: FlowChange, what: Flow, when: float = 1000.0) -> FlowNotification:
    return FlowNotification(when, FlowEvent(change, what))


def test_one_that_was_not_translated_is_said_so(frontends: Frontends) -> None:
    untranslated = flow(VIP, 8080, VIP)._replace(destination_port=80, reply_source_port=80)
    document = Tracer(frontends).describe_notification(notification(FlowChange.NEW, untranslated))
    assert document is not None
    assert document["endpoint"] is None
    assert "not translated" in build_event_view(document).plain


def test_the_summary_counts_and_says_what_was_lost(frontends: Frontends) -> None:
    tracer = Tracer(frontends)
    for identifier, endpoint in enumerate((ONE, ONE, ONE, TWO)):
        tracer.describe_notification(notification(FlowChange.NEW, flow(VIP, 80, endpoint, identifier=identifier)))
    tracer.describe_notification(FlowNotification(1000.0, None, lost=True))
    summary = tracer.build_summary()
    assert [(each["endpoint"], each["share"]) for each in summary["endpoints"]] == [
        ("10.244.1.11:8080", 0.75),
        ("10.244.2.11:8080", 0.25),
    ]
    screen = build_console(100)
    with screen.capture() as out:
        screen.print(build_summary_view(summary))
    assert "75 %" in out.get()
    assert "the list is incomplete" in out.get()


def test_rates_are_of_the_window_and_tracked_connections_of_now(frontends: Frontends) -> None:
    rates = Rates(frontends, 10.0, began=900.0)
    rates.count_notification(notification(FlowChange.NEW, flow(VIP, 80, ONE), 980.0))  # too old
    for when in (991.0, 992.0):
        rates.count_notification(notification(FlowChange.NEW, flow(VIP, 80, ONE), when))
    rates.count_notification(notification(FlowChange.DESTROYED, flow(VIP, 80, TWO, answered=False), 995.0))
    document = rates.build_document(1000.0, [flow(VIP, 80, ONE), flow(VIP, 81, ONE)])
    assert document["source"] == "connection tracking events"
    assert [
        (row["endpoint"], row["newPerSecond"], row["unansweredPerSecond"], row["tracked"]) for row in document["rows"]
    ] == [
        ("10.244.1.11:8080", 0.2, 0.0, 1),
        ("10.244.2.11:8080", 0.0, 0.1, 0),
    ]
    screen = build_console(100)
    with screen.capture() as out:
        screen.print(build_top_view(document, 2))
    assert "default/web:http" in out.get()
    assert "1 more lines" in out.get()


def test_what_the_mode_alone_has_seen_is_new_too(frontends: Frontends) -> None:
    """As where programs give sockets endpoints: no packet is translated, so connection tracking knows no Service."""
    rates = Rates(frontends, 10.0, began=990.0)
    for when, connections in ((990.0, 5), (1000.0, 45)):
        counts = Counts()
        counts.add_endpoint(Measure.CONNECTIONS, EndpointName(WEB, TWO, 8080), connections)
        rates.record_counts(when, counts)
    rates.count_notification(notification(FlowChange.NEW, flow(VIP, 80, ONE), 995.0))
    document = rates.build_document(1000.0, [])
    assert [(row["endpoint"], row["newPerSecond"], row["countedPerSecond"]) for row in document["rows"]] == [
        ("10.244.2.11:8080", 0.0, 4.0),
        ("10.244.1.11:8080", 0.1, None),
    ]
    screen = build_console(100)
    with screen.capture() as out:
        screen.print(build_top_view(document, 5))
    assert [line.split()[:2] for line in out.get().splitlines() if ":" in line] == [
        ["default/web:http", "4.1"],
        ["10.244.2.11:8080", "4"],
        ["10.244.1.11:8080", "0.1"],
    ]


def test_a_service_that_comes_back_with_the_counts_of_its_rules_has_no_rate(frontends: Frontends) -> None:
    rates = Rates(frontends, 10.0, began=990.0)
    for when, connections in ((990.0, None), (995.0, 1360), (1000.0, 1365)):
        counts = Counts()
        if connections is not None:
            counts.add_endpoint(Measure.CONNECTIONS, EndpointName(WEB, TWO, 8080), connections)
            counts.add(Refusal.NO_ENDPOINTS, WEB, connections)
        rates.record_counts(when, counts)
    document = rates.build_document(1000.0, [])
    assert [row["countedPerSecond"] for row in document["rows"]] == [0.5]
    assert document["refusedPerSecond"] == {"no-endpoints": 0.5}
