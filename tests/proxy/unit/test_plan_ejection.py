"""Who is ejected, for how long, and how the plan follows: never the last one."""

from dataclasses import replace

import pytest
from tests.fakes.values import HERE, endpoint, ip, node_plan, port, service, slice_of

from vipwire.model.names import ObjectName
from vipwire.model.net import Protocol
from vipwire.model.service import Endpoint, EndpointPort, EndpointSlice, Service, TrafficPolicy
from vipwire.plan.annotations import read_wishes
from vipwire.plan.ejection import LONGEST_SECONDS, EndpointKey, Failure, Tally
from vipwire.plan.plan import Forward
from vipwire.plan.planner import Planner

ONE, TWO, THREE, FOUR = (f"10.0.0.{number}" for number in range(1, 5))
ALL = (ONE, TWO, THREE, FOUR)


def key(address: str, number: int = 8080, protocol: Protocol = Protocol.TCP) -> EndpointKey:
    return EndpointKey(protocol, ip(address), number)


def asking(**annotations: str) -> Service:
    pairs = {"eject-after": "3", **{name.replace("_", "-"): value for name, value in annotations.items()}}
    marked = tuple(sorted((f"vipwire.io/{name}", value) for name, value in pairs.items() if value))
    return service("web", "10.96.0.1", port(80), annotations=marked)


class World:
    """One Service that wants ejection, and its endpoints."""

    def __init__(self, *present: str, of: Service | None = None, here: tuple[str, ...] = ()) -> None:
        self.service: Service | None = of or asking()
        self.name, self.here = self.service.name if self.service else ObjectName("", ""), here
        self.planner = Planner(node_plan())
        self.move(0.0, *present)

    def view(self, _: ObjectName) -> tuple[Service | None, list[EndpointSlice]]:
        return self.service, [slice_of("web", *map(self.endpoint, self.present))]

    def endpoint(self, address: str) -> Endpoint:
        return endpoint(address, HERE) if address in self.here else endpoint(address)

    def move(self, now: float, *present: str) -> None:
        self.present = present
        self.planner.update([self.name], self.view, now)

    def tell(self, address: str, failures: int, now: float = 0.0, *, answered: bool = False) -> bool:
        """Tell of connections; report whether the plan is another one now."""
        names = self.planner.ejections.take_tallies({key(address): Tally(answered, failures, Failure.RESET)}, now)
        return bool(self.planner.update(names, self.view, now))

    def wait(self, now: float) -> None:
        self.planner.readmit(self.view, now)

    def pool(self) -> list[str]:
        forward = self.planner.plans[self.name].frontends[0].action
        assert isinstance(forward, Forward)
        return [".".join(map(str, target.address)) for target in forward.pool]


def test_so_many_failures_in_a_row_eject_for_the_time() -> None:
    world = World(*ALL)
    assert not world.tell(TWO, 2)
    assert world.tell(TWO, 1, 10.0)
    assert world.pool() == [ONE, THREE, FOUR]
    assert world.planner.due() == 40.0
    world.wait(39.9)
    assert world.pool() == [ONE, THREE, FOUR]
    world.wait(40.0)
    assert (world.pool(), world.planner.due()) == (list(ALL), None)


def times(world: World, address: str, rounds: int) -> list[float]:
    """Eject an endpoint again at the first failure after each return; say for how long it was each time."""
    now, found = 0.0, []
    world.tell(address, 3, now)
    for _ in range(rounds):
        at = world.planner.due()
        assert at is not None
        found.append(at - now)
        now = at
        world.wait(now)
        world.tell(address, 1, now)
    return found


def test_on_trial_one_failure_ejects_again_for_twice_as_long() -> None:
    assert times(World(*ALL), ONE, 6) == [30.0, 60.0, 120.0, 240.0, LONGEST_SECONDS, LONGEST_SECONDS]
    assert times(World(*ALL, of=asking(eject_for="10m")), ONE, 2) == [600.0, 600.0]


@pytest.mark.parametrize(
    ("present", "percent", "most"),
    [(ALL[:1], "100", 0), (ALL[:2], "50", 1), (ALL[:3], "50", 1), (ALL, "50", 2), (ALL, "100", 3), (ALL, "1", 1)],
)
def test_a_share_at_most_and_never_the_last(present: tuple[str, ...], percent: str, most: int) -> None:
    world = World(*present, of=asking(eject_at_most=percent))
    for address in present:
        world.tell(address, 5)
    assert world.pool() == list(present[most:])
    world.wait(30.0)
    for address in present[most:]:
        world.tell(address, 1, 31.0)
    assert world.pool() == [*present[:most], *present[2 * most :]]


def test_a_local_policy_keeps_to_this_node_and_spares_its_last() -> None:
    local = replace(asking(eject_at_most="100"), internal_policy=TrafficPolicy.LOCAL)
    world = World(*ALL, of=local, here=(ONE, TWO))
    world.tell(ONE, 3)
    assert world.pool() == [TWO]
    world.tell(TWO, 3)
    assert world.pool() == [ONE, TWO]


def test_hints_give_way() -> None:
    world = World()
    pieces = slice_of("web", endpoint(ONE, zones=("a",)), endpoint(TWO, zones=("b",)), endpoint(THREE, zones=("b",)))
    world.planner = Planner(node_plan(zone="a"))
    world.planner.update([world.name], lambda _: (world.service, [pieces]), 0.0)
    assert world.pool() == [ONE]
    names = world.planner.ejections.take_tallies({key(ONE): Tally(failures=3)}, 0.0)
    world.planner.update(names, lambda _: (world.service, [pieces]), 0.0)
    assert world.pool() == [TWO, THREE]


def test_slow_start_begins_anew_with_the_return() -> None:
    world = World(ONE, TWO, of=asking(slow_start="30s"))
    world.tell(ONE, 3)
    world.wait(30.0)
    forward = world.planner.plans[world.name].frontends[0].action
    assert isinstance(forward, Forward)
    assert forward.spread.weights == (1, 10)


@pytest.mark.parametrize(("asked", "watched"), [("", False), ("true", True)])
def test_udp_only_if_it_is_asked_for(asked: str, *, watched: bool) -> None:
    of = replace(asking(eject_udp=asked), ports=(port(53, "dns", Protocol.UDP),))
    planner = Planner(node_plan())
    piece = slice_of("web", endpoint(ONE), ports=(EndpointPort("dns", Protocol.UDP, 53),))
    planner.update([of.name], lambda _: (of, [piece]), 0.0)
    assert set(planner.ejections.watched) == ({key(ONE, 53, Protocol.UDP)} if watched else set())


def test_what_is_ejected_and_what_comes_back_is_told_once() -> None:
    world = World(*ALL)
    world.tell(ONE, 4)
    world.tell(ONE, 9, 1.0)
    world.wait(30.0)
    notes = [(str(note.endpoint), note.seconds, note.failures) for note in world.planner.ejections.notes]
    assert notes == [("10.0.0.1:8080/tcp", 30.0, 4), ("10.0.0.1:8080/tcp", 0.0, 0)]


@pytest.mark.parametrize("word", ["eject-for", "eject-at-most", "eject-udp"])
def test_the_others_mean_nothing_without_the_first(word: str) -> None:
    value = {"eject-for": "10s", "eject-at-most": "10", "eject-udp": "true"}[word]
    found = read_wishes(asking(**{"eject_after": "", word.replace("-", "_"): value}))
    assert [(problem.field, problem.message) for problem in found.problems] == [
        (f"metadata.annotations[vipwire.io/{word}]", "has no effect without vipwire.io/eject-after")
    ]
    assert not found.given


@pytest.mark.parametrize(("word", "text"), [("eject_after", "0"), ("eject_at_most", "101"), ("eject_for", "30")])
def test_bad_values(word: str, text: str) -> None:
    (problem,) = read_wishes(asking(**{word: text})).problems
    assert "allowed: " in problem.message
