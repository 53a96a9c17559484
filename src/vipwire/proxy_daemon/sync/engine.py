"""Takes events to the kernel for all families: store, planners, reconcilers. The loop drives it.

    apply(event)   updates the store
    sync(now)      plans, renders, compares and commits the Services that the events touched

Commits nothing before every kind of object has been listed once: an empty plan would cut live connections.
"""

import contextlib
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from msgspec import Struct, field

from vipwire.errors import CommitError, DecodeError, HaltedError, VipwireError
from vipwire.logging import log
from vipwire.model.names import ObjectName, ServicePortName
from vipwire.model.net import Family
from vipwire.model.node import Node
from vipwire.model.problem import Problem
from vipwire.modes.spec import Mode
from vipwire.plan.ejection import EjectionNote, EndpointKey, Tallies
from vipwire.plan.node import NodePlan
from vipwire.plan.plan import ServicePlan
from vipwire.plan.planner import PlanChange, Planner
from vipwire.process_lifecycle.supervision import shorten_error
from vipwire.proxy_daemon.sync.node_plan import merge_known_facts
from vipwire.reconcile.backend import Backend, Prompt, ReadsAhead
from vipwire.reconcile.pacer import Pacer
from vipwire.reconcile.reconciler import NotBriefError, Reconciler, Report
from vipwire.watched_objects.event import Event
from vipwire.watched_objects.store import Store

FEW: Final = 16
"""The largest number of Services for a sync inside the event loop."""

MakeNodePlan = Callable[[Family, Store], NodePlan]
"""Builds a family's plan of this node from the current objects."""


class Outcome(Struct):
    """The result of one sync of one family; `seconds` is its duration. With an `error` the old rules stay.

    `full`: the sync read the kernel; `first`: the first successful one. `unasked` are changes without an event. `by`
    is the program that has changed the kernel, if the kernel told.
    """

    family: Family
    seconds: float = 0.0
    report: Report[Any] = field(default_factory=Report)
    changes: dict[ObjectName, PlanChange] = field(default_factory=dict)
    error: CommitError | None = None
    first: bool = False
    unasked: set[ObjectName] = field(default_factory=set)
    by: str = ""

    @property
    def full(self) -> bool:
        return self.report.observed is not None

    @property
    def rules_were_missing(self) -> bool:
        """Whether connections may have begun without vipwire's rules: before the first sync, or before a repair."""
        return self.first or bool(self.report.repaired)


class Line:
    """One family: its plans, objects and pacing. Commits go to `through` instead of the mode's backend, if given."""

    def __init__(self, family: Family, backend: Mode, pacer: Pacer, through: Backend[Any, Any] | None = None) -> None:
        self.family, self.backend, self.pacer = family, backend, pacer
        committing = through or backend
        self.reconciler: Reconciler[Any, Any] = Reconciler(committing)
        self.prompt = isinstance(committing, Prompt) and committing.prompt
        self.planner: Planner | None = None
        self._unrendered: dict[ObjectName, str] = {}
        self.synced = False
        self._changes: dict[ObjectName, PlanChange] = {}
        self._unasked: set[ObjectName] = set()
        self._suspect = ""
        self.outlying: set[ObjectName] = set()
        """Services with an endpoint that was ejected since their last planning."""

    @property
    def plans(self) -> Mapping[ObjectName, ServicePlan]:
        return self.planner.plans if self.planner else {}

    def set_node(self, node: NodePlan, store: Store, now: float) -> None:
        """Set the node's plan; if it changed, plan and render every Service again.

        The node comes first, because a Service's rendering may depend on it even if the Service's plan is the same.
        """
        if self.planner is None:
            self.planner = Planner(node)
            self.reconciler.desire_node(self.backend.render_node(node))
        elif self.planner.node != node:
            self.reconciler.desire_node(self.backend.render_node(node))
            changes = self.planner.move(node, store.view, now)
            self._render_changes(changes)
            for name, plan in self.planner.plans.items():
                if name not in changes:
                    self._render_service(name, plan)

    def plan(self, names: Mapping[ObjectName, bool], store: Store, now: float) -> None:
        """Plan the changed Services: completely (True), or only their endpoints."""
        if self.planner is None:
            return
        changes = self.planner.update(names, store.view, now, names)
        if changes:
            self._render_changes(changes)
            self._unasked -= changes.keys()

    def observe(self, tallies: Tallies, now: float) -> None:
        """Count results of new connections to endpoints."""
        if self.planner is not None:
            self.outlying |= self.planner.ejections.take_tallies(tallies, now)

    def eject(self, store: Store, now: float) -> None:
        """Plan the Services whose ejected endpoints changed."""
        if self.planner is None:
            return
        names, self.outlying = self.outlying, set()
        changes = self.planner.readmit(store.view, now)
        changes.update(self.planner.update(names - changes.keys(), store.view, now) if names else {})
        self._unasked |= changes.keys() - self._changes.keys()
        self._render_changes(changes)

    def planning_due(self, now: float) -> float | None:
        """Return the seconds until time alone changes a plan (slow start); None if never."""
        at = self.planner.due() if self.planner else None
        return None if at is None else max(0.0, at - now)

    def raise_weights(self, store: Store, now: float) -> None:
        """Plan the changes of slow start. Only weights change, so no other part needs to follow."""
        for name, change in self.planner.raise_weights(store.view, now).items() if self.planner else ():
            if name in self._changes:
                self._changes[name] = PlanChange(self._changes[name].old, change.new)
            self._render_service(name, change.new)

    def _render_changes(self, changes: Mapping[ObjectName, PlanChange]) -> None:
        for name, change in changes.items():
            earlier = self._changes.get(name)
            self._changes[name] = PlanChange(earlier.old if earlier else change.old, change.new)
            self._render_service(name, change.new)

    def _render_service(self, name: ObjectName, plan: ServicePlan | None) -> None:
        """Render a Service. If rendering fails, its old objects stay and the other Services continue."""
        try:
            self.reconciler.desire(name, plan)
        except HaltedError:
            raise
        except Exception as error:  # noqa: BLE001  # an error in one Service must not stop the others
            said = shorten_error(error)
            if self._unrendered.get(name) != said:
                log.error("cannot render a Service; keeping its old rules", service=name, error=said)
            self._unrendered[name] = said
        else:
            self._unrendered.pop(name, None)

    def read_ahead(self) -> None:
        """Read the kernel's state for the first sync, if the mode can. The sync itself reports errors."""
        if isinstance(self.backend, ReadsAhead):
            with contextlib.suppress(OSError, VipwireError):
                self.backend.read_ahead()

    def alarm(self, suspect: str, now: float) -> bool:
        """Check the kernel soon: `suspect` may have changed it. Report whether no check was due."""
        self._suspect = suspect
        return self.pacer.alarm(now)

    def may_have_drifted(self) -> bool:
        """Ask the mode whether others may have changed the kernel; if so or unknown, the next sync reads it."""
        try:
            return self.reconciler.verify()
        except (OSError, VipwireError):
            self.reconciler.distrust()
            return True

    def housekeep(self) -> None:
        """Run the mode's due housekeeping. If the kernel does not answer, the next sync reads the kernel."""
        if self.backend.housekeeping_due() == 0:
            try:
                self.backend.housekeep()
            except (OSError, VipwireError):
                self.reconciler.distrust()

    def sync(self, now: float, *, brief: bool = False) -> Outcome:
        """Bring the kernel to the plan. Raise NotBriefError if `brief` is set and the sync would take longer."""
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
            outcome.error = CommitError(f"cannot decode the kernel's answer: {error}")
        outcome.seconds = time.perf_counter() - began
        if outcome.error or self.reconciler.isolated:
            self.pacer.record_failure(now + outcome.seconds, blocked=outcome.error is not None)
        else:
            self.pacer.record_success(now + outcome.seconds)
        if outcome.full:
            self.pacer.record_check(now + outcome.seconds, outcome.seconds)
            outcome.by, self._suspect = self._suspect, ""
        if outcome.error is None:
            outcome.first, self.synced = not self.synced, True
            outcome.changes, self._changes = self._changes, {}
            outcome.unasked, self._unasked = self._unasked, set()
        return outcome


class Engine:
    """All families together."""

    def __init__(
        self, lines: Iterable[Line], node_name: str, make_node_plan: MakeNodePlan, known_node: Node | None = None
    ) -> None:
        self.lines = tuple(lines)
        self.store = Store()
        self._node_name = node_name
        self._make_node_plan = make_node_plan
        self.known_node = known_node
        """This machine's Node, completed by the last known value of each missing fact."""
        self._node_stale = True
        self._calm_until = float("-inf")

    @property
    def node(self) -> Node | None:
        return self.store.nodes.get(self._node_name)

    @property
    def complete(self) -> bool:
        """Whether every kind was listed and every family had its first sync."""
        return not self.store.waiting and all(line.synced and not line.reconciler.pending for line in self.lines)

    def read_ahead(self) -> None:
        """Read the kernel in another thread while objects arrive. Must end before the first sync."""
        for line in self.lines:
            line.read_ahead()

    def halt(self) -> None:
        """End a sync that runs in another thread before its next transaction: `sync` raises HaltedError."""
        self.store.close()
        for line in self.lines:
            line.reconciler.halt()

    def apply(self, event: Event) -> tuple[Problem, ...]:
        """Put an event into the store; return its new problems."""
        problems = self.store.apply(event)
        if self.store.node_changed:
            self.known_node = merge_known_facts(self.node, self.known_node)
        return problems

    def record_node_change(self) -> None:
        self._node_stale = True

    def alarm(self, suspect: str, now: float) -> bool:
        """Check the kernel soon; report whether no check was due."""
        self._calm_until = float("-inf")
        return True in [line.alarm(suspect, now) for line in self.lines if line.synced]

    @property
    def watch_version(self) -> int:
        """Changes with the result of `list_watched_endpoints`."""
        return sum([line.planner.ejections.version for line in self.lines if line.planner is not None])

    def list_watched_endpoints(self) -> frozenset[EndpointKey]:
        planners = (line.planner for line in self.lines if line.planner is not None)
        return frozenset(key for planner in planners for key in planner.ejections.watched)

    def observe(self, tallies: Tallies, now: float) -> bool:
        """Count results of new connections; report whether planning is due."""
        for line in self.lines:
            line.observe(tallies, now)
        return any(line.outlying for line in self.lines)

    def take_ejection_notes(self) -> list[EjectionNote]:
        """Return and clear the ejections to report, once the kernel follows them."""
        notes: list[EjectionNote] = []
        for line in self.lines:
            if line.outlying or line.reconciler.pending:
                continue
            if line.planner is not None and line.planner.ejections.notes:
                notes += line.planner.ejections.notes
                line.planner.ejections.notes = []
        return notes

    def list_ejections(self) -> dict[tuple[ServicePortName, EndpointKey], float]:
        """Return the ejected endpoints and the end of each ejection."""
        planners = (line.planner for line in self.lines if line.planner is not None)
        return {each: until for planner in planners for each, until in planner.ejections.list_ejections().items()}

    def due(self, now: float) -> float | None:
        """Return the seconds until the next work; None if none is due before the next event."""
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
        return None if wait == float("inf") else wait

    def has_few_changes(self, now: float) -> bool:
        """Report whether only few Services changed and nothing else is due; then the loop calls `sync_few`."""
        if now >= self._calm_until or self._node_stale or self.store.node_changed or self.store.waiting:
            return False
        return self.store.touched <= FEW and False not in [line.prompt and not line.outlying for line in self.lines]

    def sync_few(self, now: float) -> list[Outcome]:
        """Sync the few changed Services. If the sync turns out longer, `sync` is due at once."""
        touched = self.store.take_touched()
        outcomes: list[Outcome] = []
        for line in self.lines:
            line.plan(touched, self.store, now)
            if line.reconciler.pending and line.pacer.due(now, pending=True) <= 0:
                try:
                    outcomes.append(line.sync(now, brief=True))
                except NotBriefError:
                    continue
                now += outcomes[-1].seconds
        return outcomes

    def sync(self, now: float) -> list[Outcome]:
        """Sync the families that are due; return each outcome."""
        if self.store.waiting:
            return []
        self._plan_services(now)
        outcomes: list[Outcome] = []
        for line in self.lines:
            if line.pacer.check_due(now) and not line.may_have_drifted():
                line.pacer.record_check(now, 0.0)
            if line.pacer.retry_due(now):
                line.reconciler.retry()
            line.housekeep()
            if line.reconciler.pending and line.pacer.due(now, pending=True) <= 0:
                outcomes.append(line.sync(now))
                now += outcomes[-1].seconds
        return outcomes

    def _plan_services(self, now: float) -> None:
        if self.store.node_changed or self._node_stale:
            self.store.node_changed = self._node_stale = False
            for line in self.lines:
                line.set_node(self._make_node_plan(line.family, self.store), self.store, now)
        if touched := self.store.take_touched():
            for line in self.lines:
                line.plan(touched, self.store, now)
        for line in self.lines:
            if line.outlying or line.planning_due(now) == 0:
                line.eject(self.store, now)
                line.raise_weights(self.store, now)
