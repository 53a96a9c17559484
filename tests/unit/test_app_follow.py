"""Health-check node ports follow the plans: a sync asks for the ports of what it changed, and for no others."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from tests.fakes.values import named

from vipwire.app.follow import HealthPorts
from vipwire.model.problem import Problem
from vipwire.plan.plan import HealthCheck, ServicePlan
from vipwire.serve.service_health import ServiceHealthCheck

MANY = 100


@dataclass
class Noted:
    """Listeners that note what they are asked for."""

    asked: list[dict[int, ServiceHealthCheck | None]] = field(default_factory=list)
    complete: bool = True
    closed: bool = False

    async def update(self, changes: Mapping[int, ServiceHealthCheck | None]) -> tuple[Problem, ...]:
        self.asked.append(dict(changes))
        return ()

    async def close(self) -> None:
        self.closed = True


@dataclass
class PlannedLine:
    """A family of which only the plans are known."""

    plans: dict[object, ServicePlan] = field(default_factory=dict)

    def want(self, name: str, port: int | None, endpoints: int = 1) -> None:
        check = None if port is None else HealthCheck(port, endpoints)
        self.plans[named(name)] = ServicePlan(named(name), health_check=check)


class Scene:
    """The ports of an engine of two families."""

    def __init__(self) -> None:
        self.four, self.six = PlannedLine(), PlannedLine()
        self.listeners = Noted()
        engine = cast("Any", type("Engine", (), {"lines": (self.four, self.six)}))
        self.ports = HealthPorts(engine, cast("Any", self.listeners))

    def follow(self, *names: str) -> dict[int, ServiceHealthCheck | None]:
        asyncio.run(self.ports.follow(map(named, names)))
        return self.listeners.asked[-1]


def answer(name: str, endpoints: int = 1) -> ServiceHealthCheck:
    return ServiceHealthCheck(named(name), endpoints)


def test_what_changed_is_asked_for_whatever_else_there_is() -> None:
    scene = Scene()
    for number in range(MANY):
        scene.four.want(f"s{number}", 30_000 + number)
    assert len(scene.follow(*(f"s{number}" for number in range(MANY)))) == MANY
    scene.four.want("s7", 30_007, 5)
    assert scene.follow("s7", "without") == {30_007: answer("s7", 5)}
    assert scene.follow() == {}


def test_a_port_is_left_and_another_one_taken() -> None:
    scene = Scene()
    scene.four.want("web", 30_000)
    scene.follow("web")
    scene.four.want("web", 30_001)
    assert scene.follow("web") == {30_000: None, 30_001: answer("web")}
    scene.four.plans.clear()
    assert scene.follow("web") == {30_001: None}


def test_the_family_with_more_endpoints_counts() -> None:
    scene = Scene()
    scene.four.want("web", 30_000, 1)
    scene.six.want("web", 30_000, 3)
    assert scene.follow("web") == {30_000: answer("web", 3)}


def test_a_port_that_two_ask_for_is_the_others_when_one_leaves_it() -> None:
    scene = Scene()
    scene.four.want("old", 30_000)
    scene.four.want("new", 30_000)
    assert scene.follow("old", "new") == {30_000: answer("new")}
    scene.four.want("old", 30_000, 2)
    assert scene.follow("old") == {30_000: answer("new")}
    scene.four.want("new", None)
    assert scene.follow("new") == {30_000: answer("old", 2)}


def test_other_listeners_are_asked_for_everything() -> None:
    scene = Scene()
    scene.four.want("web", 30_000)
    scene.four.want("dns", 30_001)
    scene.follow("web", "dns")
    others = Noted(complete=False)
    asyncio.run(scene.ports.move(cast("Any", others)))
    assert scene.listeners.closed
    assert others.asked == [{30_000: answer("web"), 30_001: answer("dns")}]
    assert not scene.ports.complete
