"""Reports to the log, Events and metrics: each problem once, and again if the problem returns.

Of several replicas the leader alone records the Events of objects.
"""

import collections
import socket
import time
from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics

from vipwire.kube.events import EventRecorder, EventType, Subject
from vipwire.logging import log
from vipwire.model.names import ObjectName
from vipwire.model.problem import Problem
from vipwire_l7.run.controller import START, SyncResult
from vipwire_l7.run.desired import ProblemChange
from vipwire_l7.run.election import SECONDS
from vipwire_l7.run.rates import Rate
from vipwire_l7.watch.objects import Ingress, IngressKind
from vipwire_l7.watch.snapshot import Snapshot

_API = "networking.k8s.io/v1"
_EXAMPLES = 3
_WITHOUT_LEADER: Final = 2.0 * SECONDS
"""Seconds for which a replica that does not lead keeps Events: it records them if the leader ends before that."""
_REJECTED, _PARTLY = "Rejected", "PartlyRejected"


class _ProblemBook:
    """The present problems, by origin. Two origins may have the same one."""

    def __init__(self) -> None:
        self._found: dict[Hashable, tuple[Problem, ...]] = {}
        self._counts = collections.Counter[Problem]()
        self.kinds = collections.Counter[str]()

    def replace_problems(self, judged: Mapping[Hashable, tuple[Problem, ...]]) -> tuple[list[Problem], list[Problem]]:
        """Replace the problems of some origins; return the new problems, and those that are gone."""
        was_there: dict[Problem, bool] = {}
        for origin, found in judged.items():
            before = self._found.pop(origin, ())
            for each in (*before, *found):
                was_there.setdefault(each, self._counts[each] > 0)
            self._counts.subtract(before)
            self._counts.update(found)
            if found:
                self._found[origin] = found
        fresh = sorted(each for each, was in was_there.items() if self._counts[each] and not was)
        gone = [each for each, was in was_there.items() if was and not self._counts[each]]
        for each in was_there:
            if not self._counts[each]:
                del self._counts[each]
        self.kinds.update(each.kind for each in fresh)
        self.kinds.subtract(each.kind for each in gone)
        return fresh, gone


class _DueEvents:
    """The Events of a namespace that wait for its turn or a leader, with their times."""

    def __init__(self) -> None:
        self.problems: dict[Problem | ObjectName, float] = {}
        self.accepted: dict[Problem | ObjectName, float] = {}

    def get_events(self, each: Problem | ObjectName) -> dict[Problem | ObjectName, float]:
        return self.problems if isinstance(each, Problem) else self.accepted

    def forget(self, until: float) -> None:
        """Remove the Events that were due before a time."""
        for events in (self.problems, self.accepted):
            for each in [each for each, at in events.items() if at < until]:
                del events[each]


def _get_object(each: Problem | ObjectName) -> ObjectName:
    return each.object if isinstance(each, Problem) else each


class IngressReporter:
    """Reports problems and syncs."""

    def __init__(
        self,
        snapshot: Snapshot,
        recorder: EventRecorder | None,
        rate: Rate,
        leading: Callable[[], bool] = lambda: True,
        serves: Callable[[ObjectName], bool] = lambda _: False,
    ) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]  # the library leaves it untyped
        self.registry = CollectorRegistry()
        self._snapshot, self._recorder, self._rate = snapshot, recorder, rate
        self._leading, self._serves = leading, serves
        self._due: dict[str, _DueEvents] = {}
        """The Events of each namespace."""
        self._book, self._admitted = _ProblemBook(), set[ObjectName]()
        self._syncs = Counter(
            "vipwire_ingress_changes_total", "Changes of HAProxy", ("how", "result"), registry=self.registry
        )
        self._seconds = Histogram(
            "vipwire_ingress_change_duration_seconds",
            "Time from a change of objects to HAProxy, by kind of change",
            ("how",),
            buckets=(0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10),
            registry=self.registry,
        )
        self._repairs = Counter(
            "vipwire_ingress_drift_repairs_total",
            "Repairs of changes that other programs made in HAProxy",
            registry=self.registry,
        )
        self._old_workers = Gauge(
            "vipwire_ingress_old_workers",
            "Replaced workers of HAProxy that still have connections",
            registry=self.registry,
        )
        self._problems = Gauge(
            "vipwire_ingress_problems", "Parts of objects that are not served", ("kind",), registry=self.registry
        )
        self._ingresses = Gauge("vipwire_ingress_ingresses", "Ingresses of this controller", registry=self.registry)

    def report_sync(self, done: SyncResult) -> None:
        if done.repaired:
            self._report_repairs(done.repaired)
            return
        if done.held:
            self._report_held(*done.held)
            return
        how, result = ("reload" if done.reload else "commands"), ("failure" if done.failure else "success")
        self._syncs.labels(how=how, result=result).inc()
        self._seconds.labels(how=how).observe(done.seconds)
        if done.failure:
            log.error("HAProxy refuses the configuration; the last good one stays", error=done.failure[:1000])
        elif done.reload:
            what = "HAProxy started" if done.reload == START else "HAProxy reloaded"
            self._old_workers.set(done.old_workers)
            log.info(what, reason=done.reload, seconds=done.seconds, old_workers=done.old_workers)
        else:
            log.info("HAProxy changed", commands=done.commands, seconds=done.seconds)

    def _report_repairs(self, names: tuple[str, ...]) -> None:
        self._repairs.inc()
        examples = ", ".join(names[:_EXAMPLES])
        log.warning("repaired changes of other programs in HAProxy", entries=len(names), examples=examples)
        if self._recorder is not None:
            node = socket.gethostname().lower()
            message = f"other programs had changed {len(names)} entries of HAProxy: {examples}"
            self._recorder.record(Subject("Node", node, uid=node), "HaproxyRepaired", message, EventType.WARNING)

    def report_problems(self, judged: ProblemChange) -> None:
        fresh, gone = self._book.replace_problems(judged.problems)
        for problem in fresh:
            log.warning(
                "invalid object; the affected part is not served",
                kind=problem.kind,
                object=problem.object,
                field=problem.field,
                error=problem.message,
            )
        for kind in {each.kind for each in (*fresh, *gone)}:
            self._problems.labels(kind=kind).set(self._book.kinds[kind])
        accepted = sorted(name for name, is_ours in judged.admitted.items() if is_ours and name not in self._admitted)
        lost = [name for name, is_ours in judged.admitted.items() if not is_ours]
        self._admitted.update(accepted)
        self._admitted.difference_update(lost)
        self._ingresses.set(len(self._admitted))
        if self._recorder is not None:
            self._queue_events((*fresh, *accepted), (*gone, *lost))
            self.record_due_events()

    def _queue_events(self, new: Iterable[Problem | ObjectName], over: Iterable[Problem | ObjectName]) -> None:
        """Add Events to those that are due, and remove those that are over."""
        for each in new:
            due = self._due.setdefault(_get_object(each).namespace, _DueEvents())
            due.get_events(each)[each] = time.monotonic()
        for each in over:
            if (there := self._due.get(_get_object(each).namespace)) is not None:
                there.get_events(each).pop(each, None)

    def record_due_events(self) -> None:
        """Record the Events that are due, as many as namespaces may have now, if this replica is the leader."""
        leads, oldest = self._leading(), time.monotonic() - _WITHOUT_LEADER
        for namespace, due in tuple(self._due.items()):
            if not leads:
                due.forget(oldest)
            while (events := due.problems or due.accepted) and leads and not self._rate.get_wait(namespace):
                self._rate.spend(namespace)
                each = next(iter(events))
                del events[each]
                if isinstance(each, Problem):
                    is_served = (each.kind, each.reason) == ("Ingress", _REJECTED) and self._serves(each.object)
                    reason, text = _PARTLY if is_served else each.reason, f"{each.field}: {each.message}"
                    self._record_event(each.kind, each.object, reason, text, EventType.WARNING)
                else:
                    self._record_event("Ingress", each, "Sync", "Scheduled for HAProxy by vipwire", EventType.NORMAL)
            if not events:
                del self._due[namespace]

    def _report_held(self, kind: IngressKind, name: ObjectName) -> None:
        text = f"{name.namespace} caused too many reloads of HAProxy; its changes wait (--namespace-limit reloads=N)"
        log.warning("changes of a namespace wait", kind=kind.value, object=name, error=text)
        if self._leading() and not self._rate.get_wait(name.namespace):
            self._rate.spend(name.namespace)
            self._record_event(kind.value, name, "ChangesWait", text, EventType.WARNING)

    def _record_event(self, kind: str, name: ObjectName, reason: str, message: str, level: EventType) -> None:
        about = self._find_subject(kind, name)
        if self._recorder is not None and about is not None:
            self._recorder.record(about, reason, message, level)

    def _find_subject(self, kind: str, name: ObjectName) -> Subject | None:
        """Return the object of an Event: an Ingress, or the object of another kind with the field concerned."""
        ingress: Ingress | None = self._snapshot.ingresses.get(name) if kind == "Ingress" else None
        if ingress is not None:
            return Subject(kind, name.name, name.namespace, ingress.uid, _API)
        of = next((each for each in IngressKind if each.value == kind), IngressKind.INGRESS)
        declared = self._snapshot.list_gateway_objects(of).get(name)
        return Subject(kind, name.name, name.namespace, declared.uid, declared.api_version) if declared else None
