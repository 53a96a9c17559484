"""The thread that follows the objects, reads the kernel, makes documents, and answers questions.

One thread does this because objects and netlink sockets may have only one user at a time. It spends at most a fifth
of the time reading: with ten thousand Services one reading takes seconds.
"""

import asyncio
import concurrent.futures
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from typing import Any, Final, TypeVar

from vipwire.config.configuration import Config
from vipwire.errors import UnsupportedError, VipwireError
from vipwire.inspect.command.show import format_endpoint_document, format_service
from vipwire.inspect.node.flows import FlowEvents, Frontends, list_tracked_flows
from vipwire.inspect.node.silence import OBJECTS, Silences
from vipwire.inspect.node.situation import Kernel, Situation, observe_situation, open_kernel
from vipwire.inspect.node.source import follow_source, make_source
from vipwire.inspect.page.changes import change_document, read_changes
from vipwire.inspect.status.counts import read_counts
from vipwire.inspect.status.document import (
    Document,
    build_problem_documents,
    build_proxy_document,
    build_service_document,
    build_status_document,
)
from vipwire.inspect.top import Rates
from vipwire.model.names import ObjectName
from vipwire.proxy_daemon.announced import announced_file, read_announced
from vipwire.proxy_daemon.loop import Source
from vipwire.proxy_daemon.start.record import ProxyState
from vipwire.proxy_daemon.view import changes_file
from vipwire.reconcile.counts import Counts
from vipwire.watched_objects.store import Store

Publish = Callable[[str, Any], None]
T = TypeVar("T")

LOOK_SECONDS: Final = 2.0
_STEP_SECONDS: Final = 1.0
CALM_SECONDS: Final = 10.0
"""Seconds until the next reading if no object has changed: the kernel's objects may have."""
_SHARE: Final = 5
_LATE: Final = 4
_PAUSE_SECONDS: Final = 5.0
_LISTEN_SECONDS: Final = 0.5
_RATE_SECONDS: Final = 10.0
MOST_CHANGES: Final = 300
MOST_PROBLEMS: Final = 200
MOST_ENDPOINTS: Final = 64
"""The most endpoints of a Service that the page's search finds."""


class Pace:
    """When to read: soon after a change, seldom without one, and at most a fifth of the time."""

    def __init__(self) -> None:
        self._soon = self._calm = 0.0
        self.late_after = _LATE * CALM_SECONDS
        """Seconds without a reading from which on readings are late."""

    def is_reading_due(self, now: float, *, changed: bool) -> bool:
        return now >= (self._soon if changed else self._calm)

    def record_reading(self, began: float, ended: float) -> None:
        self._soon = ended + max(LOOK_SECONDS, (ended - began) * _SHARE)
        self._calm = max(ended + CALM_SECONDS, self._soon)
        self.late_after = _LATE * (self._calm - began)


class FirstReadingPendingError(VipwireError):
    """The first reading is not finished."""


class Look:
    """Reads until the process ends, and publishes each second the parts that do not answer, and since when."""

    def __init__(self, config: Config, publish: Publish) -> None:
        self._config, self._publish = config, publish
        self._rates = LiveRates()
        self._situation: Situation | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._rows: dict[ObjectName, tuple[Any, Document]] = {}
        self._pace = Pace()
        self._silences, self._looked = Silences(), 0.0
        self._changes = b""
        self._synced = False

    def start(self) -> None:
        self._rates.start()
        threading.Thread(target=self._follow_source, name="look", daemon=True).start()

    async def answer_question(self, question: Callable[[Situation], T]) -> T:
        """Answer a question from the last Situation. Raise FirstReadingPendingError, or the question's errors."""
        loop, known = self._loop, self._situation
        if loop is None or known is None:
            raise FirstReadingPendingError("vipwire has not read the objects yet")

        async def answer() -> T:
            return question(self._situation or known)

        asked: concurrent.futures.Future[T] = asyncio.run_coroutine_threadsafe(answer(), loop)
        return await asyncio.wrap_future(asked)

    def _follow_source(self) -> None:
        while True:
            try:
                source = make_source(self._config)
                with open_kernel(self._config) as kernel:
                    follow_source(source, partial(self._read_and_publish, source, kernel), _STEP_SECONDS)
            except (VipwireError, OSError) as error:
                self._loop = None
                self._silences.record_error(OBJECTS, str(error), time.time())
                self._publish_state()
            time.sleep(_PAUSE_SECONDS)

    def _publish_state(self) -> None:
        """Publish the proxy's state, the silent parts, and the time of the last reading of the kernel."""
        now = time.time()
        self._silences.record_proxy_silence(self._config, now)
        told = {"now": now, "looked": self._looked, "lateAfter": self._pace.late_after}
        proxy, silent = build_proxy_document(self._config), self._silences.documents()
        self._publish("state", told | {"proxy": proxy, "silent": silent})

    def _read_and_publish(self, source: Source, kernel: Kernel, store: Store) -> None:
        self._loop = asyncio.get_running_loop()
        began = time.monotonic()
        self._silences.record_source_error(source, time.time())
        changed = store.dirty or store.node_changed or self._synced
        if self._situation is None or self._pace.is_reading_due(began, changed=changed):
            store.take_touched()
            store.node_changed = self._synced = False
            self._publish_situation(store, kernel)
            self._pace.record_reading(began, time.monotonic())
        situation = self._situation
        if situation is not None:
            self._publish("rates", self._rates.build_document(lambda: read_counts(situation, kernel.modes)))
        self._publish_state()
        self._publish_changes()

    def _publish_situation(self, store: Store, kernel: Kernel) -> None:
        situation = observe_situation(self._config, store, kernel)
        self._rates.recognise(Frontends.of(situation))
        self._situation = situation
        self._looked = time.time()
        self._silences.record_kernel_errors(situation, self._looked)
        self._publish("head", self._build_head(situation))
        self._rows = {name: self._build_row(situation, name) for name in sorted(store.services)}
        self._publish("rows", [row for _, row in self._rows.values()])

    def _build_head(self, situation: Situation) -> Document:
        document = build_status_document(situation, [], None, build_proxy_document(self._config))
        document["problems"] = build_problem_documents(situation)[:MOST_PROBLEMS]
        document["services"] = len(situation.store.services)
        document["looked"] = self._looked
        document["announced"] = self._read_announced(document["proxy"]["state"])
        return document

    def _read_announced(self, state: str) -> Document:
        if state != ProxyState.RUNNING.value:
            return {}
        found = read_announced(announced_file(self._config.state_dir))
        return {
            address: {"interface": each.interface, "here": each.here, "other": each.other or None}
            for address, each in found.items()
        }

    def _build_row(self, situation: Situation, name: ObjectName) -> tuple[Any, Document]:
        """Describe a Service for the list. Reuses the last row if Service, plan and objects are unchanged."""
        service = situation.store.services[name]
        of_sides = [
            (each.plans.get(name), each.compute_drift(name), each.list_ejected(name)) for each in situation.sides
        ]
        facts = (service, tuple(situation.store.view(name)[1]), of_sides, [each.obstacle for each in situation.sides])
        known = self._rows.get(name)
        if known is not None and known[0] == facts:
            return known
        return facts, build_row(build_service_document(situation, service))

    def _publish_changes(self) -> None:
        """Publish the proxy's last syncs, which include changes that no object shows: drains and ejections."""
        path = changes_file(self._config.state_dir)
        try:
            stat = path.stat()
        except OSError:
            return
        seen = f"{stat.st_mtime_ns} {stat.st_size}".encode()
        if seen != self._changes:
            self._changes = seen
            self._synced = True
            self._publish("changes", [change_document(each) for each in read_changes(path)[-MOST_CHANGES:]])


def read_changes_of(config: Config, service: str) -> list[Any]:
    """Return the last syncs that changed one Service, oldest first."""
    return [change_document(each) for each in read_changes(changes_file(config.state_dir)) if each.service == service]


class LiveRates:
    """The rates of `vipwire top`, in a thread of their own, so that reading objects does not delay events.

    If the kernel reports no connections, only the modes' counts are known.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._rates = Rates(Frontends({}, frozenset()), _RATE_SECONDS, time.time())
        self.obstacle = ""

    def start(self) -> None:
        """Start the thread. If the kernel reports no connections, `obstacle` says why."""
        try:
            events = FlowEvents()
        except UnsupportedError as error:
            self.obstacle = str(error)
            return
        threading.Thread(target=self._receive_flow_events, args=(events,), name="connections", daemon=True).start()

    def _receive_flow_events(self, events: FlowEvents) -> None:
        with events:
            while True:
                for heard in events.yield_until(time.monotonic() + _LISTEN_SECONDS):
                    with self._lock:
                        self._rates.count_notification(heard)

    def recognise(self, frontends: Frontends) -> None:
        with self._lock:
            self._rates.recognise(frontends)

    def build_document(self, read: Callable[[], Counts]) -> Document:
        flows = []
        with suppress(VipwireError, OSError):
            flows = list(list_tracked_flows()) if not self.obstacle else []
        counts = read()
        with self._lock:
            now = time.time()
            self._rates.record_counts(now, counts)
            document = self._rates.build_document(now, flows)
            self._rates.lost = False
        return document | ({"obstacle": self.obstacle} if self.obstacle else {})


def build_row(service: Document) -> Document:
    endpoints = [each for port in service["ports"] for each in port["endpoints"]]
    states = [each["state"] for each in service["kernel"]]
    worst = next((state for state in states if state != "as planned"), "as planned" if states else "-")
    return {
        "name": format_service(service),
        "type": service["type"],
        "at": list(dict.fromkeys(_format_frontend(each) for port in service["ports"] for each in port["frontends"])),
        "endpoints": _count_pods(endpoints),
        "used": _count_pods(each for each in endpoints if each["forPolicies"]),
        "drained": _count_pods(each for each in endpoints if is_drained(each)),
        "ejected": _count_pods(each for each in endpoints if "ejectedUntil" in each),
        "refused": _explain_refused(service),
        "state": worst,
        "to": sorted({format_endpoint_document(each) for each in endpoints})[:MOST_ENDPOINTS],
    }


def _format_frontend(frontend: Document) -> str:
    if frontend["address"] is None:
        return f":{frontend['port']}/{frontend['protocol']}"
    return f"{format_endpoint_document(frontend)}/{frontend['protocol']}"


def _count_pods(endpoints: Iterable[Document]) -> int:
    """Count Pods: one Pod has an address of each family and may serve several ports."""
    addresses: dict[str, set[str]] = {}
    for each in endpoints:
        addresses.setdefault(each["family"], set()).add(each["address"])
    return max(map(len, addresses.values()), default=0)


def is_drained(usage: dict[str, Any]) -> bool:
    return str(usage["why"]).startswith("drained")


def _explain_refused(service: Document) -> str:
    """Return why new connections to a Service's first frontend fail; "" if they succeed."""
    for port in service["ports"]:
        for frontend in port["frontends"]:
            if frontend["action"] != "forward":
                return f"{frontend['action']}: {frontend['reason'].partition(' ')[2]}"
    return ""
