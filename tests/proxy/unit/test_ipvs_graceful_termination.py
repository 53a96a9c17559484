"""When real servers that drain are looked at, and how many of them."""

from tests.fakes.values import ip

from vipwire.linux.netlink.ipvs import RealServer, VirtualServer
from vipwire.modes.ipvs.termination import LOOK_SECONDS, GracefulTermination


def virtual(number: int) -> VirtualServer:
    return VirtualServer(6, ip(f"10.96.{number // 250}.{number % 250 + 1}"), 80)


WEB, DB = virtual(0), virtual(1)
REAL, OTHER = RealServer(WEB, ip("10.0.0.1"), 80), RealServer(DB, ip("10.0.0.2"), 80)


def test_what_begins_to_drain_is_looked_at_at_once_and_then_more_rarely_the_longer_it_takes() -> None:
    draining = GracefulTermination()
    assert draining.due(5.0) is None
    draining.begin_draining(REAL, 5.0, 30)
    assert draining.due(20.0) == 0, "most have no connections"
    assert draining.servers_to_check(20.0) == {WEB: (REAL,)}
    draining.record_look(20.0, 20.001)
    assert draining.due(20.001) == LOOK_SECONDS
    draining.record_look(30.0, 31.0)
    assert draining.due(31.0) == 20.0


def test_who_drains_again_does_not_get_more_time() -> None:
    draining = GracefulTermination()
    draining.begin_draining(REAL, 5.0, 30)
    draining.begin_draining(REAL, 20.0, None)
    assert not draining.has_expired(REAL, 34.9)
    assert draining.has_expired(REAL, 35.0)


def test_nothing_is_due_for_who_is_wanted_again_or_gone() -> None:
    draining = GracefulTermination()
    draining.begin_draining(REAL, 5.0, None)
    draining.begin_draining(OTHER, 5.0, None)
    draining.end_draining(REAL)
    assert REAL not in draining
    assert draining.servers_to_check(5.0) == {DB: (OTHER,)}
    draining.forget_servers({DB, WEB})
    assert OTHER not in draining
    assert draining.due(99.0) is None


def looked_at(draining_already: int) -> int:
    """Let one more begin to drain while others do; count the virtual servers of which it has the kernel asked."""
    draining = GracefulTermination()
    for number in range(draining_already):
        draining.begin_draining(RealServer(virtual(number), ip("10.0.0.1"), 80), 1.0, None)
    draining.record_look(1.0, 2.0)
    draining.begin_draining(RealServer(virtual(draining_already), ip("10.0.0.1"), 80), 3.0, None)
    assert draining.due(3.0) == 0
    found = len(draining.servers_to_check(3.0))
    draining.record_look(3.0, 3.1)
    assert draining.due(3.1) == 2.0 + 20 - 3.1, "the next look at all is not put off"
    assert len(draining.servers_to_check(22.0)) == draining_already + 1
    return found


def test_one_that_begins_costs_the_same_however_many_drain() -> None:
    assert looked_at(10) == looked_at(2_000) == 1
