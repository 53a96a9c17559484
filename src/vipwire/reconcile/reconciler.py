"""Keeps the kernel's objects equal to the desired ones; the cost follows the changes.

    desired    every Service's wanted objects   (`desire` changes it)
    belief     the kernel's assumed content     (a commit changes it; `observe` replaces it)

Normally the reconciler compares pending Services only. At start, and when another program may have changed the
kernel, it observes the kernel: each Service adopts its correct objects, and unclaimed ones are removed. So a new
process on a programmed kernel has nothing to commit.

The reconciler retries a refused transaction in halves, until the refused Services are isolated: these keep their old
objects, are reported, and are tried again when they change or at `retry`. If the kernel may hold a part of a refused
transaction, the reconciler observes the kernel before it retries.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Generic, TypeVar

from msgspec import Struct, field

from vipwire.errors import BusyError, CommitError, HaltedError, VipwireError
from vipwire.model.names import ObjectName
from vipwire.plan.plan import ServicePlan
from vipwire.reconcile.backend import Backend, Enlarging, Expecting, Rendered
from vipwire.reconcile.delta import Delta

K = TypeVar("K")
V = TypeVar("V")

_MISSING = object()


class Belief(Struct, Generic[K, V]):
    """The assumed content of the kernel.

    `services` maps Services to their objects, `sharers` counts the owners of shared objects, `unowned` holds observed
    objects without an owner so far.
    """

    services: dict[ObjectName, Rendered[K, V]] = field(default_factory=dict)
    sharers: dict[K, int] = field(default_factory=dict)
    unowned: dict[K, V] = field(default_factory=dict)

    def objects(self) -> Iterator[Mapping[K, V]]:
        """Yield all objects in the kernel; shared ones several times."""
        yield self.unowned
        for rendered in self.services.values():
            yield rendered.own
            yield rendered.shared


class Transaction(Generic[K, V]):
    """Collects Services, computes their common difference, and after the commit updates the belief."""

    def __init__(self, belief: Belief[K, V]) -> None:
        self._belief = belief
        self._wanted: dict[ObjectName, Rendered[K, V] | None] = {}
        self._gained: dict[K, V] = {}
        self._lost: dict[K, V] = {}
        self._shares: dict[K, int] = {}
        self._left: dict[K, V] = {}
        """Shared objects that a Service gives up; lost if no other Service has them."""

    def add(self, name: ObjectName, wanted: Rendered[K, V] | None) -> None:
        """Add one Service; None: it should have no objects."""
        self._wanted[name] = wanted
        old = self._belief.services.get(name)
        if wanted is not None and old is not None:
            for gaining, one, other in ((self._gained, wanted.own, old.own), (self._lost, old.own, wanted.own)):
                for key, value in one.items():
                    if other.get(key, _MISSING) != value:
                        gaining[key] = value
            if wanted.shared == old.shared:
                return
        elif wanted is not None:
            self._gained.update(wanted.own)
        elif old is not None:
            self._lost.update(old.own)
        if wanted is not None:
            self._share(wanted.shared)
        if old is not None:
            self._give_up(old.shared)

    def _share(self, shared: Mapping[K, V]) -> None:
        shares, sharers, gained = self._shares, self._belief.sharers, self._gained
        for key, value in shared.items():
            shares[key] = shares.get(key, 0) + 1
            if key not in sharers:
                gained[key] = value

    def _give_up(self, shared: Mapping[K, V]) -> None:
        for key, value in shared.items():
            self._shares[key] = self._shares.get(key, 0) - 1
            self._left[key] = value

    def delta(self, *, last: bool) -> Delta[K, V]:
        """Compute the transaction; with `last`, also remove unclaimed objects.

        An object that moves from one Service to another is neither added nor removed. The objects to add are not
        copied: at a first sync they are all objects.
        """
        gained, lost, sharers = self._gained, self._lost, self._belief.sharers
        lost.update((key, value) for key, value in self._left.items() if sharers[key] + self._shares[key] <= 0)
        unowned = self._belief.unowned
        if not lost and not unowned:
            return Delta(added=gained)
        if last and not lost and gained == unowned:
            return Delta()  # a programmed kernel: comparing as a whole avoids hashing every key
        delta: Delta[K, V] = Delta(removed=lost)
        taken = 0
        for key, new in gained.items():
            if key in lost:
                old = lost.pop(key)
            elif key in unowned:
                old = unowned[key]
                taken += 1
            else:
                delta.added[key] = new
                continue
            if old != new:
                delta.changed[key] = (old, new)
        if last and taken < len(unowned):
            delta.removed.update((key, old) for key, old in unowned.items() if key not in gained)
        return delta

    def adopt(self, *, last: bool) -> None:
        """Update the belief after the commit."""
        belief = self._belief
        for name, wanted in self._wanted.items():
            if wanted is None:
                belief.services.pop(name, None)
            else:
                belief.services[name] = wanted
        if not belief.sharers:
            belief.sharers = self._shares  # no copy: at a first sync they are many
        else:
            for key, by in self._shares.items():
                count = belief.sharers.get(key, 0) + by
                if count > 0:
                    belief.sharers[key] = count
                else:
                    del belief.sharers[key]
        if last:
            belief.unowned = {}
        elif belief.unowned:
            for key in (*self._gained, *self._shares):
                belief.unowned.pop(key, None)


NODE = ObjectName("", "")
"""The name for objects that belong to no Service."""


class NotBriefError(VipwireError):
    """A `brief` sync would have to read the kernel, to split a refused transaction, or to enlarge an object."""


class Report(Struct, Generic[K]):
    """The result of one sync. Counts are of kernel objects; `size` is bytes sent to the kernel.

    `observed` is the number of objects read, None without reading. `repaired` are objects that another program had
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
        self._enlarging: Enlarging[K, V] | None = backend if isinstance(backend, Enlarging) else None
        self._desired: dict[ObjectName, Rendered[K, V]] = {}
        self._belief = Belief[K, V]()
        self._pending: dict[ObjectName, None] = {}
        self._isolated: dict[ObjectName, CommitError] = {}
        self._kept: dict[ObjectName, Rendered[K, V] | None] = {}
        self._before: Mapping[ObjectName, Rendered[K, V]] = {}
        self._trusted = False
        self._started = self._halted = False
        self.isolated: Mapping[ObjectName, CommitError] = MappingProxyType(self._isolated)

    @property
    def pending(self) -> bool:
        """Whether the next sync has work."""
        return bool(self._pending) or not self._trusted

    def desire_node(self, objects: Mapping[K, V]) -> None:
        """Set the desired objects that belong to no Service."""
        self._desired[NODE] = Rendered(objects)
        self._pending[NODE] = None

    def desire(self, name: ObjectName, plan: ServicePlan | None) -> None:
        """Set the desired objects of one Service; None: none."""
        if self._halted:
            raise HaltedError
        if plan is None:
            self._desired.pop(name, None)
        else:
            self._desired[name] = self._backend.render(plan)
        self._forgive(name)

    def desired(self) -> dict[K, V]:
        return {key: value for each in self._desired.values() for key, value in {**each.own, **each.shared}.items()}

    def retry(self) -> None:
        """Try the isolated Services again at the next sync."""
        for name in list(self._isolated):
            self._forgive(name)

    def verify(self) -> bool:
        """Ask whether other programs may have changed the kernel. If so, return True, and the next sync observes."""
        if self._trusted and self._backend.changed():
            self._trusted = False
        return not self._trusted

    def distrust(self) -> None:
        """Make the next sync observe the kernel."""
        self._trusted = False

    def halt(self) -> None:
        """Let `desire` and `sync` raise HaltedError from now on, also a `sync` that runs in another thread."""
        self._halted = True

    def sync(self, *, brief: bool = False) -> Report[K]:
        """Bring the kernel to the desired state, as far as the kernel accepts it.

        Raise CommitError if it refuses the objects of no Service, on which all others depend. Raise NotBriefError if
        `brief` is set and the sync would be longer: nothing is lost, and the next sync does the work.
        """
        if brief and not self._trusted:
            raise NotBriefError
        report: Report[K] = Report()  # not Report[K](): the subscript takes longer than rendering a Service
        names = list(self._pending)
        report.services = len(names)
        names += self._yield_objects(names)
        if self._trusted:
            try:
                self._commit(names, report, brief=brief)
            except CommitError as error:
                if brief:
                    raise NotBriefError from error
                if not self.verify():
                    self._commit_halves(names, report, error, dict(self._belief.services))
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

    def _yield_objects(self, names: Iterable[ObjectName]) -> list[ObjectName]:
        """Remove from isolated Services objects that others of `names` should have; return those isolated Services.

        Otherwise two Services would own one object, and one that drops it would remove it from the other.
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
        self._observe()
        before, observed = self._before, self._belief.unowned
        expected = self._collect_expected(pending, before, observed) if self._started else set()
        report.observed = len(observed)
        names = list(self._desired)
        self._yield_objects(names)
        repairs: list[K] = []
        try:
            repairs += self._commit(names, report, last=True)
        except BusyError:
            raise
        except CommitError as error:
            self._observe_refused()
            repairs += self._commit([NODE], report)
            repairs += self._commit_halves([name for name in names if name != NODE], report, error, before)
            repairs += self._commit(names, report, last=True)
        if self._started:
            report.repaired = [key for key in repairs if key not in expected]
        self._trusted = self._started = True
        self._before = {}

    def _observe(self) -> None:
        # A try that failed halfway has overwritten the previous belief, which the next one still needs.
        self._before = {**self._before, **self._belief.services}
        if isinstance(self._backend, Expecting):
            self._backend.expect(self._desired.values())
        self._belief = Belief(unowned=self._backend.observe())

    def _observe_refused(self) -> None:
        """Observe the kernel after a refused transaction, if the kernel may hold a part of it."""
        if self._backend.changed():
            self._trusted = False
            self._observe()

    def _collect_expected(
        self, names: Sequence[ObjectName], before: Mapping[ObjectName, Rendered[K, V]], observed: Mapping[K, V]
    ) -> set[K]:
        """Collect the objects of pending Services that the kernel has as before or as wanted, also by their absence.

        A difference in these is no change by another program.
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
        return {
            key
            for key in {**had, **wanted}
            if observed.get(key, _MISSING) in (had.get(key, _MISSING), wanted.get(key, _MISSING))
        }

    def _commit(
        self, names: Iterable[ObjectName], report: Report[K], *, last: bool = False, brief: bool = False
    ) -> list[K]:
        """Commit missing objects of some Services; `last`: also remove unclaimed objects. Return the changed keys."""
        step = Transaction(self._belief)
        for name in names:
            if self._halted:
                raise HaltedError
            step.add(name, self._wanted(name))
        delta = step.delta(last=last)
        if delta:
            if self._enlarging is not None and self._enlarging.lacks_room(delta):
                if brief:
                    raise NotBriefError
                report.size += self._enlarging.enlarge(delta, self._belief.objects())
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
        before: Mapping[ObjectName, Rendered[K, V]],
    ) -> list[K]:
        """Commit the acceptable Services of `names`, whose common transaction the kernel refused with `error`.

        `before` are the objects that refused Services keep.
        """
        if len(names) == 1:
            return self._isolate(names[0], error, report, before)
        done: list[K] = []
        middle = len(names) // 2
        for half in (names[:middle], names[middle:]):
            try:
                done += self._commit(half, report)
            except BusyError:
                raise
            except CommitError as refused:
                self._observe_refused()
                done += self._commit_halves(half, report, refused, before)
        return done

    def _isolate(
        self, name: ObjectName, error: CommitError, report: Report[K], before: Mapping[ObjectName, Rendered[K, V]]
    ) -> list[K]:
        if name == NODE:
            self._trusted = False
            raise error
        self._isolated[name] = error
        self._kept[name] = before.get(name)
        try:
            return self._commit([name], report)
        except CommitError:
            self._observe_refused()
            self._kept[name] = None
        return []
