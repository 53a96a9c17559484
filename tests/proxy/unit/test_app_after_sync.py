"""What follows from a sync is about what it changed: health-check node ports, and places where a relay answers."""

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from tests.fakes.kernel import DictBackend
from tests.fakes.values import ip, named, node_plan, port, service

from vipwire.model.names import ObjectName
from vipwire.model.net import Address, Family, Protocol
from vipwire.model.problem import Problem
from vipwire.plan.plan import HealthCheck, ServicePlan
from vipwire.proxy_daemon.serve.service_health import ServiceHealthCheck
from vipwire.proxy_daemon.sync.after_sync import HealthPorts
from vipwire.proxy_daemon.sync.engine import Engine, Line
from vipwire.proxy_daemon.sync.flow_keeper import find_suspects
from vipwire.reconcile.pacer import Pacer
from vipwire.watched_objects.event import Kind, Listed, Upserted

MANY = 100


@dataclass
class Noted:
    """Listeners that note what they are asked for."""

    asked: list[dict[int, ServiceHealthCheck | None]] = field(default_factory=list)
    complete: bool = True

    async def update(self, changes: Mapping[int, ServiceHealthCheck | None]) -> tuple[Problem, ...]:
        self.asked.append(dict(changes))
        return ()


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
        self.listeners.asked.clear()
        asyncio.run(self.ports.update(map(named, names)))
        return self.listeners.asked[-1] if self.listeners.asked else {}


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


class RelayingBackend(DictBackend):
    """A mode that relays, and notes about which Services it is asked."""

    RELAY = ip("192.168.0.2"), 40_000

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[ObjectName] = []

    def relayed(self, plans: Iterable[ServicePlan]) -> frozenset[tuple[Address, int]]:
        self.asked += [plan.name for plan in plans]
        return frozenset({self.RELAY})


def test_a_relay_is_asked_about_the_services_that_changed() -> None:
    relay = RelayingBackend()
    line = Line(Family.IPV4, relay, Pacer(0.0, 30.0))
    engine = Engine((line,), "node-1", lambda family, _: node_plan(family))
    for kind in Kind:
        engine.apply(Listed(kind, ()))
    for number in range(MANY):
        engine.apply(Upserted(service(f"s{number}", f"10.96.1.{number}", port(53, protocol=Protocol.UDP))))
    (first,) = engine.sync(0.0)
    assert len(find_suspects(line, first)[0]) == MANY
    assert len(relay.asked) == MANY
    relay.asked.clear()
    engine.apply(Upserted(service("s7", "10.96.1.7", port(54, protocol=Protocol.UDP))))
    (second,) = engine.sync(1.0)
    places = frozenset({RelayingBackend.RELAY})
    assert find_suspects(line, second) == ({(ip("10.96.1.7"), 53): places, (ip("10.96.1.7"), 54): places}, ())
    assert relay.asked == [named("s7")]
