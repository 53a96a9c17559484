"""What the kernel is told, by what is desired, believed, seen and refused."""

import pytest
from tests.fakes.kernel import DictBackend, touched
from tests.fakes.values import ip, ips, named, node_plan, planned

from vipwire.errors import BusyError, CommitError
from vipwire.reconcile.delta import Delta
from vipwire.reconcile.reconciler import NotBriefError, Reconciler

A, B, C = "10.96.0.1", "10.96.0.2", "10.96.0.3"


class Line:
    """A reconciler on a fake kernel."""

    def __init__(self, backend: DictBackend | None = None, **services: str) -> None:
        self.kernel = backend or DictBackend()
        self.reconciler: Reconciler[str, str] = Reconciler(self.kernel)
        self.reconciler.desire_node(self.kernel.render_node(node_plan()))
        for name, addresses in services.items():
            self.want(name, addresses)

    def want(self, name: str, addresses: str = "") -> None:
        """Desire a Service with some addresses; without any, that it is gone."""
        plan = planned(name, *ips(*addresses.split())) if addresses else None
        self.reconciler.desire(named(name), plan)

    def services(self) -> dict[str, list[str]]:
        """Tell which Service has which addresses in the kernel."""
        found: dict[str, list[str]] = {}
        for key, owner in sorted(self.kernel.held.items()):
            if owner.startswith("default/"):
                found.setdefault(owner.removeprefix("default/"), []).append(".".join(map(str, bytes.fromhex(key))))
        return found

    def settled(self) -> bool:
        """Tell whether another sync has nothing to do."""
        before = len(self.kernel.deltas)
        self.reconciler.distrust()
        self.reconciler.sync()
        return len(self.kernel.deltas) == before


def obj(address: str) -> str:
    return ip(address).hex()


def running(**services: str) -> Line:
    line = Line(None, **services)
    line.reconciler.sync()
    line.kernel.deltas.clear()
    line.kernel.observed = 0
    return line


def test_an_empty_kernel_gets_everything_in_one_transaction() -> None:
    line = Line(None, web=A, db=B)
    report = line.reconciler.sync()
    assert line.services() == {"web": [A], "db": [B]}
    assert len(line.kernel.deltas) == 1
    assert (report.services, report.added, report.changed, report.removed) == (3, 4, 0, 0)
    assert (report.observed, report.size, report.repaired) == (0, 4, [])
    assert not line.reconciler.pending


def test_a_new_process_on_a_programmed_kernel_commits_nothing() -> None:
    first = running(web=f"{A} {C}", db=B)
    second = Line(first.kernel, web=f"{A} {C}", db=B)
    report = second.reconciler.sync()
    assert first.kernel.deltas == []
    assert (report.observed, report.size, report.repaired) == (len(first.kernel.held), 0, [])


def test_only_what_changed_is_committed_and_nothing_is_observed() -> None:
    line = running(**{f"s{n}": f"10.96.1.{n}" for n in range(200)})
    line.want("s7", "10.96.1.7 10.96.2.7")
    report = line.reconciler.sync()
    assert touched(line.kernel.deltas) == {obj("10.96.2.7"), "size 2"}
    assert (report.services, report.observed, line.kernel.observed) == (1, None, 0)


def test_a_service_as_it_was_costs_no_transaction() -> None:
    line = running(web=A)
    line.want("web", A)
    assert line.reconciler.pending
    assert line.reconciler.sync().size == 0
    assert not line.reconciler.pending


def test_the_kernel_is_asked_whether_others_changed_it_and_observed_only_if_so() -> None:
    line = running(web=A)
    assert not line.reconciler.verify()
    assert not line.reconciler.pending
    line.kernel.meddle(lambda held: held.pop(obj(A)))
    assert line.reconciler.verify()
    assert line.reconciler.pending


def test_damage_is_repaired_and_reported_exactly() -> None:
    line = running(web=A, db=B)
    line.kernel.meddle(lambda held: (held.pop(obj(A)), held.update({obj(B): "other", "foreign": "x"})))
    line.reconciler.verify()
    report = line.reconciler.sync()
    assert sorted(report.repaired) == sorted([obj(A), obj(B), "foreign"])
    assert line.services() == {"web": [A], "db": [B]}
    assert line.settled()


def test_pending_changes_are_not_reported_as_damage() -> None:
    line = running(web=A, db=B)
    line.want("web", C)
    line.kernel.meddle(lambda held: held.pop(obj(B)))
    line.reconciler.verify()
    assert line.reconciler.sync().repaired == [obj(B)]
    assert line.services() == {"web": [C], "db": [B]}


def test_what_somebody_put_where_a_pending_change_goes_is_reported() -> None:
    line = running(web=A, db=B)
    line.want("web", f"{A} {C}")
    line.kernel.meddle(lambda held: held.update({obj(C): "theirs"}))
    assert line.reconciler.sync().repaired == [obj(C)]
    assert line.services() == {"web": [A, C], "db": [B]}


def test_what_somebody_took_from_a_pending_service_is_reported() -> None:
    line = running(web=f"{A} {C}", db=B)
    line.want("web", A)
    line.kernel.meddle(lambda held: held.pop(obj(A)))
    line.reconciler.verify()
    assert line.reconciler.sync().repaired == [obj(A)]
    assert line.services() == {"web": [A], "db": [B]}


def test_a_change_by_others_that_harms_nothing_of_ours_is_no_repair() -> None:
    line = running(web=A)
    line.kernel.meddle(lambda _: None)
    line.reconciler.verify()
    report = line.reconciler.sync()
    assert (report.observed, report.size, report.repaired) == (3, 0, [])
    assert not line.reconciler.pending


def test_the_service_that_the_kernel_refuses_keeps_its_old_objects_and_the_others_go_on() -> None:
    line = running(web=A, db=B)
    line.kernel.refused = {obj("10.96.9.9")}
    line.want("web", "10.96.9.9")
    for number in range(20):
        line.want(f"s{number}", f"10.96.1.{number}")
    line.reconciler.sync()
    assert set(line.reconciler.isolated) == {named("web")}
    assert "10.96.9.9" not in str(line.services())
    assert line.services()["web"] == [A]
    assert len(line.services()) == 22
    assert not line.reconciler.pending


def test_the_error_of_an_isolated_service_holds_its_own_transaction() -> None:
    line = running(web=A)
    line.kernel.refused = {obj(B)}
    line.want("web", B)
    line.want("db", C)
    line.reconciler.sync()
    error = line.reconciler.isolated[named("web")]
    assert error.transaction == "+1 ~0 -1"
    assert error.errno == 22


def test_an_isolated_service_is_tried_again_when_it_changes() -> None:
    line = running(web=A)
    line.kernel.refused = {obj(B)}
    line.want("web", B)
    line.reconciler.sync()
    line.want("web", C)
    line.reconciler.sync()
    assert line.reconciler.isolated == {}
    assert line.services() == {"web": [C]}


def test_an_isolated_service_is_tried_again_on_retry_only() -> None:
    line = running(web=A)
    line.kernel.refused = {obj(B)}
    line.want("web", B)
    line.reconciler.sync()
    refusals = line.kernel.refusals
    line.want("db", C)
    line.reconciler.sync()
    assert line.kernel.refusals == refusals
    line.reconciler.retry()
    line.reconciler.sync()
    assert line.kernel.refusals > refusals
    line.kernel.refused = set()
    line.reconciler.retry()
    assert line.reconciler.pending
    line.reconciler.sync()
    assert line.services() == {"web": [B], "db": [C]}
    assert line.reconciler.isolated == {}


def test_a_removed_service_that_cannot_be_removed_keeps_its_objects_until_the_retry() -> None:
    line = running(web=A, db=B)
    line.kernel.held[obj(A)] = "someone changed it, and nobody told"
    line.want("web")
    line.reconciler.sync()
    assert set(line.reconciler.isolated) == {named("web")}
    line.kernel.held[obj(A)] = "default/web"
    line.reconciler.retry()
    line.reconciler.sync()
    assert line.services() == {"db": [B]}
    assert line.reconciler.isolated == {}


def test_a_refusal_while_the_kernel_is_observed_isolates_and_reports_repairs_all_the_same() -> None:
    line = running(web=A, db=B)
    line.kernel.refused = {obj(C)}
    line.want("web", C)
    line.kernel.meddle(lambda held: held.pop(obj(B)))
    line.reconciler.verify()
    report = line.reconciler.sync()
    assert line.services() == {"web": [A], "db": [B]}
    assert report.repaired == [obj(B)]
    assert set(line.reconciler.isolated) == {named("web")}
    assert not line.reconciler.pending


def test_a_refusal_of_the_nodes_objects_is_an_error_and_leaves_the_kernel_as_it_was() -> None:
    kernel = DictBackend({obj(A): "default/web"})
    kernel.refused = {"node"}
    line = Line(kernel, web=A, db=B)
    with pytest.raises(CommitError, match="refuses node"):
        line.reconciler.sync()
    assert kernel.held == {obj(A): "default/web"}
    assert line.reconciler.pending
    kernel.refused = set()
    line.reconciler.sync()
    assert line.services() == {"web": [A], "db": [B]}


def test_a_refusal_of_another_nodes_objects_on_a_running_kernel_is_an_error_too() -> None:
    line = running(web=A)
    line.kernel.refused = {"node"}
    line.reconciler.desire_node({"node": "another"})
    line.want("db", B)
    with pytest.raises(CommitError, match="refuses node"):
        line.reconciler.sync()
    assert line.reconciler.pending
    assert line.services()["web"] == [A]
    line.kernel.refused = set()
    report = line.reconciler.sync()
    assert line.services() == {"web": [A], "db": [B]}
    assert line.kernel.held["node"] == "another"
    assert report.repaired == []


def test_after_a_failed_try_the_next_still_knows_what_a_service_had() -> None:
    line = running(web=A, db=B)
    line.kernel.refused = {"node", obj(C)}
    line.reconciler.desire_node({"node": "another"})
    line.want("web", C)
    line.reconciler.distrust()
    with pytest.raises(CommitError):
        line.reconciler.sync()
    line.kernel.refused = {obj(C)}
    report = line.reconciler.sync()
    assert line.services() == {"web": [A], "db": [B]}
    assert set(line.reconciler.isolated) == {named("web")}
    assert report.repaired == []


@pytest.mark.parametrize("observed", [False, True])
def test_what_an_isolated_service_keeps_it_gives_up_to_one_that_should_have_it(*, observed: bool) -> None:
    line = running(web=f"{A} {B}")
    line.kernel.refused = {obj(C)}
    line.want("web", C)
    line.reconciler.sync()
    line.want("db", B)
    if observed:
        line.reconciler.distrust()
    line.reconciler.sync()
    assert line.services() == {"web": [A], "db": [B]}
    line.kernel.refused = set()
    line.reconciler.retry()
    line.reconciler.sync()
    assert line.services() == {"web": [C], "db": [B]}
    assert line.settled()


def test_a_sync_that_is_to_be_brief_reads_nothing_and_leaves_what_is_refused_to_the_next() -> None:
    line = running(web=A, db=B)
    line.want("web", C)
    line.reconciler.sync(brief=True)
    assert (line.services(), line.kernel.observed) == ({"web": [C], "db": [B]}, 0)
    line.kernel.refused = {obj(A)}
    line.want("web", A)
    with pytest.raises(NotBriefError):
        line.reconciler.sync(brief=True)
    assert line.reconciler.pending
    line.kernel.refused = set()
    line.reconciler.distrust()
    with pytest.raises(NotBriefError):
        line.reconciler.sync(brief=True)
    assert line.kernel.observed == 0
    line.reconciler.sync()
    assert line.services() == {"web": [A], "db": [B]}
    assert line.settled()


class SteppedBackend(DictBackend):
    """A mode without transactions: adds object after object up to the refused one. `brief`: it refuses only once."""

    brief = False

    def commit(self, delta: Delta[str, str]) -> int:
        try:
            return super().commit(delta)
        except CommitError:
            for key, value in delta.added.items():
                if key in self.refused:
                    break
                self.held[key] = value
            self.meddle(lambda _: None)
            if self.brief:
                self.refused = set()
            raise


@pytest.mark.parametrize("at", ["start", "later"])
def test_the_kernel_is_observed_again_after_a_refusal_that_applied_a_part(at: str) -> None:
    line = Line(SteppedBackend(), web=A)
    if at == "later":
        line.reconciler.sync()
    line.kernel.refused = {obj(B)}
    for name, address in (("api", C), ("db", B), ("last", "10.96.0.4")):
        line.want(name, address)
    line.reconciler.sync()
    assert line.services() == {"web": [A], "api": [C], "last": ["10.96.0.4"]}
    assert set(line.reconciler.isolated) == {named("db")}
    assert line.settled()


def test_an_obstacle_that_goes_between_two_tries_leaves_no_gap() -> None:
    kernel = SteppedBackend()
    kernel.refused, kernel.brief = {obj(B)}, True
    line = Line(kernel, web=A, db=B, api=C)
    line.reconciler.sync()
    assert line.services() == {"web": [A], "db": [B], "api": [C]}
    assert line.reconciler.isolated == {}
    assert line.settled()


class BusyBackend(DictBackend):
    """A mode whose transactions wait for another program in vain. `tries` counts them."""

    tries = 0
    busy = True

    def commit(self, delta: Delta[str, str]) -> int:
        self.tries += 1
        if self.busy:
            raise BusyError("another program holds the lock")
        return super().commit(delta)


@pytest.mark.parametrize("at", ["start", "later"])
def test_no_service_is_isolated_while_another_program_prevents_every_transaction(at: str) -> None:
    kernel = BusyBackend()
    line = Line(kernel, web=A)
    if at == "later":
        kernel.busy = False
        line.reconciler.sync()
        kernel.busy, kernel.tries = True, 0
    for number in range(20):
        line.want(f"s{number}", f"10.96.1.{number}")
    line.reconciler.distrust()
    with pytest.raises(BusyError):
        line.reconciler.sync()
    assert (kernel.tries, line.reconciler.isolated) == (1, {})
    kernel.busy = False
    line.reconciler.sync()
    assert len(line.services()) == 21
    assert line.settled()
