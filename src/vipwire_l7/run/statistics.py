"""HAProxy's counters as Prometheus metrics, with Kubernetes' names as labels.

`show stat` prints a line for each frontend, backend and server (management.txt 9.1). A backend's name is
`namespace:service:port`, optionally with a digest of its policy. A server's name is its slot, and vipwire knows the
endpoint in the slot.
"""

import contextlib
import csv
import io
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Final, TypeGuard

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from vipwire.model.net import format_endpoint
from vipwire_l7.haproxy.slots import Slots

_DIGITS: Final = 20
"""The modulus of counters: they have 64 bits."""
_LABELS: Final = ("namespace", "service", "port", "pod", "endpoint")
_COUNTERS: Final = (
    ("stot", "sessions", "Requests and sessions"),
    ("bin", "received_bytes", "Bytes from clients"),
    ("bout", "sent_bytes", "Bytes to clients"),
    ("econ", "connection_errors", "Connections that failed"),
    ("eresp", "response_errors", "Responses that failed"),
    ("wretr", "retries", "Retried connections"),
    ("wredis", "redispatches", "Requests that went to another endpoint than first chosen"),
)
_CODES: Final = ("1xx", "2xx", "3xx", "4xx", "5xx", "other")
_GAUGES: Final = (
    ("scur", "current_sessions", "Open sessions", 1.0),
    ("qcur", "queue", "Queued requests", 1.0),
    ("rtime", "response_seconds", "Mean time to the response's head, of the last 1024", 0.001),
)


class Statistics(Collector):
    """Serves the last values. `update` takes the answer to `show stat`, and the endpoints in slots."""

    def __init__(self) -> None:
        self._rows: list[tuple[tuple[str, ...], Mapping[str, str]]] = []

    def update(
        self, answer: str, slots: Callable[[str], Slots], spares: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        """Store an answer. `slots` returns the slots of a pool, `spares` has the pools in spare backends."""
        self._rows = list(label_rows(answer, slots, spares))

    def collect(self) -> Iterable[Metric]:
        for column, name, text in _COUNTERS:
            counter = CounterMetricFamily(f"vipwire_ingress_{name}", text, labels=_LABELS)
            for labels, row in self._rows:
                counter.add_metric(labels, _number(row.get(column)))
            yield counter
        responses = CounterMetricFamily("vipwire_ingress_responses", "Responses by code", labels=(*_LABELS, "code"))
        for labels, row in self._rows:
            for code in _CODES:
                responses.add_metric((*labels, code), _number(row.get(f"hrsp_{code}")))
        yield responses
        for column, name, text, factor in _GAUGES:
            gauge = GaugeMetricFamily(f"vipwire_ingress_{name}", text, labels=_LABELS)
            for labels, row in self._rows:
                gauge.add_metric(labels, _number(row.get(column)) * factor)
            yield gauge


def _number(text: str | None) -> float:
    """Read a counter; an invalid value counts as 0, for other programs may answer at the socket."""
    return float(text) if _is_number(text) else 0.0


def _is_number(text: str | None) -> TypeGuard[str]:
    return text is not None and text.isascii() and text.isdigit() and len(text) <= _DIGITS


def label_rows(
    answer: str, slots: Callable[[str], Slots], spares: Mapping[str, str]
) -> Iterator[tuple[tuple[str, ...], Mapping[str, str]]]:
    """Label each server that has an endpoint. Rows of one endpoint under two policies are added."""
    found: dict[tuple[str, ...], dict[str, str]] = {}
    for row in _rows(answer):
        pool, server = row.get("pxname") or "", row.get("svname") or ""
        pool = spares.get(pool, pool)
        parts = pool.split(":")
        if len(parts) < 3 or not _is_number(server[1:]) or int(server[1:]) < 1:
            continue
        held = slots(pool)
        index = int(server[1:]) - 1
        slot = held[index] if index < len(held) else None
        if slot is None:
            continue
        where = format_endpoint(slot.endpoint.address, slot.port)
        labels = (*parts[:3], slot.endpoint.pod, where)
        found[labels] = _add_counters(found[labels], row) if labels in found else row
    yield from found.items()


def _rows(answer: str) -> Iterator[dict[str, str]]:
    """Read the lines up to the first that is no CSV."""
    with contextlib.suppress(csv.Error):
        yield from csv.DictReader(io.StringIO(answer.removeprefix("# ")))


def _add_counters(first: Mapping[str, str], second: Mapping[str, str]) -> dict[str, str]:
    return {
        key: str(int(first[key]) + int(value)) if _is_number(first[key]) and _is_number(value) else first[key]
        for key, value in second.items()
        if key is not None and first.get(key) is not None and value is not None
    }
