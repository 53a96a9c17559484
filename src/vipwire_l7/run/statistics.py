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
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from vipwire.model.net import format_endpoint
from vipwire.model.text import whole_number
from vipwire_l7.haproxy.slots import Slots

_LARGEST: Final = 2**64
"""The modulus of counters."""
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
        self._rows = list(label_servers(answer, slots, spares))

    def collect(self) -> Iterable[Metric]:
        for column, name, text in _COUNTERS:
            counter = CounterMetricFamily(f"vipwire_ingress_{name}", text, labels=_LABELS)
            for labels, row in self._rows:
                counter.add_metric(labels, _read_number(row.get(column)) or 0)
            yield counter
        responses = CounterMetricFamily("vipwire_ingress_responses", "Responses by code", labels=(*_LABELS, "code"))
        for labels, row in self._rows:
            for code in _CODES:
                responses.add_metric((*labels, code), _read_number(row.get(f"hrsp_{code}")) or 0)
        yield responses
        for column, name, text, factor in _GAUGES:
            gauge = GaugeMetricFamily(f"vipwire_ingress_{name}", text, labels=_LABELS)
            for labels, row in self._rows:
                gauge.add_metric(labels, (_read_number(row.get(column)) or 0) * factor)
            yield gauge


def _read_number(text: str | None) -> int | None:
    """Read a counter; None for any other text, since other programs may answer at the socket."""
    return whole_number(text or "", 0, _LARGEST)


def label_servers(
    answer: str, slots: Callable[[str], Slots], spares: Mapping[str, str]
) -> Iterator[tuple[tuple[str, ...], Mapping[str, str]]]:
    """Label each server that has an endpoint. Rows of one endpoint under two policies are added."""
    found: dict[tuple[str, ...], dict[str, str]] = {}
    for row in _read_rows(answer):
        pool, server = row.get("pxname") or "", row.get("svname") or ""
        pool = spares.get(pool, pool)
        parts = pool.split(":")
        number, held = _read_number(server[1:]) or 0, slots(pool) if len(parts) > 2 else ()
        slot = held[number - 1] if 0 < number <= len(held) else None
        if slot is None:
            continue
        where = format_endpoint(slot.endpoint.address, slot.port)
        labels = (*parts[:3], slot.endpoint.pod, where)
        found[labels] = _add_counters(found[labels], row) if labels in found else row
    yield from found.items()


def _read_rows(answer: str) -> Iterator[dict[str, str]]:
    """Read the lines up to the first that is no CSV."""
    with contextlib.suppress(csv.Error):
        yield from csv.DictReader(io.StringIO(answer.removeprefix("# ")))


def _add_counters(first: Mapping[str, str], second: Mapping[str, str]) -> dict[str, str]:
    found = dict(first)
    for key, value in second.items():
        one, two = _read_number(first.get(key)), _read_number(value)
        if one is not None and two is not None:
            found[key] = str(one + two)
    return found
