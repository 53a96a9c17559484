"""The API server's metrics, under the names of kube-apiserver's, so that its dashboards and alerts fit."""

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector

from vipwire.kube.errors import ApiError
from vipwire_up.api.kinds.catalogue import RESOURCES
from vipwire_up.api.serving.limits import InFlight, Sort
from vipwire_up.api.serving.route import Route
from vipwire_up.store.store import Store

_ABOUT: Final = ("verb", "dry_run", "group", "version", "resource", "subresource", "scope", "component")
_VERBS: Final = {"create": "POST", "update": "PUT", "patch": "PATCH"}
_SECONDS: Final = (
    0.005, 0.025, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 1.25, 1.5, 2, 3, 4, 5, 6, 8, 10, 15, 20, 30, 45, 60
)  # fmt: skip


@dataclass(slots=True)
class Outcome:
    """The result of a request."""

    code: int = 0


class ApiMetrics:
    """Counts requests; reports the requests in flight and the stored objects."""

    def __init__(self, registry: CollectorRegistry, in_flight: InFlight, store: Store) -> None:
        ProcessCollector(registry=registry)
        self._requests = Counter(
            "apiserver_request", "Requests, by resource, verb and status code.", (*_ABOUT, "code"),
            registry=registry,
        )  # fmt: skip
        self._seconds = Histogram(
            "apiserver_request_duration_seconds", "Duration of requests other than watches.", _ABOUT,
            buckets=_SECONDS, registry=registry,
        )  # fmt: skip
        in_progress = Gauge(
            "apiserver_current_inflight_requests", "Requests in progress.", ("request_kind",),
            registry=registry,
        )  # fmt: skip
        in_progress.labels("readOnly").set_function(lambda: in_flight.requests_in_flight(Sort.READ))
        in_progress.labels("mutating").set_function(lambda: in_flight.requests_in_flight(Sort.WRITE))
        watches = Gauge("apiserver_longrunning_requests", "Watches.", ("verb",), registry=registry)
        watches.labels("WATCH").set_function(lambda: in_flight.requests_in_flight(Sort.WATCH))
        stored = Gauge("apiserver_storage_objects", "Stored objects.", ("resource",), registry=registry)
        damaged = Gauge(
            "vipwire_up_damaged_objects", "Stored objects that the server cannot read.", ("resource",),
            registry=registry,
        )  # fmt: skip
        for resource in RESOURCES:
            damaged.labels(resource.id).set_function(lambda name=resource.id: len(store.damaged(name)))  # type: ignore[misc]
            stored.labels(resource.id).set_function(lambda name=resource.id: store.count(name))  # type: ignore[misc]

    @contextlib.contextmanager
    def measure_request(self, route: Route, *, dry_run: bool) -> Iterator[Outcome]:
        """Count a request; the block sets the outcome or raises ApiError."""
        outcome, begun = Outcome(), time.perf_counter()
        try:
            yield outcome
        except ApiError as error:
            outcome.code = error.code
            raise
        finally:
            about = _list_labels(route, dry_run=dry_run)
            self._requests.labels(*about, str(outcome.code or 499)).inc()  # 499: the client closed the connection
            if route.verb != "watch":
                self._seconds.labels(*about).observe(time.perf_counter() - begun)


def _list_labels(route: Route, *, dry_run: bool) -> tuple[str, ...]:
    resource = route.resource
    scope = "resource" if route.name else "namespace" if route.namespace else "cluster"
    verb = _VERBS.get(route.verb, route.verb.upper())
    dry = "All" if dry_run else ""
    return (verb, dry, resource.group, resource.version, resource.plural, route.subresource, scope, "apiserver")
