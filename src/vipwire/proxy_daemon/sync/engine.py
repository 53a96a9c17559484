"""Takes events to the kernel, for all families: store, planners, reconcilers. The loop drives it.

    apply(event)   what is true changes
    sync(now)      the kernel follows: the Services that the events touched are planned, rendered, compared, committed

Nothing is programmed before every kind of object has been listed once: an empty plan would cut live connections.
"""

import contextlib
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from msgspec import Struct, field

from vipwire.errors import CommitError, DecodeError, VipwireError
from vipwire.model.names import ObjectName, ServicePortName
from vipwire.model.net import Family
from vipwire.model.node import Node
from vipwire.model.problem import Problem
from vipwire.modes.spec import Mode
from vipwire.plan.ejection import EjectionNote, EndpointKey, Tallies
from vipwire.plan.node import NodePlan
from vipwire.plan.plan import ServicePlan
from vipwire.plan.planner import PlanChange, Planner
from vipwire.process_lifecycle.supervision import Guard
from vipwire.proxy_daemon.sync.node_plan import complete_node
from vipwire.reconcile.backend import Backend, Prompt, ReadsAhead
from vipwire.reconcile.pacer import Pacer
from vipwire.reconcile.reconciler import LongerError, Reconciler, Report
from vipwire.watched_objects.event import Event
from vipwire.watched_objects.store import Store

FEW: Final = 16
"""Services that can be synced in a moment, if they are not unusually large."""

MakeNodePlan = Callable[[Family, Store], NodePlan]
"""Makes a family's plan of this node from the current objects."""


class Outcome(Struct):
    """The result of one sync of one family; `seconds` is its duration. With an `error` the old rules stay.

    `full` when the kernel was observed rather than believed; `first` for the first that succeeded. `unasked` are
    those of the changes that no event has brought.
    """

    family: Family
    seconds: float = 0.0
    report: Report[Any] = field(default_factory=Report)
    changes: dict[ObjectName, PlanChange] = field(default_factory=dict)
    error: CommitError | None = None
    first: bool = False
    unasked: set[ObjectName] = field(default_factory=set)

    @property
    def full(self) -> bool:
        """Whether the sync read the kernel."""
        return self.report.observed is not None


class Line:
    """One family: its plans, its objects, its pace. What is committed goes `through` another, if one is given."""

    def __init__(self, family: Family, backend: Mode, pacer: Pacer, through: Backend[Any, Any] | None = None) -> None:
        self.family, self.backend, self.pacer = family, backend, pacer
        self.reconciler: Reconciler[Any, Any] = Reconciler(through or backend)
        self.prompt = through in (None, backend) and isinstance(backend, Prompt) and backend.prompt
        self.planner: Planner | None = None
        self._guard = Guard[ObjectName](f"rules of {family.value}")
        self.synced = False
        self._changes: dict[ObjectName, PlanChange] = {}
        self._unasked: set[ObjectName] = set()
        self.outlying: set[ObjectName] = set()
        """Services of which an endpoint was ejected since they were planned."""

    @property
    def plans(self) -> Mapping[ObjectName, ServicePlan]:
        """The current plans."""
        return self.planner.plans if self.planner else {}

    def settle_node(self, node: NodePlan, store: Store, now: float) -> None:
        """Set the node's plan. If it has changed, every Service is planned and rendered again.

        The node comes first: how a Service is rendered may depend on it, even where its plan is the same.
        """
        if self.planner is None:
            self.planner = Planner(node)
            self.reconciler.desire_node(self.backend.render_node(node))
        elif self.planner.node != node:
            self.reconciler.desire_node(self.backend.render_node(node))
            changes = self.planner.move(node, store.view, now)
            self._desire(changes)
            for name, plan in self.planner.plans.items():
                if name not in changes:
                    self._render(name, plan)

    def plan(self, names: Mapping[ObjectName, bool], store: Store, now: float) -> None:
        """Plan the Services that changed: themselves (True), or only their endpoints."""
        if self.planner is None:
            return
        changes = self.planner.update(names, store.view, now, names)
        if changes:
            self._desire(changes)
            self._unasked -= changes.keys()

    def observe(self, tallies: Tallies, now: float) -> None:
        """Take in what became of new connections to endpoints."""
        if self.planner is not None:
            self.outlying |= self.planner.ejections.take(tallies, now)

    def eject(self, store: Store, now: float) -> None:
        """Plan the Services of which an endpoint is ejected, or is no longer."""
        if self.planner is None:
            return
        names, self.outlying = self.outlying, set()
        changes = self.planner.readmit(store.view, now)
        changes.update(self.planner.update(names - changes.keys(), store.view, now) if names else {})
        self._unasked |= changes.keys() - self._changes.keys()
        self._desire(changes)

    def planning_due(self, now: float) -> float | None:
        """Return the seconds until time alone changes a plan; None if it does not."""
        at = self.planner.due() if self.planner else None
        return None if at is None else max(0.0, at - now)

    def ripen(self, store: Store, now: float) -> None:
        """Plan what slow start has changed. These are other weights only: nothing but the kernel has to follow."""
        for name, change in self.planner.ripen(store.view, now).items() if self.planner else ():
            if name in self._changes:
                self._changes[name] = PlanChange(self._changes[name].old, change.new)
            self._render(name, change.new)

    def _desire(self, changes: Mapping[ObjectName, PlanChange]) -> None:
        for name, change in changes.items():
            earlier = self._changes.get(name)
            self._changes[name] = PlanChange(earlier.old if earlier else change.old, change.new)
            self._render(name, change.new)

    def _render(self, name: ObjectName, plan: ServicePlan | None) -> None:
        """Render a Service. One that cannot be rendered keeps its objects; the others go on."""
        try:
            self.reconciler.desire(name, plan)
        except Exception as error:  # noqa: BLE001  # whatever a Service causes: all others go on
            self._guard.failed(name, error)
        else:
            self._guard.forget(name)

    def read_ahead(self) -> None:
        """Read what the first sync compares with, where the mode can. What goes wrong here, that sync finds again."""
        if isinstance(self.backend, ReadsAhead):
            with contextlib.suppress(OSError, VipwireError):
                self.backend.read_ahead()

    def drifted(self) -> bool:
        """Ask the mode whether others may have changed the kernel. If so or unknown, the next sync reads it."""
        try:
            return self.reconciler.verify()
        except (OSError, VipwireError):
            self.reconciler.distrust()
            return True

    def housekeep(self) -> None:
        """Run what the mode has due. If the kernel does not answer, the next sync reads it."""
        if self.backend.housekeeping_due() == 0:
            try:
                self.backend.housekeep()
            except (OSError, VipwireError):
                self.reconciler.distrust()

    def sync(self, now: float, *, brief: bool = False) -> Outcome:
        """Bring the kernel to the plan. Raise LongerError if that was to be `brief` and cannot be."""
        outcome = Outcome(self.family)
        began = time.perf_counter()
        try:
            outcome.report = self.reconciler.sync(brief=brief)
        except CommitError as error:
            outcome.error = error
        except OSError as error:
            self.reconciler.distrust()
            outcome.error = CommitError(f"the kernel does not answer: {error}", errno=error.errno or 0)
        except DecodeError as error:
            self.reconciler.distrust()
            outcome.error = CommitError(f"the kernel's answer is not understood: {error}")
        outcome.seconds = time.perf_counter() - began
        if outcome.error or self.reconciler.isolated:
            self.pacer.failed(now + outcome.seconds, blocked=outcome.error is not None)
        else:
            self.pacer.succeeded(now + outcome.seconds)
        if outcome.full:
            self.pacer.checked(now + outcome.seconds, outcome.seconds)
        if outcome.error is None:
            outcome.first, self.synced = not self.synced, True
            outcome.changes, self._changes = self._changes, {}
            outcome.unasked, self._unasked = self._unasked, set()
        return outcome


class Engine:
    """All families together."""

    def __init__(self, lines: Iterable[Line], node_name: str, make_node_plan: MakeNodePlan) -> None:
        self.lines = tuple(lines)
        self.store = Store()
        self._node_name = node_name
        self._make_node_plan = make_node_plan
        self.known_node: Node | None = None
        """Our Node with the last known value of each fact that the object no longer states."""
        self._node_stale = True
        self._calm_until = float("-inf")

    @property
    def node(self) -> Node | None:
        """Our Node object, if there is one."""
        return self.store.nodes.get(self._node_name)

    @property
    def complete(self) -> bool:
        """Whether all families have had their first sync, after every kind was listed."""
        return not self.store.waiting and all(line.synced and not line.reconciler.pending for line in self.lines)

    def read_ahead(self) -> None:
        """Read the kernel while the objects arrive, in a thread of its own. It must be over before the first sync."""
        for line in self.lines:
            line.read_ahead()

    def apply(self, event: Event) -> tuple[Problem, ...]:
        """Put an event into the store; return its problems that are new."""
        problems = self.store.apply(event)
        if self.store.node_changed:
            self.known_node = complete_node(self.node, self.known_node)
        return problems

    def node_moved(self) -> None:
        """Note that this machine's addresses have changed."""
        self._node_stale = True

    @property
    def watch_version(self) -> int:
        """A number that changes with what `watched` returns."""
        return sum([line.planner.ejections.version for line in self.lines if line.planner is not None])

    def watched(self) -> frozenset[EndpointKey]:
        """Name the endpoints of which somebody wants to know whether they answer."""
        planners = (line.planner for line in self.lines if line.planner is not None)
        return frozenset(key for planner in planners for key in planner.ejections.watched)

    def observe(self, tallies: Tallies, now: float) -> bool:
        """Take in what became of new connections; tell whether there is something to plan."""
        for line in self.lines:
            line.observe(tallies, now)
        return any(line.outlying for line in self.lines)

    def ejection_notes(self) -> list[EjectionNote]:
        """Take away what there is to report of ejections, once the kernel has followed them."""
        notes: list[EjectionNote] = []
        for line in self.lines:
            if line.outlying or line.reconciler.pending:
                continue
            if line.planner is not None and line.planner.ejections.notes:
                notes += line.planner.ejections.notes
                line.planner.ejections.notes = []
        return notes

    def ejected(self) -> dict[tuple[ServicePortName, EndpointKey], float]:
        """Return what is ejected now, and until when."""
        planners = (line.planner for line in self.lines if line.planner is not None)
        return {each: until for planner in planners for each, until in planner.ejections.until().items()}

    def due(self, now: float) -> float | None:
        """Return the seconds until something is to be done; None if nothing is before the next event."""
        if self.store.waiting:
            return None
        dirty = self.store.dirty or self.store.node_changed or self._node_stale
        times: list[float] = []
        calm = not dirty
        for line in self.lines:
            pending = dirty or bool(line.outlying) or line.reconciler.pending
            calm = calm and not pending
            times.append(line.pacer.due(now, pending=pending))
            if (wait := line.backend.housekeeping_due()) is not None:
                times.append(wait)
            if (wait := line.planning_due(now)) is not None:
                times.append(wait)
        wait = min(times)
        self._calm_until = now + wait if calm else float("-inf")
        return wait

    def brief(self, now: float) -> bool:
        """Tell whether nothing is to be done but that a few Services have changed: then `sync_few` does it."""
        if now >= self._calm_until or self._node_stale or self.store.node_changed or self.store.waiting:
            return False
        return self.store.touched <= FEW and False not in [line.prompt and not line.outlying for line in self.lines]

    def sync_few(self, now: float) -> list[Outcome]:
        """Sync the few Services that have changed. If that turns out to be more, `sync` is due at once."""
        touched = self.store.take_touched()
        outcomes: list[Outcome] = []
        for line in self.lines:
            line.plan(touched, self.store, now)
            if line.reconciler.pending and line.pacer.due(now, pending=True) <= 0:
                try:
                    outcomes.append(line.sync(now, brief=True))
                except LongerError:
                    continue
                now += outcomes[-1].seconds
        return outcomes

    def sync(self, now: float) -> list[Outcome]:
        """Sync the families that have something to do; return the outcome of each."""
        if self.store.waiting:
            return []
        self._plan(now)
        outcomes: list[Outcome] = []
        for line in self.lines:
            if line.pacer.check_due(now) and not line.drifted():
                line.pacer.checked(now, 0.0)
            if line.pacer.retry_due(now):
                line.reconciler.retry()
            line.housekeep()
            if line.reconciler.pending and line.pacer.due(now, pending=True) <= 0:
                outcomes.append(line.sync(now))
                now += outcomes[-1].seconds
        return outcomes

    def _plan(self, now: float) -> None:
        if self.store.node_changed or self._node_stale:
            self.store.node_changed = self._node_stale = False
            for line in self.lines:
                line.settle_node(self._make_node_plan(line.family, self.store), self.store, now)
        if touched := self.store.take_touched():
            for line in self.lines:
                line.plan(touched, self.store, now)
        for line in self.lines:
            if line.outlying or line.planning_due(now) == 0:
                line.eject(self.store, now)
                line.ripen(self.store, now)
