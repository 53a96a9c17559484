"""Keeps the kernel's objects equal to the desired ones, at the price of what changed.

    desired    what every Service should have    (`desire` changes it)
    belief     what the kernel holds             (a commit changes it; `observe` replaces it)

In the normal case only pending Services are compared. At start, and when someone else may have changed the kernel, it
is observed: nothing is believed, each Service takes its objects out of what was seen where they already are as they
should be, and what nobody takes is removed. So a new process on a programmed kernel has nothing to do.

A refused transaction leaves the kernel as it was. It is tried again in halves, until the Services that the kernel
does not want are alone: these keep what they had, are reported, and are tried again when they change or when `retry`
says.
"""

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Generic, TypeVar

from msgspec import Struct, field

from vipwire.errors import CommitError, VipwireError
from vipwire.model.names import ObjectName
from vipwire.plan.plan import ServicePlan
from vipwire.reconcile.backend import Backend, Expecting, Rendered
from vipwire.reconcile.transaction import Belief, Transaction

K = TypeVar("K")
V = TypeVar("V")

NODE = ObjectName("", "")
"""The name under which the objects that belong to no Service are kept."""


class LongerError(VipwireError):
    """The kernel has to be read, or a refused transaction tried in halves: a sync that was to be brief is not."""


class Report(Struct, Generic[K]):
    """The result of one sync. Counts are of kernel objects; `size` is bytes sent to the kernel.

    `observed` is how many objects were read, None when nothing was. `repaired` are the objects that someone else had
    changed or removed.
    """

    services: int = 0
    added: int = 0
    changed: int = 0
    removed: int = 0
    size: int = 0
    observed: int | None = None
    repaired: list[K] = field(default_factory=list)


class Reconciler(Generic[K, V]):
    """Keeps one mode and family as desired."""

    def __init__(self, backend: Backend[K, V]) -> None:
        self._backend = backend
        self._desired: dict[ObjectName, Rendered[K, V]] = {}
        self._belief = Belief[K, V]()
        self._pending: dict[ObjectName, None] = {}
        self._isolated: dict[ObjectName, CommitError] = {}
        self._kept: dict[ObjectName, Rendered[K, V] | None] = {}
        self._before: Mapping[ObjectName, Rendered[K, V]] = {}
        self._trusted = False
        self._started = False
        self.isolated: Mapping[ObjectName, CommitError] = MappingProxyType(self._isolated)

    @property
    def pending(self) -> bool:
        """Whether the next sync has anything to do."""
        return bool(self._pending) or not self._trusted

    def desire_node(self, objects: Mapping[K, V]) -> None:
        """Set the desired objects that belong to no Service."""
        self._desired[NODE] = Rendered(objects)
        self._pending[NODE] = None

    def desire(self, name: ObjectName, plan: ServicePlan | None) -> None:
        """Set the desired objects of one Service; None: it should have none."""
        if plan is None:
            self._desired.pop(name, None)
        else:
            self._desired[name] = self._backend.render(plan)
        self._forgive(name)

    def desired(self) -> dict[K, V]:
        """List every object that should exist."""
        return {key: value for each in self._desired.values() for key, value in {**each.own, **each.shared}.items()}

    def retry(self) -> None:
        """Try the isolated Services again at the next sync."""
        for name in list(self._isolated):
            self._forgive(name)

    def verify(self) -> bool:
        """Ask whether others may have changed the kernel. If so, return True, and the next sync observes it."""
        if self._trusted and self._backend.changed():
            self._trusted = False
        return not self._trusted

    def distrust(self) -> None:
        """Make the next sync observe the kernel in any case."""
        self._trusted = False

    def sync(self, *, brief: bool = False) -> Report[K]:
        """Bring the kernel to the desired state, as far as it accepts it.

        Raise CommitError if it refuses the objects that belong to no Service: then nothing of ours can work. If it
        is to be `brief` and cannot be, raise LongerError: nothing is lost, and the next sync does it all.
        """
        if brief and not self._trusted:
            raise LongerError
        report: Report[K] = Report()  # not Report[K](): typing takes longer for that than a Service is rendered
        names = list(self._pending)
        report.services = len(names)
        names += self._yielding(names)
        if self._trusted:
            try:
                self._commit(names, report)
            except CommitError as error:
                if brief:
                    raise LongerError from error
                if self._backend.changed():
                    self._trusted = False
                else:
                    self._commit_halves(names, report, error)
        if not self._trusted:
            self._observe_and_commit(names, report)
        self._pending.clear()
        return report

    def _forgive(self, name: ObjectName) -> None:
        if self._isolated:
            self._isolated.pop(name, None)
            self._kept.pop(name, None)
        self._pending[name] = None

    def _wanted(self, name: ObjectName) -> Rendered[K, V] | None:
        return self._kept[name] if name in self._isolated else self._desired.get(name)

    def _yielding(self, names: Iterable[ObjectName]) -> list[ObjectName]:
        """Remove from isolated Services what others of `names` should have; return those isolated Services.

        Otherwise two would believe to have the same object, and the one that leaves it would take it from the other.
        """
        if not self._isolated:
            return []
        wanting = [name for name in names if name in self._desired and name not in self._isolated]
        wanted = {key for name in wanting for key in self._desired[name].own}
        giving: list[ObjectName] = []
        for name, kept in self._kept.items():
            if kept is not None and not wanted.isdisjoint(kept.own):
                own = {key: value for key, value in kept.own.items() if key not in wanted}
                self._kept[name] = Rendered(own, kept.shared)
                giving.append(name)
        return giving

    def _observe_and_commit(self, pending: Sequence[ObjectName], report: Report[K]) -> None:
        # A try that failed halfway has forgotten what Services had before: the next one still has to know.
        before = self._before = {**self._before, **self._belief.services}
        if isinstance(self._backend, Expecting):
            self._backend.expect(self._desired.values())
        observed = self._backend.observe()
        expected = self._expected(pending, before, observed) if self._started else set()
        self._belief = Belief(unowned=observed)
        report.observed = len(self._belief.unowned)
        names = list(self._desired)
        self._yielding(names)
        repairs: list[K] = []
        try:
            repairs += self._commit(names, report, last=True)
        except CommitError as error:
            repairs += self._commit([NODE], report)
            repairs += self._commit_halves([name for name in names if name != NODE], report, error, before)
            repairs += self._commit([], report, last=True)
        if self._started:
            report.repaired = [key for key in repairs if key not in expected]
        self._trusted = self._started = True
        self._before = {}

    def _expected(
        self, names: Sequence[ObjectName], before: Mapping[ObjectName, Rendered[K, V]], observed: Mapping[K, V]
    ) -> set[K]:
        """Collect what pending Services had, as they had it, and what they will have and the kernel has not yet.

        A difference in these is nobody else's doing.
        """
        had, wanted = (
            {
                key: value
                for name in names
                if name in state
                for part in (state[name].own, state[name].shared)
                for key, value in part.items()
            }
            for state in (before, self._desired)
        )
        kept = {key for key, value in had.items() if key in observed and observed[key] == value}
        return kept | {key for key in wanted if key not in had and key not in observed}

    def _commit(self, names: Iterable[ObjectName], report: Report[K], *, last: bool = False) -> list[K]:
        """Commit what some Services lack, and with `last` what nobody wants; return the keys of what was done."""
        step = Transaction(self._belief)
        for name in names:
            step.add(name, self._wanted(name))
        delta = step.delta(last=last)
        if delta:
            report.size += self._backend.commit(delta)
            report.added += len(delta.added)
            report.changed += len(delta.changed)
            report.removed += len(delta.removed)
        step.adopt(last=last)
        return [*delta.added, *delta.changed, *delta.removed]

    def _commit_halves(
        self,
        names: Sequence[ObjectName],
        report: Report[K],
        error: CommitError,
        before: Mapping[ObjectName, Rendered[K, V]] | None = None,
    ) -> list[K]:
        """Commit what can be committed of `names`, whose common transaction was refused with `error`."""
        if len(names) == 1:
            return self._isolate(names[0], error, report, before)
        done: list[K] = []
        middle = len(names) // 2
        for half in (names[:middle], names[middle:]):
            try:
                done += self._commit(half, report)
            except CommitError as refused:
                done += self._commit_halves(half, report, refused, before)
        return done

    def _isolate(
        self,
        name: ObjectName,
        error: CommitError,
        report: Report[K],
        before: Mapping[ObjectName, Rendered[K, V]] | None,
    ) -> list[K]:
        """Keep a Service's old objects."""
        if name == NODE:
            self._trusted = False
            raise error
        self._isolated[name] = error
        self._kept[name] = (self._belief.services if before is None else before).get(name)
        if before is not None:
            try:
                return self._commit([name], report)
            except CommitError:
                self._kept[name] = None
        return []
