"""What becomes of new connections, from conntrack's events."""

from tests.fakes.values import ip

from vipwire.conntrack.attempts import FOLLOWED, PATIENCE, Attempts
from vipwire.model.net import Protocol
from vipwire.netlink.conntrack import Flow, FlowChange, FlowEvent
from vipwire.plan.ejection import EndpointKey, Failure, Tally

POD, OTHER = EndpointKey(Protocol.TCP, ip("10.0.0.7"), 8080), EndpointKey(Protocol.TCP, ip("10.0.0.8"), 8080)
CLIENT, VIP = ip("10.0.0.1"), ip("10.96.0.1")


def event(change: FlowChange, identifier: int, to: EndpointKey = POD, zone: int = 0) -> FlowEvent:
    made = Flow(to.protocol, CLIENT, 4000, VIP, 80, to.address, to.port, CLIENT, 4000, identifier=identifier)
    return FlowEvent(change, made._replace(zone=zone))


def begun(*identifiers: int, at: float = 0.0) -> Attempts:
    attempts = Attempts()
    attempts.watch([POD])
    for identifier in identifiers:
        attempts.see(event(FlowChange.NEW, identifier), at)
    return attempts


def test_an_answer_in_time_is_an_answer() -> None:
    attempts = begun(1)
    attempts.see(event(FlowChange.UPDATED, 1), 0.5)
    assert attempts.due() is None
    assert attempts.settle(PATIENCE) == {POD: Tally(answered=True)}
    assert attempts.settle(9.0) == {}


def test_an_end_without_an_answer_is_a_reset() -> None:
    attempts = begun(1)
    attempts.see(event(FlowChange.DESTROYED, 1), 0.1)
    assert attempts.settle(0.1) == {POD: Tally(failures=1, last=Failure.RESET)}


def test_who_waits_too_long_has_no_answer() -> None:
    attempts = begun(1, 2)
    attempts.see(event(FlowChange.NEW, 3), 1.0)
    assert attempts.due() == PATIENCE
    assert attempts.settle(PATIENCE - 0.1) == {}
    assert attempts.settle(PATIENCE) == {POD: Tally(failures=2)}
    assert attempts.due() == PATIENCE + 1.0


def test_failures_count_since_the_last_answer() -> None:
    attempts = begun(1, 2, 3)
    attempts.see(event(FlowChange.DESTROYED, 1), 0.1)
    attempts.see(event(FlowChange.UPDATED, 2), 0.2)
    attempts.see(event(FlowChange.DESTROYED, 3), 0.3)
    assert attempts.settle(0.3) == {POD: Tally(answered=True, failures=1, last=Failure.RESET)}


def test_what_ends_or_is_answered_without_a_beginning_fails_nobody() -> None:
    attempts = begun()
    attempts.see(event(FlowChange.DESTROYED, 1), 0.1)
    assert attempts.settle(0.1) == {}
    attempts.see(event(FlowChange.UPDATED, 2), 0.1)
    assert attempts.settle(0.1) == {POD: Tally(answered=True)}


def test_others_zones_and_connections_past_the_service_do_not_count() -> None:
    attempts = begun()
    attempts.see(event(FlowChange.NEW, 1, OTHER), 0.0)
    attempts.see(event(FlowChange.NEW, 2, zone=5), 0.0)
    past = event(FlowChange.NEW, 3)
    attempts.see(past._replace(flow=past.flow._replace(destination=POD.address, destination_port=POD.port)), 0.0)
    assert attempts.due() is None


def test_where_events_were_lost_nobody_fails_for_it() -> None:
    attempts = begun(1, 2)
    attempts.lost()
    assert attempts.settle(60.0) == {}
    attempts.see(event(FlowChange.NEW, 3), 61.0)
    assert attempts.settle(70.0) == {POD: Tally(failures=1)}


def test_who_is_no_longer_watched_is_forgotten_and_may_come_back() -> None:
    attempts = begun(1)
    attempts.watch([OTHER])
    attempts.watch([OTHER, POD])
    assert attempts.settle(60.0) == {}


def test_a_flood_is_followed_in_part() -> None:
    attempts = begun(*range(10 * FOLLOWED))
    assert attempts.settle(PATIENCE) == {POD: Tally(failures=FOLLOWED)}
    attempts.see(event(FlowChange.NEW, 1), 10.0)
    assert attempts.due() == 10.0 + PATIENCE
