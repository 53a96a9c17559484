"""Reports to the log, Events and metrics: each problem once, and again if it comes back.

Of several replicas the leader alone records the Events of objects.
"""

import socket
import time
from collections.abc import Callable, Iterable
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics

from vipwire.kube.events import EventRecorder, EventType, Subject
from vipwire.logging import log
from vipwire.model.names import ObjectName
from vipwire.model.problem import Problem
from vipwire_l7.plan.sites import ANSWERS, SitePlan
from vipwire_l7.run.controller import START, Done
from vipwire_l7.run.election import SECONDS
from vipwire_l7.run.rates import Rate
from vipwire_l7.watch.objects import Ingress, IngressKind
from vipwire_l7.watch.snapshot import Snapshot

_API = "networking.k8s.io/v1"
_EXAMPLES = 3
_WITHOUT_LEADER: Final = 2.0 * SECONDS
"""Seconds for which a replica keeps Events, in case that it becomes the leader after one that did not record them."""
_REJECTED, _PARTLY = "Rejected", "PartlyRejected"


class IngressReporter:
    """Reports problems and syncs."""

    def __init__(
        self,
        snapshot: Snapshot,
        recorder: EventRecorder | None,
        rate: Rate,
        leading: Callable[[], bool] = lambda: True,
    ) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]  # the library leaves it untyped
        self.registry = CollectorRegistry()
        self._snapshot, self._recorder, self._rate = snapshot, recorder, rate
        self._leading = leading
        self._due: dict[Problem | ObjectName, float] = {}
        """The problems and accepted Ingresses whose Events wait for their namespaces' turns or a leader, by time."""
        self._served = frozenset[ObjectName]()
        self._told: frozenset[Problem] = frozenset()
        self._admitted: frozenset[ObjectName] = frozenset()
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

    def synced(self, done: Done) -> None:
        """Log a change of HAProxy."""
        if done.repaired:
            self._repaired(done.repaired)
            return
        if done.held:
            self._held(*done.held)
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

    def _repaired(self, names: tuple[str, ...]) -> None:
        self._repairs.inc()
        examples = ", ".join(names[:_EXAMPLES])
        log.warning("repaired changes of other programs in HAProxy", entries=len(names), examples=examples)
        if self._recorder is not None:
            node = socket.gethostname().lower()
            message = f"other programs had changed {len(names)} entries of HAProxy: {examples}"
            self._recorder.record(Subject("Node", node, uid=node), "HaproxyRepaired", message, EventType.WARNING)

    def problems(self, problems: Iterable[Problem], plan: SitePlan) -> None:
        """Report new problems, and newly accepted Ingresses."""
        now = frozenset(problems)
        for problem in sorted(now - self._told):
            log.warning(
                "invalid object; the affected part is not served",
                kind=problem.kind,
                object=problem.object,
                field=problem.field,
                error=problem.message,
            )
        self._served = frozenset(each.owner for each in plan.routes if each.target not in ANSWERS)
        ours = frozenset(plan.admitted)
        due = {each: at for each, at in self._due.items() if each in now or each in ours}
        due |= dict.fromkeys((*sorted(now - self._told), *sorted(ours - self._admitted)), time.monotonic())
        self._due = dict(sorted(due.items(), key=lambda each: not isinstance(each[0], Problem)))  # problems first
        self.record()
        kinds = {problem.kind for problem in now | self._told}
        for kind in kinds:
            self._problems.labels(kind=kind).set(sum(problem.kind == kind for problem in now))
        self._ingresses.set(len(ours))
        self._told, self._admitted = now, ours

    def record(self) -> None:
        """Record the Events that are due, as many as namespaces may have now, if this replica is the leader."""
        if not self._leading():
            oldest = time.monotonic() - _WITHOUT_LEADER
            self._due = {each: at for each, at in self._due.items() if at >= oldest}
            return
        slow = set[str]()
        for each in tuple(self._due):
            name = each.object if isinstance(each, Problem) else each
            if name.namespace in slow or self._rate.wait(name.namespace):
                slow.add(name.namespace)
                continue
            del self._due[each]
            self._rate.take(name.namespace)
            if isinstance(each, Problem):
                is_served = (each.kind, each.reason) == ("Ingress", _REJECTED) and name in self._served
                reason = _PARTLY if is_served else each.reason
                self._record(each.kind, name, reason, f"{each.field}: {each.message}", EventType.WARNING)
            else:
                self._record("Ingress", name, "Sync", "Scheduled for HAProxy by vipwire", EventType.NORMAL)

    def _held(self, kind: IngressKind, name: ObjectName) -> None:
        text = f"{name.namespace} caused too many reloads of HAProxy; its changes wait (--namespace-limit reloads=N)"
        log.warning("changes of a namespace wait", kind=kind.value, object=name, error=text)
        if self._leading() and not self._rate.wait(name.namespace):
            self._rate.take(name.namespace)
            self._record(kind.value, name, "ChangesWait", text, EventType.WARNING)

    def _record(self, kind: str, name: ObjectName, reason: str, message: str, level: EventType) -> None:
        about = self._subject(kind, name)
        if self._recorder is not None and about is not None:
            self._recorder.record(about, reason, message, level)

    def _subject(self, kind: str, name: ObjectName) -> Subject | None:
        """Return the object of an Event: an Ingress, or the object of another kind with the field concerned."""
        ingress: Ingress | None = self._snapshot.ingresses.get(name) if kind == "Ingress" else None
        if ingress is not None:
            return Subject(kind, name.name, name.namespace, ingress.uid, _API)
        of = next((each for each in IngressKind if each.value == kind), IngressKind.INGRESS)
        declared = self._snapshot.declared(of).get(name)
        return Subject(kind, name.name, name.namespace, *declared.identity) if declared else None
