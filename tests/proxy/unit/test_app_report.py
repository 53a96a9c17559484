"""What is told of syncs costs what has changed, and what is asked for is counted when somebody asks."""

import logging
import re

import pytest
from prometheus_client import generate_latest
from tests.fakes.kernel import DictBackend
from tests.fakes.values import endpoint, node_plan, service, slice_of

from vipwire.model.names import ObjectName
from vipwire.model.net import Family
from vipwire.model.problem import Problem
from vipwire.proxy_daemon.serve.metrics import Metrics
from vipwire.proxy_daemon.sync.engine import Engine, Line
from vipwire.proxy_daemon.sync.report import Reporter
from vipwire.reconcile.pacer import Pacer
from vipwire.watched_objects.event import Deleted, Kind, Listed, Upserted
from vipwire.watched_objects.store import Store

MANY = 50


class WatchedStore(Store):
    """A store that counts how often all its problems are looked through."""

    looks = 0

    @property
    def problems(self) -> tuple[Problem, ...]:
        self.looks += 1
        return super().problems


def problem_of(number: int) -> Problem:
    return Problem("Service", ObjectName("default", f"s{number}"), "spec.type", "is odd")


class Told:
    """An engine with many Services that each have a problem, and a reporter that hears of everything."""

    def __init__(self) -> None:
        self.line = Line(Family.IPV4, DictBackend(), Pacer(0.0, 30.0))
        self.engine = Engine((self.line,), "node-1", lambda family, _: node_plan(family))
        self.engine.store = self.store = WatchedStore()
        self.metrics = Metrics("nftables")
        self.reporter = Reporter(self.engine, self.metrics, None, "node-1")
        for kind in Kind:
            self.engine.apply(Listed(kind, ()))
        for number in range(MANY):
            changed = service(f"s{number}", f"10.96.1.{number}")
            self.reporter.report_problems(self.engine.apply(Upserted(changed, (problem_of(number),))))

    def sync(self, now: float = 0.0) -> None:
        for outcome in self.engine.sync(now):
            self.reporter.report_sync(self.line, outcome, now)

    def read(self) -> list[str]:
        """Read all metrics but those of this process and those that depend on how long something took."""
        lines = generate_latest(self.metrics.registry).decode().splitlines()
        return [line for line in lines if not re.match(r"process_|python_|\w+_seconds_(sum|bucket)\b", line)]

    def counted(self, kind: Kind) -> float | None:
        return self.metrics.registry.get_sample_value("vipwire_object_problems", {"kind": kind.value})


def test_neither_an_event_nor_a_sync_looks_through_the_problems_of_all_objects() -> None:
    told = Told()
    told.sync()
    assert told.store.looks == 0


def test_problems_are_counted_when_somebody_asks() -> None:
    told = Told()
    assert (told.counted(Kind.SERVICE), told.counted(Kind.ENDPOINT_SLICE)) == (MANY, 0)
    told.engine.apply(Deleted(Kind.SERVICE, ObjectName("default", "s0")))
    assert told.counted(Kind.SERVICE) == MANY - 1


def test_a_node_that_does_not_exist_is_told_at_once_and_once(caplog: pytest.LogCaptureFixture) -> None:
    reporter = Told().reporter
    caplog.set_level(logging.INFO)
    reporter.report_node(exists=True)
    assert "Node" not in caplog.text
    for _ in range(3):
        reporter.report_node(exists=False)
    assert caplog.text.count("there is no Node 'node-1': all endpoints count as remote") == 1
    reporter.report_node(exists=True)
    assert "the Node exists" in caplog.text


def test_whoever_reads_metrics_finds_every_sync_counted() -> None:
    told = Told()
    of_ipv4 = {"ip_family": "IPv4"}

    def syncs() -> float | None:
        return told.metrics.registry.get_sample_value("kubeproxy_sync_proxy_rules_duration_seconds_count", of_ipv4)

    told.sync()
    assert syncs() == 1
    for number in range(100):
        told.engine.apply(Upserted(service("s0", f"10.96.2.{number}"), ()))
        told.sync(60.0 * number + 60.0)
    assert syncs() == 101
    told.engine.apply(Deleted(Kind.SERVICE, ObjectName("default", "s0")))
    told.sync(60_000.0)
    assert told.metrics.registry.get_sample_value("vipwire_services") == MANY - 1
    assert syncs() == 102


def test_syncs_that_are_counted_together_count_as_single_ones() -> None:
    together, single = Told(), Told()
    for number in range(4):
        for told in (together, single):
            pods = [endpoint(f"10.0.0.{pod}") for pod in range(1, number + 1)]
            told.engine.apply(Upserted(slice_of("s1", *pods, name="s1-a")))
            told.sync(float(number))
        single.read()
    assert together.read() == single.read()
    assert together.metrics.registry.get_sample_value("vipwire_endpoints") == 3
