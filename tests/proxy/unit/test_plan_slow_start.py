"""Slow start: who is new, how its weight grows, and when the planner is to be asked again."""

from typing import Any, ClassVar

import pytest
from tests.fakes.values import endpoint, node_plan, port, service, slice_of

from vipwire.model.names import ObjectName
from vipwire.model.service import EndpointSlice, Service
from vipwire.plan.annotations import read_wishes
from vipwire.plan.plan import Forward, ServicePlan
from vipwire.plan.planner import Planner
from vipwire.plan.slow_start import STEPS

OLD, NEW = "10.0.0.1", "10.0.0.2"


class World:
    """One Service with slow start, whose endpoints come and go."""

    def __init__(self, *present: str, **annotations: str) -> None:
        pairs = {"slow-start": "30s", **{key.replace("_", "-"): value for key, value in annotations.items()}}
        marked = tuple(sorted((f"vipwire.io/{key}", value) for key, value in pairs.items() if value))
        self.service: Service | None = service("web", "10.96.0.1", port(80), annotations=marked)
        self.name = self.service.name
        self.planner = Planner(node_plan(port_ranges=True))
        self.move(0.0, *present)

    def view(self, _: ObjectName) -> tuple[Service | None, list[EndpointSlice]]:
        return self.service, [slice_of("web", *(endpoint(address) for address in self.present))]

    def move(self, now: float, *present: str) -> None:
        self.present = present
        self.planner.update([self.name], self.view, now)

    def weights(self) -> tuple[int, ...]:
        forward = self.plan.frontends[0].action
        assert isinstance(forward, Forward)
        return forward.spread.weights

    @property
    def plan(self) -> ServicePlan:
        return self.planner.plans[self.name]

    def steps(self) -> list[tuple[float, tuple[int, ...]]]:
        """Let time pass from step to step until nothing grows any more; tell when each came and what it brought."""
        found: list[tuple[float, Any]] = []
        while (at := self.planner.due()) is not None:
            assert len(found) < 3 * STEPS, "it never ends"
            assert list(self.planner.raise_weights(self.view, at)) == [self.name]
            found.append((round(at, 3), self.weights()))
        return found


def test_an_endpoint_that_joins_grows_from_a_tenth_to_its_full_weight() -> None:
    world = World(OLD)
    world.move(100.0, OLD, NEW)
    assert world.weights() == (10, 1)
    grown = [(100.0 + 3 * share, (10, share)) for share in range(2, STEPS)]
    assert world.steps() == [*grown, (130.0, ())]


def test_what_is_there_at_first_is_warm() -> None:
    world = World(OLD, NEW)
    assert (world.weights(), world.planner.due()) == ((), None)


def test_each_endpoint_has_its_own_time() -> None:
    world = World(OLD)
    world.move(100.0, OLD, NEW)
    world.move(115.0, OLD, NEW, "10.0.0.3")
    assert world.weights() == (10, 5, 1)
    assert world.steps()[-1] == (145.0, ())


def test_endpoints_that_all_come_together_share_equally() -> None:
    world = World()
    world.move(100.0, OLD, NEW)
    assert world.weights() == ()


def test_weights_of_the_annotation_grow_too() -> None:
    world = World(OLD, weights='{"10.0.0.2": 3}')
    world.move(100.0, OLD, NEW)
    assert world.weights() == (10, 3)
    assert world.steps()[-1] == (130.0, (1, 3))


def test_a_range_of_ports_has_the_weights_of_its_port() -> None:
    world = World(OLD, port_range="80-90")
    world.move(100.0, OLD, NEW)
    (wide,) = world.plan.ranges
    assert wide.frontend.action == world.plan.frontends[0].action
    assert world.weights() == (10, 1)


def test_one_that_leaves_and_comes_back_is_new_again() -> None:
    world = World(OLD, NEW)
    world.move(50.0, OLD)
    world.move(60.0, OLD, NEW)
    assert world.weights() == (10, 1)


def test_one_that_leaves_while_it_grows_leaves_nothing_to_do() -> None:
    world = World(OLD)
    world.move(100.0, OLD, NEW)
    world.move(101.0, OLD)
    assert (world.weights(), world.planner.due()) == ((), None)


def test_a_service_that_goes_leaves_nothing_to_do() -> None:
    world = World(OLD)
    world.move(100.0, OLD, NEW)
    world.service = None
    world.move(101.0)
    assert world.planner.due() is None


def test_a_late_look_finds_every_step_that_was_due() -> None:
    world = World(OLD)
    world.move(100.0, OLD, NEW)
    world.planner.raise_weights(world.view, 128.0)
    assert world.weights() == (10, 9)
    world.planner.raise_weights(world.view, 1000.0)
    assert world.weights() == ()


def test_nothing_is_planned_before_its_time() -> None:
    world = World(OLD)
    world.move(100.0, OLD, NEW)
    assert world.planner.due() == pytest.approx(106.0)
    assert world.planner.raise_weights(world.view, 105.9) == {}


class Growing:
    """So many Services, each with slow start and one endpoint; `join` lets a second one come."""

    def __init__(self, count: int) -> None:
        marked = (("vipwire.io/slow-start", "30s"),)
        self.services = {
            (of := service(f"web-{number}", f"10.96.{number // 250}.{number % 250 + 1}", annotations=marked)).name: of
            for number in range(count)
        }
        self.joined: set[ObjectName] = set()
        self.planner = Planner(node_plan())
        self.planner.update(self.services, self.view, 0.0)

    def view(self, name: ObjectName) -> tuple[Service | None, list[EndpointSlice]]:
        present = (OLD, NEW) if name in self.joined else (OLD,)
        return self.services[name], [slice_of(name.name, *map(endpoint, present))]

    def join(self, name: ObjectName, now: float) -> None:
        self.joined.add(name)
        self.planner.update([name], self.view, now)


def test_each_service_has_its_own_time() -> None:
    world = Growing(3)
    first, second, third = world.services
    for name, now in ((second, 100.0), (first, 101.0), (third, 102.0)):
        world.join(name, now)
    world.joined.remove(first)
    world.planner.update([first], world.view, 103.0)
    assert list(world.planner.raise_weights(world.view, 107.0)) == [second]
    world.joined.remove(second)
    world.planner.update([second], world.view, 107.5)
    assert world.planner.due() == pytest.approx(108.0)
    assert list(world.planner.raise_weights(world.view, 108.0)) == [third]
    assert world.planner.due() == pytest.approx(111.0)


class Moment(float):
    """A moment that counts how often it is compared with others."""

    __slots__ = ()
    compared: ClassVar = 0

    def __ge__(self, other: float) -> bool:  # `at <= now` asks this one first: it is of the derived class
        Moment.compared += 1
        return super().__ge__(other)


def asked(count: int) -> int:
    """Let so many Services grow at once, and count the steps that are looked at where none is due."""
    world = Growing(count)
    for name in world.services:
        world.join(name, 100.0)
    before = Moment.compared
    assert world.planner.raise_weights(world.view, Moment(101.0)) == {}
    return Moment.compared - before


@pytest.mark.slow
def test_to_ask_costs_the_same_however_many_services_grow() -> None:
    assert asked(10) == asked(500) == 1


def test_without_the_annotation_nobody_starts_slowly() -> None:
    world = World(OLD, slow_start="")
    world.move(100.0, OLD, NEW)
    assert (world.weights(), world.planner.due()) == ((), None)


@pytest.mark.parametrize("text", ["", "30", "0s", "-3s", "61m", "half a minute", "1h"])
def test_a_bad_time_is_reported_and_ignored(text: str) -> None:
    found = read_wishes(service("web", "10.96.0.1", annotations=(("vipwire.io/slow-start", text),)))
    assert found.slow_start is None
    assert [problem.field for problem in found.problems] == ["metadata.annotations[vipwire.io/slow-start]"]
    assert "allowed: 1s to 60m" in found.problems[0].message


@pytest.mark.parametrize(("text", "seconds"), [("30s", 30), ("1m30s", 90), (" 60m ", 3600), ("1s", 1)])
def test_times(text: str, seconds: int) -> None:
    assert (
        read_wishes(service("web", "10.96.0.1", annotations=(("vipwire.io/slow-start", text),))).slow_start == seconds
    )


def test_with_source_hash_it_is_refused_with_its_reason() -> None:
    pairs = (("vipwire.io/algorithm", "source-hash"), ("vipwire.io/slow-start", "30s"))
    found = read_wishes(service("web", "10.96.0.1", annotations=pairs))
    assert found.slow_start is None
    assert "no effect with the algorithm source-hash" in found.problems[0].message
