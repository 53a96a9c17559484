"""Reports a sync to operators: one log line, metrics, and Events about Services and the Node."""

from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from functools import partial
from typing import Any, Final, Protocol

from vipwire.kube.events import EventRecorder, EventType, Subject
from vipwire.logging import log
from vipwire.model.names import ObjectName
from vipwire.model.net import Family
from vipwire.model.problem import Problem
from vipwire.plan.ejection import EjectionNote
from vipwire.plan.plan import ServicePlan
from vipwire.proxy_daemon.serve.metrics import Metrics
from vipwire.proxy_daemon.sync.engine import Engine, Line, Outcome
from vipwire.proxy_daemon.sync.sync_metrics import SyncMetrics
from vipwire.watched_objects.event import Kind

_NO_PROBLEMS: Final[AbstractSet[Problem]] = frozenset()
_EXAMPLES = 5
_RESTLESS: Final = 4
"""So many repairs, each less than two sync periods after the one before, are reported as a fight."""
_LONGEST = 20_000
_API_VERSIONS = {
    Kind.SERVICE.value: "v1",
    Kind.ENDPOINT_SLICE.value: "discovery.k8s.io/v1",
    Kind.NODE.value: "v1",
    Kind.SERVICE_CIDR.value: "networking.k8s.io/v1",
}
"""API versions of the kinds that Events can be about."""


class Note(Protocol):
    """Keeps an incident for `vipwire view`."""

    def __call__(self, what: str, about: str, now: float, *, family: str = "", service: str = "") -> None: ...


class Reporter:
    """Reports to the log, the metrics, the API server and the page."""

    def __init__(
        self,
        engine: Engine,
        metrics: Metrics,
        recorder: EventRecorder | None,
        node_name: str,
        note: Note = lambda *_, **__: None,
    ) -> None:
        self._engine, self._metrics, self._recorder, self._note = engine, metrics, recorder, note
        self._node_name, self._measure = node_name, SyncMetrics(engine, metrics)
        self._isolated: dict[Family, frozenset[ObjectName]] = {}
        self._errors: dict[Family, str] = {}
        self._told: set[Problem] = set()
        self._repaired: dict[Family, tuple[float, int]] = {}
        self._node_exists = True
        for kind in Kind:  # counted on reading, so that one event does not cost a count of all objects
            metrics.object_problems.labels(kind=kind.value).set_function(partial(self._count_known, kind.value))

    def _count_known(self, kind: str) -> float:
        return sum(problem.kind == kind for problem in self._engine.store.problems)

    def report_start(self) -> None:
        self.report_node_event("Starting", "vipwire starts")

    def report_node_event(self, reason: str, message: str, kind: EventType = EventType.NORMAL) -> None:
        if self._recorder:
            node = self._engine.node
            subject = Subject("Node", self._node_name, uid=node.uid if node else self._node_name)
            self._recorder.record(subject, reason, message, kind)

    def report_node(self, *, exists: bool) -> None:
        """Log once that the Node does not exist, and once that it exists again."""
        if exists == self._node_exists:
            return
        self._node_exists = exists
        if exists:
            log.info("the Node exists", node=self._node_name)
        else:
            log.warning(describe_missing_node(self._node_name))

    def report_problems(self, problems: Iterable[Problem]) -> None:
        for problem in problems:
            log.warning(
                "invalid object",
                kind=problem.kind,
                object=problem.object,
                field=problem.field,
                reason=problem.message,
            )
            self._record_event(problem.kind, problem.object, "InvalidField", f"{problem.field}: {problem.message}")

    def report_sync(self, line: Line, outcome: Outcome, now: float) -> None:
        """Report one sync of one family. `now` is seconds since the epoch."""
        self._measure.count_sync(line, outcome, now)
        if outcome.error is not None:
            self._report_failure(line, outcome, now)
            return
        self._errors.pop(line.family, None)
        self._report_annotations(line, outcome)
        self._report_conflicts(line, outcome)
        self._report_isolations(line, now)
        if log.enabled(2):
            _log_changes(line.family, outcome)
        if outcome.report.repaired:
            self._report_repairs(line, outcome.report.repaired, outcome.by, now)
        _log_sync(line.family, outcome)

    def _report_repairs(self, line: Line, repaired: Sequence[Any], by: str, now: float) -> None:
        family = line.family.value
        examples = ", ".join(line.backend.describe(key) for key in repaired[:_EXAMPLES])
        self._metrics.kernel_drift_repairs_total.labels(ip_family=family).inc()
        log.warning(
            "repaired changes of other programs in the kernel",
            ip_family=family,
            objects=len(repaired),
            examples=examples,
            **({"by": by} if by else {}),
        )
        more = ", …" if len(repaired) > _EXAMPLES else ""
        author = f", changed by {by}" if by else ""
        self._note("repaired", f"{len(repaired)} objects: {examples}{more}{author}", now, family=family)
        message = f"{family}: {by or 'other programs'} had changed {len(repaired)} objects: {examples}"
        self.report_node_event("KernelStateRepaired", message, EventType.WARNING)
        self._count_repair(line, by, now)

    def _count_repair(self, line: Line, by: str, now: float) -> None:
        """Log once that a program changes the kernel again and again."""
        last, row = self._repaired.get(line.family, (0.0, 0))
        row = row + 1 if now - last < 2 * line.pacer.period else 1
        self._repaired[line.family] = now, row
        if row == _RESTLESS:
            log.warning(
                "another program changes vipwire's rules again and again; the next repairs take up to a sync period",
                ip_family=line.family.value,
                sync_period=f"{line.pacer.period:g}s",
                **({"by": by} if by else {}),
            )

    def _report_failure(self, line: Line, outcome: Outcome, now: float) -> None:
        text = str(outcome.error)
        if self._errors.get(line.family) == text:
            log.detail(2, "sync failed again", ip_family=line.family.value, error=text)
            return
        self._errors[line.family] = text
        transaction = outcome.error.transaction if outcome.error else ""
        log.error(
            "sync failed; the old rules stay",
            ip_family=line.family.value,
            error=text,
            transaction=_shorten_transaction(transaction),
        )
        self._note("failed", f"the old rules stay: {text}", now, family=line.family.value)
        self.report_node_event("SyncFailed", f"{line.family.value}: {text}", EventType.WARNING)

    def _report_conflicts(self, line: Line, outcome: Outcome) -> None:
        for name, change in outcome.changes.items():
            if change.new is None or not change.new.lost:
                continue
            before = set(change.old.lost) if change.old else set()
            for key, winner in change.new.lost:
                if (key, winner) in before:
                    continue
                message = (
                    f"{key} belongs to Service {winner}, which is older, has it as its ClusterIP or is the API server"
                )
                log.warning("conflicting Services", service=name, ip_family=line.family.value, reason=message)
                self._report_about_service(name, "FrontendConflict", message)

    def _report_annotations(self, line: Line, outcome: Outcome) -> None:
        """Report annotations without effect: once, although both families' plans have them."""
        for change in outcome.changes.values():
            before, now = _find_ineffective(line, change.old), _find_ineffective(line, change.new)
            if not before and not now:
                continue
            self._told -= before - now
            self.report_problems(now - self._told)
            self._told |= now

    def _report_isolations(self, line: Line, now: float) -> None:
        family, refused = line.family, line.reconciler.isolated
        before = self._isolated.get(family, frozenset())
        if not refused and not before:
            return
        for name in refused.keys() - before:
            error = refused[name]
            self._note(
                "refused", f"the Service keeps its old rules: {error}", now, family=family.value, service=str(name)
            )
            log.error(
                "the kernel refuses a Service; keeping its old rules",
                service=name,
                ip_family=family.value,
                error=error,
                transaction=_shorten_transaction(error.transaction),
            )
            self._report_about_service(name, "KernelRefused", str(error))
        for name in before - refused.keys():
            self._note("accepted", "by the kernel again", now, family=family.value, service=str(name))
            log.info("the kernel accepts the Service again", service=name, ip_family=family.value)
        self._isolated[family] = frozenset(refused)

    def report_ejection(self, note: EjectionNote, now: float) -> None:
        """Report an ejected endpoint, or one that returned. `now` is seconds since the epoch."""
        service = str(note.port.service)
        told = {"service": note.port, "endpoint": note.endpoint}
        if not note.seconds:
            log.info("using the endpoint again; one failure ejects it", **told)
            message = f"{note.endpoint} gets new connections again"
            self._note("readmitted", message, now, service=service)
            self._report_about_service(note.port.service, "EndpointReadmitted", message, EventType.NORMAL)
            return
        how = note.how.value
        self._metrics.ejections_total.labels(failure=how).inc()
        log.warning("endpoint ejected", **told, failures=note.failures, last=how, seconds=note.seconds)
        row = f"{note.failures} in a row" if note.failures > 1 else "the first after its return"
        message = f"{note.endpoint} gets no new connections for {note.seconds:g} s: {row} failed (last: {how})"
        self._note("ejected", message, now, service=service)
        self._report_about_service(note.port.service, "EndpointEjected", message)

    def _report_about_service(
        self, name: ObjectName, reason: str, message: str, kind: EventType = EventType.WARNING
    ) -> None:
        self._record_event(Kind.SERVICE.value, name, reason, message, kind)

    def _record_event(
        self, kind: str, name: ObjectName, reason: str, message: str, type_: EventType = EventType.WARNING
    ) -> None:
        version = _API_VERSIONS.get(kind)
        if self._recorder is None or version is None:
            return
        service = self._engine.store.services.get(name) if kind == Kind.SERVICE.value else None
        subject = Subject(kind, name.name, name.namespace, service.uid if service else "", version)
        self._recorder.record(subject, reason, message, type_)


def _find_ineffective(line: Line, plan: ServicePlan | None) -> AbstractSet[Problem]:
    """Collect a Service's invalid settings and those that the mode does not support."""
    if plan is None:
        return _NO_PROBLEMS
    lacking = line.backend.find_shortcomings(plan)
    return {*plan.problems, *lacking} if lacking or plan.problems else _NO_PROBLEMS


def describe_missing_node(name: str) -> str:
    return f"there is no Node {name!r}: all endpoints count as remote (set the Node's name with --hostname-override)"


def describe_unknown_fact(name: str, path: str) -> str:
    effects = {
        "status.addresses": "vipwire serves no node ports for `primary`",
        "spec.podCIDRs": "vipwire recognises no traffic of this node's Pods",
    }
    return f"Node {name!r} has no {path}: {effects[path]}"


def _log_sync(family: Family, outcome: Outcome) -> None:
    report = outcome.report
    log.info(
        "synced",
        ip_family=family.value,
        services=report.services,
        added=report.added,
        changed=report.changed,
        removed=report.removed,
        bytes=report.size,
        **({} if report.observed is None else {"observed": report.observed}),
        seconds=round(outcome.seconds, 6),
    )


def _log_changes(family: Family, outcome: Outcome) -> None:
    for name, change in outcome.changes.items():
        what = "Service added" if change.old is None else "Service changed"
        log.detail(2, what if change.new else "Service removed", service=name, ip_family=family.value)
        for frontend in change.new.frontends if change.new and log.enabled(4) else ():
            targets = ",".join(map(str, getattr(frontend.action, "pool", ())))
            does = type(frontend.action).__name__.lower()
            log.detail(4, "frontend", service=frontend.port_name, at=frontend.key, does=does, endpoints=targets)


def _shorten_transaction(transaction: str) -> str:
    if len(transaction) <= _LONGEST:
        return transaction
    return f"{transaction[:_LONGEST]}… ({len(transaction)} characters)"
