"""The line from events to the kernel, with the clock in the test's hand."""

from collections.abc import Callable, Iterable
from types import SimpleNamespace

import pytest
from tests.fakes.kernel import DictBackend, touched
from tests.fakes.values import endpoint, ips, named, node_plan, service, slice_of

from vipwire.errors import CommitError, DecodeError, HaltedError, VipwireError
from vipwire.model.names import ObjectName
from vipwire.model.net import Family, Protocol
from vipwire.model.node import Node
from vipwire.plan.ejection import EndpointKey, Tally
from vipwire.plan.node import NodePlan
from vipwire.plan.plan import ServicePlan
from vipwire.proxy_daemon.sync.engine import FEW, Engine, Line
from vipwire.reconcile.backend import Rendered
from vipwire.reconcile.delta import Delta
from vipwire.reconcile.pacer import Pacer
from vipwire.watched_objects.event import Deleted, Event, Kind, Listed, Upserted
from vipwire.watched_objects.store import Store

FOUR, SIX = Family.IPV4, Family.IPV6
PERIOD = 30.0


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have syncs take no time: the next one counts from the end of the last, however loaded this machine is."""
    monkeypatch.setattr("vipwire.proxy_daemon.sync.engine.time", SimpleNamespace(perf_counter=lambda: 0.0))


class Machine:
    """An engine for some families, each on its own fake kernel."""

    def __init__(self, *families: Family, minimum: float = 0.0) -> None:
        self.kernels = {family: DictBackend() for family in families or (FOUR,)}
        self.masquerade_bit = 14
        lines = [Line(family, kernel, Pacer(minimum, PERIOD)) for family, kernel in self.kernels.items()]
        self.engine = Engine(lines, "node-1", self.node_plan_of)

    @property
    def kernel(self) -> DictBackend:
        return self.kernels[FOUR]

    def node_plan_of(self, family: Family, store: Store) -> NodePlan:
        node = store.nodes.get("node-1")
        return node_plan(family, zone=node.zone if node else "", masquerade_bit=self.masquerade_bit)

    def listed(self, *objects: Event) -> "Machine":
        """Take a list of every kind, empty but for these events."""
        for kind in Kind:
            self.engine.apply(Listed(kind, ()))
        for event in objects:
            self.engine.apply(event)
        return self

    def settled(self, now: float = 0.0) -> "Machine":
        """Sync, and forget what that did."""
        self.engine.sync(now)
        for kernel in self.kernels.values():
            kernel.deltas.clear()
            kernel.observed = 0
        return self


def names(outcome_changes: Iterable[ObjectName]) -> set[str]:
    return {name.name for name in outcome_changes}


def test_nothing_is_done_before_every_kind_is_listed() -> None:
    machine = Machine()
    machine.engine.apply(Upserted(service("web")))
    for kind in Kind:
        assert machine.engine.due(0.0) is None
        assert machine.engine.sync(0.0) == []
        assert (machine.kernel.observed, machine.kernel.held) == (0, {})
        machine.engine.apply(Listed(kind, ()))
    assert machine.engine.due(0.0) == 0


def test_the_first_sync_is_told_as_the_first_and_as_full() -> None:
    machine = Machine().listed(Upserted(service("web")))
    (outcome,) = machine.engine.sync(0.0)
    assert (outcome.first, outcome.full, outcome.error) == (True, True, None)
    assert names(outcome.changes) == {"web"}
    machine.engine.apply(Upserted(service("db", "10.96.0.2")))
    (second,) = machine.engine.sync(1.0)
    assert (second.first, second.full) == (False, False)
    assert names(second.changes) == {"db"}


def test_events_that_came_together_are_one_transaction_of_what_they_changed() -> None:
    machine = Machine().listed(Upserted(service("web"))).settled()
    for number in range(10):
        machine.engine.apply(Upserted(service(f"s{number}", f"10.96.1.{number}")))
    machine.engine.apply(Deleted(Kind.SERVICE, named("s9")))
    machine.engine.sync(1.0)
    (delta,) = machine.kernel.deltas
    assert len(delta.added) == 18
    assert not any("web" in key for key in touched([delta]))


def test_an_event_that_changes_nothing_is_not_due() -> None:
    machine = Machine().listed(Upserted(service("web"))).settled()
    machine.engine.apply(Upserted(service("web")))
    assert machine.engine.sync(1.0) == []
    assert machine.engine.due(1.0) == PERIOD - 1


def test_each_family_has_its_own_outcome() -> None:
    machine = Machine(FOUR, SIX).listed(Upserted(service("web", "10.96.0.1,fd00:96::1"))).settled()
    machine.engine.apply(Upserted(slice_of("web", endpoint("fd00:10::1"), family=SIX)))
    outcomes = {outcome.family: outcome for outcome in machine.engine.sync(1.0)}
    assert names(outcomes[SIX].changes) == {"web"}
    assert FOUR not in outcomes
    assert machine.kernels[FOUR].deltas == []


def test_a_changed_node_plans_everything_again() -> None:
    machine = Machine().listed(
        Upserted(service("web")), Upserted(slice_of("web", endpoint("10.1.0.1", zones=("a",))))
    )
    machine.engine.apply(Upserted(slice_of("web", endpoint("10.1.0.2", zones=("b",)), name="web-2")))
    machine.settled()
    machine.engine.apply(Upserted(Node("node-1", ips("192.168.0.2"), zone="a")))
    (outcome,) = machine.engine.sync(1.0)
    assert names(outcome.changes) == {"web"}
    assert machine.engine.node == Node("node-1", ips("192.168.0.2"), zone="a")


def test_addresses_that_moved_ask_for_the_node_plan_again() -> None:
    machine = Machine().listed().settled()
    machine.masquerade_bit = 15
    assert machine.engine.sync(1.0) == []
    machine.engine.record_node_change()
    assert machine.engine.due(1.0) == 0
    machine.engine.sync(1.0)
    assert machine.kernel.held["node"] == "15"


def test_a_node_that_means_nothing_new_costs_no_transaction() -> None:
    machine = Machine().listed(Upserted(service("web"))).settled()
    machine.engine.apply(Upserted(Node("node-1", ips("192.168.0.2"), taints=frozenset({"x"}))))
    assert machine.engine.sync(1.0) == []
    assert machine.kernel.deltas == []


def test_a_check_that_finds_nothing_does_not_read_the_kernel_and_is_not_due_again() -> None:
    machine = Machine().listed(Upserted(service("web"))).settled()
    assert machine.engine.sync(2 * PERIOD) == []
    assert machine.kernel.observed == 0
    assert machine.engine.due(2 * PERIOD) == PERIOD


def test_changes_are_told_with_the_sync_that_carried_them_through() -> None:
    machine = Machine().listed(Upserted(service("web"))).settled()
    line = machine.engine.lines[0]
    old = line.plans[named("web")]
    machine.kernel.fails = "Input/output error"
    machine.engine.apply(Upserted(slice_of("web", endpoint("10.1.0.1"))))
    (failed,) = machine.engine.sync(1.0)
    assert failed.error is not None
    assert "does not answer: [Errno 5] Input/output error" in str(failed.error)
    assert failed.changes == {}
    machine.kernel.fails = ""
    machine.engine.apply(Upserted(slice_of("web", endpoint("10.1.0.2"))))
    (done,) = machine.engine.sync(2.0)
    assert done.changes[named("web")] == (old, line.plans[named("web")])
    assert done.report.repaired == []


@pytest.mark.parametrize(
    ("fails", "said"),
    [
        ("Input/output error", "the kernel does not answer: [Errno 5] Input/output error"),
        (DecodeError("no rule: ?"), "cannot decode the kernel's answer: no rule: ?"),
        (CommitError("iptables-save fails"), "iptables-save fails"),
    ],
    ids=["silent", "garbled", "no tool"],
)
def test_a_kernel_that_does_not_say_whether_it_changed_is_observed_when_it_answers_again(
    fails: str | VipwireError, said: str
) -> None:
    machine = Machine().listed(Upserted(service("web"))).settled()
    machine.kernel.fails = fails
    (outcome,) = machine.engine.sync(2 * PERIOD)
    assert str(outcome.error) == said
    machine.kernel.fails = ""
    (outcome,) = machine.engine.sync(3 * PERIOD)
    assert (outcome.error, outcome.full) == (None, True)
    assert machine.kernel.deltas == []


def test_one_family_that_fails_does_not_stop_the_other() -> None:
    machine = Machine(FOUR, SIX).listed(Upserted(service("web", "10.96.0.1,fd00:96::1")))
    machine.kernels[FOUR].refused = {"node"}
    outcomes = {outcome.family: outcome for outcome in machine.engine.sync(0.0)}
    assert outcomes[FOUR].error is not None
    assert outcomes[SIX].first
    assert len(machine.kernels[SIX].held) == 4


@pytest.mark.parametrize("trouble", ["", "node", "0a600001", "io"])
@pytest.mark.parametrize("minimum", [0.0, 1.0])
def test_the_loop_is_never_busy(trouble: str, minimum: float) -> None:
    machine = Machine(minimum=minimum).listed(Upserted(service("web")), Upserted(service("db", "10.96.0.2")))
    if trouble == "io":
        machine.kernel.fails = "Input/output error"
    else:
        machine.kernel.refused = {trouble}
    now = 0.0
    for _ in range(200):
        machine.engine.sync(now)
        wait = machine.engine.due(now)
        assert wait is not None
        assert wait > 0
        now += wait
    assert now > 90 * PERIOD


def test_a_weight_that_grows_is_synced_in_its_time_and_is_no_change_that_others_follow() -> None:
    asked = service("web", annotations=(("vipwire.io/slow-start", "30s"),))
    old, new = endpoint("10.0.0.1"), endpoint("10.0.0.2")
    machine = Machine().listed(Upserted(asked), Upserted(slice_of("web", old))).settled()
    machine.engine.apply(Upserted(slice_of("web", old, new)))
    machine.engine.sync(10.0)
    machine.kernel.deltas.clear()
    assert machine.engine.due(10.0) == pytest.approx(6.0)
    (outcome,) = machine.engine.sync(16.0)
    assert touched(machine.kernel.deltas) != set()
    assert (outcome.error, outcome.changes) == (None, {})
    assert machine.engine.due(16.0) == pytest.approx(3.0)


def failing(address: str) -> dict[EndpointKey, Tally]:
    """Tell of three connections to an endpoint that nobody has answered."""
    (of,) = ips(address)
    return {EndpointKey(Protocol.TCP, of, 8080): Tally(failures=3)}


def test_an_ejection_is_synced_at_once_and_its_end_in_its_time_and_nobody_has_asked_for_it() -> None:
    asked = service("web", annotations=(("vipwire.io/eject-after", "3"),))
    pods = slice_of("web", endpoint("10.0.0.1"), endpoint("10.0.0.2"))
    machine = Machine().listed(Upserted(asked), Upserted(pods), Upserted(service("db", "10.96.0.2"))).settled()
    engine = machine.engine
    assert engine.list_watched_endpoints() == {*failing("10.0.0.1"), *failing("10.0.0.2")}
    assert not engine.observe(failing("10.9.9.9"), 10.0)
    assert engine.observe(failing("10.0.0.1"), 10.0)
    assert engine.due(10.0) == 0
    assert engine.take_ejection_notes() == []  # clients meet it as yet
    for now in (10.0, 40.0):
        (outcome,) = engine.sync(now)
        assert names(outcome.changes) == names(outcome.unasked) == {"web"}
        if now == 10.0:
            assert engine.due(10.0) == pytest.approx(PERIOD - 10.0)  # the check of the kernel
            assert engine.list_ejections() == {(asked.port_name(asked.ports[0]), *failing("10.0.0.1")): 40.0}
    assert [note.seconds for note in engine.take_ejection_notes()] == [30.0, 0.0]
    assert (engine.take_ejection_notes(), engine.list_ejections()) == ([], {})


def test_where_an_event_comes_with_an_ejection_the_change_was_asked_for() -> None:
    asked = service("web", annotations=(("vipwire.io/eject-after", "3"),))
    one, two, three = (endpoint(f"10.0.0.{number}") for number in (1, 2, 3))
    machine = Machine().listed(Upserted(asked), Upserted(slice_of("web", one, two))).settled()
    machine.engine.observe(failing("10.0.0.1"), 10.0)
    machine.engine.apply(Upserted(slice_of("web", one, two, three)))
    (outcome,) = machine.engine.sync(10.0)
    assert (names(outcome.changes), outcome.unasked) == ({"web"}, set())


def test_a_service_that_cannot_be_rendered_keeps_what_it_has_and_all_others_go_on() -> None:
    class Frail(DictBackend):
        """A mode with a mistake about one Service."""

        broken = False

        def render(self, plan: ServicePlan) -> Rendered[str, str]:
            if self.broken and plan.name.name == "web":
                raise ZeroDivisionError
            return super().render(plan)

    machine = Machine()
    kernel = Frail()
    machine.engine = Engine([Line(FOUR, kernel, Pacer(0.0, PERIOD))], "node-1", machine.node_plan_of)
    machine.listed(Upserted(service("web")), Upserted(service("db", "10.96.0.2")))
    machine.engine.sync(0.0)
    before = {key: value for key, value in kernel.held.items() if "web" in value}
    kernel.broken = True
    machine.engine.apply(Upserted(service("web", "10.96.0.9")))
    machine.engine.apply(Upserted(service("new", "10.96.0.3")))
    machine.engine.sync(1.0)
    assert {key: value for key, value in kernel.held.items() if "web" in value} == before != {}
    assert any("new" in value for value in kernel.held.values())
    kernel.broken = False
    machine.engine.apply(Upserted(service("web", "10.96.0.8")))
    machine.engine.sync(2.0)
    assert {key: value for key, value in kernel.held.items() if "web" in value} != before


class PromptBackend(DictBackend):
    """A mode whose small commits take a moment."""

    prompt = True


class PromptMachine(Machine):
    """An engine that has nothing to do, on fake kernels that answer at once."""

    def __init__(self) -> None:
        super().__init__(FOUR)
        self.kernels = {FOUR: PromptBackend()}
        self.engine = Engine([Line(FOUR, self.kernel, Pacer(0.0, PERIOD))], "node-1", self.node_plan_of)
        self.listed(Upserted(service("web", "10.96.0.1"))).settled()
        self.engine.due(0.0)

    def moved(self, address: str) -> None:
        self.engine.apply(Upserted(slice_of("web", endpoint(address), name="web-a")))


def test_a_few_services_are_synced_briefly_where_nothing_else_is_due() -> None:
    machine = PromptMachine()
    machine.moved("10.0.0.1")
    assert machine.engine.has_few_changes(1.0)
    (outcome,) = machine.engine.sync_few(1.0)
    assert names(outcome.changes) == {"web"}
    assert (len(machine.kernel.deltas), machine.kernel.observed) == (1, 0)
    assert machine.engine.due(1.0) == PERIOD - 1.0
    assert not machine.engine.has_few_changes(PERIOD)


def test_many_services_another_node_or_a_slower_mode_are_no_brief_sync() -> None:
    machine = PromptMachine()
    machine.engine.record_node_change()
    assert not machine.engine.has_few_changes(0.0)
    machine.settled().engine.due(0.0)
    assert machine.engine.has_few_changes(0.0)
    for number in range(FEW + 1):
        machine.engine.apply(Upserted(service(f"s{number}", f"10.96.1.{number}")))
    assert not machine.engine.has_few_changes(0.0)
    slower = Machine().listed().settled()
    slower.engine.due(0.0)
    assert not slower.engine.has_few_changes(0.0)


def test_a_brief_sync_that_turns_out_to_be_more_is_due_again_at_once() -> None:
    machine = PromptMachine()
    machine.moved("10.0.0.1")
    machine.kernel.meddle(dict.clear)
    assert machine.engine.sync_few(0.0) == []
    assert machine.engine.due(0.0) == 0
    assert not machine.engine.has_few_changes(0.0)
    (outcome,) = machine.engine.sync(0.0)
    assert names(outcome.changes) == {"web"}
    assert outcome.full
    assert machine.kernel.held == machine.engine.lines[0].reconciler.desired()


class HaltingBackend(DictBackend):
    """A mode during whose work the process is told to end: at a Service's rendering, or at a transaction."""

    def __init__(self, moment: str, refused: str = "") -> None:
        super().__init__()
        self.moment, self.calls = moment, 0
        self.refused = {refused} if refused else set()
        self.halt: Callable[[], None] = lambda: None

    def render(self, plan: ServicePlan) -> Rendered[str, str]:
        self._halt_at("render")
        return super().render(plan)

    def observe(self) -> dict[str, str]:
        self._halt_at("observe")
        return super().observe()

    def commit(self, delta: Delta[str, str]) -> int:
        self._halt_at("commit")
        return super().commit(delta)

    def _halt_at(self, moment: str) -> None:
        if moment == self.moment:
            self.calls += 1
            self.halt()


def halted_engine(kernel: HaltingBackend, services: int = 100) -> Engine:
    machine = Machine()
    engine = machine.engine = Engine([Line(FOUR, kernel, Pacer(0.0, PERIOD))], "node-1", machine.node_plan_of)
    machine.listed(*(Upserted(service(f"s{number}", f"10.96.0.{number}")) for number in range(1, services + 1)))
    kernel.halt = engine.halt
    return engine


@pytest.mark.parametrize("moment", ["render", "observe"])
def test_an_engine_that_is_halted_begins_no_transaction(moment: str) -> None:
    kernel = HaltingBackend(moment)
    with pytest.raises(HaltedError):
        halted_engine(kernel).sync(0.0)
    assert (kernel.calls, kernel.deltas, kernel.held) == (1, [], {})


def test_an_engine_that_is_halted_before_it_plans_renders_nothing() -> None:
    kernel = HaltingBackend("render")
    engine = halted_engine(kernel)
    engine.halt()
    with pytest.raises(HaltedError):
        engine.sync(0.0)
    assert (kernel.calls, kernel.observed) == (0, 0)


def test_an_engine_that_is_halted_finishes_the_running_transaction() -> None:
    kernel = HaltingBackend("commit")
    halted_engine(kernel).sync(0.0)
    assert len(kernel.deltas) == 1


def test_an_engine_that_is_halted_splits_no_refused_transaction() -> None:
    kernel = HaltingBackend("commit", refused="0a600007")
    with pytest.raises(HaltedError):
        halted_engine(kernel).sync(0.0)
    assert (kernel.calls, kernel.deltas) == (1, [])
