"""What becomes of new connections, from conntrack's events."""

from tests.fakes.values import ip

from vipwire.linux.conntrack.attempts import FOLLOWED, PATIENCE, Attempts
from vipwire.linux.netlink.conntrack import Flow, FlowChange, FlowEvent
from vipwire.model.net import Protocol
from vipwire.plan.ejection import EndpointKey, Failure, Tally

POD, OTHER = EndpointKey(Protocol.TCP, ip("10.0.0.7"), 8080), EndpointKey(Protocol.TCP, ip("10.0.0.8"), 8080)
CLIENT, VIP = ip("10.0.0.1"), ip("10.96.0.1")


def event(change: FlowChange, identifier: int, to: EndpointKey = POD, zone: int = 0) -> FlowEvent:
    made = Flow(to.protocol, CLIENT, 4000, VIP, 80, to.address, to.port, CLIENT, 4000, identifier=identifier)
    return FlowEvent(change, made._replace(zone=zone))


class World:
    """Attempts, and the kernel's table: who has been answered, by identifier; who is not in it is gone."""

    def __init__(self, *identifiers: int) -> None:
        self.attempts, self.table = Attempts(), dict.fromkeys(identifiers, False)
        self.looked: list[int] = []
        self.attempts.watch([POD])
        for identifier in identifiers:
            self.begin(identifier)

    def begin(self, identifier: int, now: float = 0.0) -> None:
        self.table[identifier] = False
        self.attempts.see(event(FlowChange.NEW, identifier), now)

    def reset(self, identifier: int, now: float = 0.1) -> None:
        self.table.pop(identifier, None)
        self.attempts.see(event(FlowChange.DESTROYED, identifier), now)

    def look(self, flow: Flow) -> bool | None:
        self.looked.append(flow.identifier)
        return self.table.get(flow.identifier)

    def settle(self, now: float) -> dict[EndpointKey, Tally]:
        return self.attempts.take_outcomes(now, self.look)


def test_an_answer_in_time_is_an_answer() -> None:
    world = World(1)
    world.table[1] = True
    assert world.attempts.due() == PATIENCE
    assert world.settle(PATIENCE - 0.1) == {}
    assert world.settle(PATIENCE) == {POD: Tally(answered=True)}
    assert (world.settle(9.0), world.attempts.due()) == ({}, None)


def test_an_end_without_an_answer_is_a_reset_at_once() -> None:
    world = World(1)
    world.reset(1)
    assert world.settle(0.1) == {POD: Tally(failures=1, last=Failure.RESET)}
    assert world.looked == []


def test_who_waits_too_long_has_no_answer() -> None:
    world = World(1, 2)
    world.begin(3, 1.0)
    assert world.attempts.due() == PATIENCE
    assert world.settle(PATIENCE - 0.1) == {}
    assert world.settle(PATIENCE) == {POD: Tally(failures=2)}
    assert world.attempts.due() == PATIENCE + 1.0
    assert world.settle(PATIENCE + 1.0) == {POD: Tally(failures=1)}


def test_failures_count_since_the_last_answer_in_the_order_of_their_beginnings() -> None:
    world = World(1)
    for identifier in (2, 3, 4, 5):
        world.begin(identifier, identifier / 100)
    world.table[3] = True
    for identifier in (4, 2, 5):
        world.reset(identifier)
    assert world.settle(0.2) == {POD: Tally(answered=True, failures=2, last=Failure.RESET)}
    assert world.settle(PATIENCE) == {POD: Tally(failures=1)}


def test_who_is_gone_from_the_table_says_nothing() -> None:
    world = World(1)
    del world.table[1]
    assert world.settle(PATIENCE) == {}
    assert world.attempts.due() is None


def test_what_ends_without_a_beginning_fails_nobody() -> None:
    world = World()
    world.reset(1)
    assert world.settle(0.1) == {}


def test_others_zones_and_connections_past_the_service_do_not_count() -> None:
    world = World()
    world.attempts.see(event(FlowChange.NEW, 1, OTHER), 0.0)
    world.attempts.see(event(FlowChange.NEW, 2, zone=5), 0.0)
    past = event(FlowChange.NEW, 3)
    past = past._replace(flow=past.flow._replace(destination=POD.address, destination_port=POD.port))
    world.attempts.see(past, 0.0)
    assert world.attempts.due() is None


def test_where_sockets_name_the_endpoint_connections_to_it_count() -> None:
    attempts, past = Attempts(direct=True), event(FlowChange.NEW, 3)
    attempts.watch([POD])
    past = past._replace(flow=past.flow._replace(destination=POD.address, destination_port=POD.port))
    attempts.see(past, 0.0)
    assert attempts.take_outcomes(PATIENCE, lambda _: False) == {POD: Tally(failures=1)}


def test_who_is_no_longer_watched_is_forgotten_and_may_come_back() -> None:
    world = World(1, 2)
    world.reset(2)
    world.attempts.watch([OTHER])
    world.attempts.watch([OTHER, POD])
    assert world.settle(60.0) == {}


def test_a_flood_is_followed_in_part() -> None:
    world = World(*range(10 * FOLLOWED))
    assert world.settle(PATIENCE) == {POD: Tally(failures=FOLLOWED)}
    assert len(world.looked) == FOLLOWED
    world.begin(1, 10.0)
    assert world.attempts.due() == 10.0 + PATIENCE
