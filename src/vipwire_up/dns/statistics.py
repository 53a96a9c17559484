"""Counts questions and answers of the DNS server for its metrics.

Counting is an addition in a dictionary: the Prometheus client's own counters would take longer than the answers.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import dns.rcode
import dns.rdatatype
from prometheus_client import CollectorRegistry, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from vipwire_up.dns.upstream.exchange import Attempt

_BUCKETS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5)
_ORDINARY: Final = frozenset((1, 2, 5, 6, 12, 15, 16, 28, 33, 64, 65, 255))
"""The types with series of their own: other types, which clients choose, share one, so that series stay few."""


class DnsStatistics(Collector):
    """The counts of one server; `registry` has them and the times of upstream servers."""

    def __init__(self, sizes: Callable[[], Mapping[str, int]] = dict) -> None:
        self._answers: Counter[tuple[str, int, int]] = Counter()
        self._refusals: Counter[tuple[str, int]] = Counter()
        self._attempts: Counter[tuple[str, str, str]] = Counter()
        self._sizes = sizes
        self.events: Counter[str] = Counter()
        self.unsent = self.failures = 0
        self.dropped: Counter[str] = Counter()
        self.registry = CollectorRegistry()
        self.registry.register(self)
        self._upstream = Histogram(
            "vipwire_dns_upstream_duration_seconds",
            "Time until an upstream server answers",
            ("to",),
            buckets=_BUCKETS,
            registry=self.registry,
        )

    def count_answer(self, protocol: str, kind: int, rcode: int) -> None:
        self._answers[protocol, kind if kind in _ORDINARY else 0, rcode] += 1

    def count_refusal(self, protocol: str, rcode: int) -> None:
        self._refusals[protocol, rcode] += 1

    def count_attempt(self, attempt: Attempt) -> None:
        self._attempts[attempt.server, attempt.protocol, attempt.result] += 1
        if attempt.result == "answered":
            self._upstream.labels(attempt.server).observe(attempt.seconds)

    @property
    def total(self) -> int:
        return self._answers.total()

    def collect(self) -> Iterable[Metric]:
        """Yield the counts; dnspython names the types and codes."""
        answers = {(of, _name_type(kind), _name_code(code)): n for (of, kind, code), n in self._answers.items()}
        malformed = {(of, _name_code(code)): n for (of, code), n in self._refusals.items()}
        events = {(kind,): n for kind, n in self.events.items()}
        dropped = {(reason,): self.dropped[reason] for reason in ("rate", "waiting", "connections")}
        crowded = "Queries refused because a client, or all clients, had too many in progress"
        yield _counter_family("responses", "Answers by transport, type and code", ("proto", "type", "rcode"), answers)
        yield _counter_family("malformed", "Messages that are not valid queries", ("proto", "rcode"), malformed)
        yield _counter_family(
            "upstream_requests", "Queries to upstream servers", ("to", "proto", "result"), self._attempts
        )
        yield _counter_family("events", "Changes of objects that DNS applied", ("kind",), events)
        yield _counter_family("unsent", "Answers that DNS could not send", (), {(): self.unsent})
        yield _counter_family("failures", "Internal errors on single queries and objects", (), {(): self.failures})
        yield _counter_family("dropped", crowded, ("reason",), dropped)
        held = GaugeMetricFamily("vipwire_dns_held", "Entries in memory", labels=("what",))
        for what, size in self._sizes().items():
            held.add_metric((what,), size)
        yield held


def _counter_family(name: str, text: str, labels: tuple[str, ...], counts: Mapping[Any, int]) -> CounterMetricFamily:
    family = CounterMetricFamily(f"vipwire_dns_{name}", text, labels=labels)
    for of, count in counts.items():
        family.add_metric(of, count)
    return family


def _name_type(kind: int) -> str:
    return dns.rdatatype.to_text(dns.rdatatype.RdataType.make(kind)) if kind else "other"


def _name_code(code: int) -> str:
    return dns.rcode.to_text(dns.rcode.Rcode.make(code))
