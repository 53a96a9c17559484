"""A namespace that changes too often waits; changes, statuses and Events of a neighbour do not."""

import asyncio
from collections.abc import Collection, Iterable
from types import MappingProxyType
from typing import Any, cast

from tests.l7.unit.test_ingress_outdated import LAYOUT, Taking
from tests.l7.unit.test_ingress_write_loop import answering

from vipwire.kube.events import Subject
from vipwire.model.names import ObjectName
from vipwire.model.net import Family
from vipwire.model.problem import Problem
from vipwire.watched_objects.event import Deleted, Listed, Upserted
from vipwire_l7.haproxy.state import Change, Delta
from vipwire_l7.ingress.plan.planner import IngressPlanner
from vipwire_l7.plan.plan import Setting
from vipwire_l7.run.controller import Controller, SyncResult
from vipwire_l7.run.desired import Desired, ProblemChange
from vipwire_l7.run.rates import Rate, ReloadTurns
from vipwire_l7.run.reporter import IngressReporter
from vipwire_l7.run.status_writer import StatusWriter
from vipwire_l7.watch.kinds import RESOURCES
from vipwire_l7.watch.objects import INGRESS_KINDS, BackendSlice, Ingress, IngressKind, PathRule, PathType, ServiceRef
from vipwire_l7.watch.snapshot import ChangeExtent, ObjectRef, Snapshot


class Clock:
    now = 1_000.0

    def __call__(self) -> float:
        return self.now


def ingress(of: str, name: str = "web", path: str = "/x[0-9]") -> Ingress:
    """Write an Ingress with a regular expression, which needs a reload."""
    backend, where = ServiceRef(ObjectName(of, "web"), 80), "spec.rules[0].http.paths[0].backend"
    rule = PathRule(f"{of}.org", path, PathType.IMPLEMENTATION_SPECIFIC, backend, where)
    marks = MappingProxyType({"vipwire.io/use-regex": "true"})
    return Ingress(ObjectName(of, name), "vipwire", (rule,), annotations=marks)


def changed(of: str, name: str = "web") -> ChangeExtent:
    return ChangeExtent(named=frozenset({(IngressKind.INGRESS, ObjectName(of, name))}))


def needing(*reasons: str, outgrown: Collection[str] = ()) -> Change:
    """Return a change that needs a reload."""
    return Change((), reasons, Delta(), {}, None, frozenset(), frozenset(outgrown))


def slow(clock: Clock, most: int = 2) -> ReloadTurns:
    """Return turns after `most` reloads for the namespace evil."""
    turns = ReloadTurns(Rate(most, clock))
    for number in range(most):
        turns.record_causes(changed("evil"), needing(f"reason {number}"))
        turns.count_reload()
    return turns


def test_a_namespace_has_so_many_a_minute_and_a_neighbour_as_many() -> None:
    clock = Clock()
    rate = Rate(2, clock)
    for _ in range(2):
        assert rate.get_wait("evil") == 0
        rate.spend("evil")
    assert rate.get_wait("evil") == 30
    assert rate.get_wait("good") == 0
    clock.now += 30
    assert rate.get_wait("evil") == 0
    clock.now += 3_600
    for _ in range(2):
        rate.spend("evil")
    assert rate.get_wait("evil") == 30


def test_a_namespace_that_has_all_again_is_forgotten() -> None:
    clock = Clock()
    rate = Rate(2, clock)
    for number in range(1_000):
        rate.spend(f"evil-{number}")
        clock.now += 1
    assert len(rate._left) <= 60  # noqa: SLF001  # memory has no other sign


def test_changes_of_a_namespace_that_caused_too_many_reloads_wait_for_its_turn() -> None:
    clock = Clock()
    turns = slow(clock)
    first, last, other = ingress("evil", path="/a"), ingress("evil", path="/b"), ingress("evil", "other")
    assert [turns.hold_back(Upserted(each)) for each in (first, last, other)] == [
        (IngressKind.INGRESS, each.name) for each in (first, last, other)
    ]
    assert turns.hold_back(Upserted(ingress("good"))) is None
    assert not [*turns.release_events()]
    assert turns.get_wait() == 30
    clock.now += 30
    assert [*turns.release_events()] == [Upserted(last), Upserted(other)]
    assert turns.hold_back(Upserted(first)) is None


def test_endpoints_and_cluster_scoped_objects_never_wait() -> None:
    turns, name = slow(Clock()), ObjectName("evil", "web-1")
    assert turns.hold_back(Upserted(BackendSlice(name, ObjectName("evil", "web"), Family.IPV4, {}, ()))) is None
    assert turns.hold_back(Deleted(IngressKind.SLICE, name)) is None
    assert turns.hold_back(Deleted(IngressKind.INGRESS_CLASS, ObjectName("", "evil"))) is None
    assert turns.hold_back(Deleted(IngressKind.INGRESS, name)) == (IngressKind.INGRESS, name)


def test_a_new_list_replaces_what_waits() -> None:
    clock = Clock()
    turns = slow(clock)
    turns.hold_back(Upserted(ingress("evil")))
    assert turns.hold_back(Listed(IngressKind.INGRESS, ())) is None
    clock.now += 30
    assert not [*turns.release_events()]


def test_only_the_namespace_whose_change_brings_a_new_reason_is_blamed() -> None:
    turns, reasons = ReloadTurns(Rate(1, Clock())), needing("users change")
    turns.record_causes(changed("evil"), reasons)
    turns.record_causes(changed("good"), reasons)
    turns.record_causes(changed("calm"), needing())
    turns.count_reload()
    assert [turns.hold_back(Upserted(ingress(of))) is not None for of in ("evil", "good", "calm")] == [
        True,
        False,
        False,
    ]


def test_a_reload_for_more_servers_waits_for_the_turn_of_their_namespace() -> None:
    clock = Clock()
    turns = ReloadTurns(Rate(1, clock))
    grown = needing("more servers for evil:web:80", outgrown=["evil:web:80"])
    assert turns.get_wait_for_servers(grown) == 0
    turns.record_causes(ChangeExtent(services=frozenset({ObjectName("evil", "web")})), grown)
    turns.count_reload()
    assert turns.get_wait_for_servers(grown) == 60
    pools = ["evil:web:80", "good:web:80"]
    assert turns.get_wait_for_servers(needing(*(f"more servers for {each}" for each in pools), outgrown=pools)) == 0
    assert turns.get_wait_for_servers(needing(*grown.reasons, "users change", outgrown=grown.outgrown)) == 0
    assert turns.get_wait_for_servers(needing()) == 0


async def test_a_namespace_that_causes_reloads_all_the_time_does_not_delay_a_neighbour() -> None:
    clock, done = Clock(), list[SyncResult]()
    snapshot = Snapshot()
    desired = Desired(snapshot, IngressPlanner(Setting()), LAYOUT, "PEM\n")
    turns = ReloadTurns(Rate(2, clock))
    controller = Controller(snapshot, desired, cast("Any", Taking()), done.append, 0.0, turns=turns)
    for kind in INGRESS_KINDS:
        controller.emit(Listed(kind, ()))
    task = asyncio.ensure_future(controller.run())
    async with asyncio.timeout(60):
        for number in range(4):
            await controller.wait_until_settled()
            controller.emit(Upserted(ingress("evil", path=f"/{number}[0-9]")))
        controller.emit(Upserted(ingress("good")))
        await controller.wait_until_settled()
        assert [each.held for each in done if each.held] == [(IngressKind.INGRESS, ObjectName("evil", "web"))]
        assert {each.path for each in desired.plan.routes} == {"/1[0-9]", "/x[0-9]"}
        clock.now += 60
        controller.emit(Upserted(ingress("good", path="/y[0-9]")))
        await controller.wait_until_settled()
        assert {each.path for each in desired.plan.routes} == {"/3[0-9]", "/y[0-9]"}
    task.cancel()


class Wanted:
    """Statuses of Ingresses that say their names."""

    revision = 1

    def __init__(self, *names: ObjectName) -> None:
        self._names = names

    def list_all(self) -> Iterable[ObjectRef]:
        return [(IngressKind.INGRESS, name) for name in self._names]

    def take_changed(self) -> Collection[ObjectRef]:
        return ()

    def make_patch(self, ref: ObjectRef, _now: str) -> Any:
        return {"metadata": {"resourceVersion": "1"}, "status": str(ref[1])}


async def test_statuses_of_a_namespace_wait_for_its_turn() -> None:
    clock = Clock()
    wanted = Wanted(*(ObjectName("evil", f"i{number}") for number in range(4)), ObjectName("good", "web"))
    async with asyncio.timeout(60), answering([200] * 5, "1") as (sent, access):
        writer = StatusWriter(access, RESOURCES, wanted, Snapshot(), lambda: True, Rate(2, clock))
        task = asyncio.ensure_future(writer.run())
        assert [await sent.get() for _ in range(3)] == ["evil/i0", "evil/i1", "good/web"]
        assert sent.empty()
        clock.now += 60
        assert [await sent.get() for _ in range(2)] == ["evil/i2", "evil/i3"]
        task.cancel()


async def test_a_status_of_a_neighbour_comes_between_those_of_a_namespace_with_many() -> None:
    wanted = Wanted(*(ObjectName("evil", f"i{number:03}") for number in range(300)), ObjectName("good", "web"))
    async with asyncio.timeout(60), answering([200] * 301, "1") as (sent, access):
        writer = StatusWriter(access, RESOURCES, wanted, Snapshot(), lambda: True, Rate(10_000))
        task = asyncio.ensure_future(writer.run())
        names = [await sent.get() for _ in range(301)]
        assert names.index("good/web") < 50
        assert len({*names}) == 301
        task.cancel()


class Recorder:
    """Takes Events."""

    def __init__(self) -> None:
        self.about = list[str]()

    def record(self, about: Subject, *_: Any) -> None:
        self.about.append(f"{about.namespace}/{about.name}")


def test_events_of_a_namespace_wait_for_its_turn_unless_the_problem_goes() -> None:
    clock, recorder, snapshot = Clock(), Recorder(), Snapshot()
    names = [*(ObjectName("evil", f"i{number}") for number in range(5)), ObjectName("good", "web")]
    for name in names:
        snapshot.apply(Upserted(Ingress(name)))
    reporter = IngressReporter(snapshot, cast("Any", recorder), Rate(2, clock))
    reporter.report_problems(ProblemChange({name: (Problem("Ingress", name, "spec", "is wrong"),) for name in names}))
    assert recorder.about == ["evil/i0", "evil/i1", "good/web"]
    reporter.report_problems(ProblemChange({names[2]: ()}))
    clock.now += 60
    reporter.record_due_events()
    assert recorder.about[3:] == ["evil/i3", "evil/i4"]


def test_events_of_problems_come_before_those_of_accepted_ingresses() -> None:
    clock, recorder, snapshot = Clock(), Recorder(), Snapshot()
    names = [ObjectName("evil", f"i{number}") for number in range(3)]
    for name in names:
        snapshot.apply(Upserted(Ingress(name)))
    reporter = IngressReporter(snapshot, cast("Any", recorder), Rate(1, clock))
    reporter.report_problems(ProblemChange(admitted=dict.fromkeys(names[:2], True)))
    reporter.report_problems(ProblemChange({names[2]: (Problem("Ingress", names[2], "spec", "is wrong"),)}))
    clock.now += 60
    reporter.record_due_events()
    assert recorder.about == ["evil/i0", "evil/i2"]


def test_events_that_no_leader_recorded_are_those_of_the_next() -> None:
    recorder, snapshot, name, leading = Recorder(), Snapshot(), ObjectName("good", "web"), False
    snapshot.apply(Upserted(Ingress(name)))
    reporter = IngressReporter(snapshot, cast("Any", recorder), Rate(2), lambda: leading)
    reporter.report_problems(ProblemChange({name: (Problem("Ingress", name, "spec", "is wrong"),)}))
    assert recorder.about == []
    leading = True
    reporter.record_due_events()
    assert recorder.about == ["good/web"]
