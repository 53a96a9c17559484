"""Connections that are made all the time while something changes hands, and those that stay open: none is lost."""

import contextlib
from collections.abc import Iterable, Iterator, Sequence

from tests.proxy.conformance.lost import traces
from tests.proxy.conformance.services import LabService

from vipwire.model.net import Family, Protocol
from vipwire.plan.plan import FrontendKind
from vipwire_lab.cluster.cluster import Lab
from vipwire_lab.cluster.continuous import Connection, Continuous
from vipwire_lab.namespaces.topology import Pod

Way = tuple[str, FrontendKind, int]
"""Who connects to which frontend of a Service, and of which of its ports."""


@contextlib.contextmanager
def traffic(
    lab: Lab, service: LabService, ways: Sequence[Way], *, timeout: float = 10.0, interval: float = 0.02
) -> Iterator[list[Continuous]]:
    """Connect in all these ways, of both families, all the time."""
    with contextlib.ExitStack() as stack:
        yield [
            stack.enter_context(
                lab.continuous(host, target.address, target.port, target.protocol, timeout=timeout, interval=interval)
            )
            for family in Family
            for host, kind, port in ways
            for target in [service.at(kind, family, port)]
        ]


def pass_some(streams: Iterable[Continuous], enough: int) -> None:
    """Wait for so many more connections of each, made at the same time."""
    wanted = [(stream, stream.report.attempts + enough) for stream in streams]
    for stream, attempts in wanted:
        stream.wait_for(attempts - stream.report.attempts)


def check_open(connections: Iterable[Connection]) -> None:
    """See that connections opened before are still answered: with the same over TCP, with a line over UDP."""
    sent, amiss = b"still here", {}
    for each in connections:
        try:
            heard = each.exchange(sent)
        except OSError as error:
            amiss[str(each)] = str(error)
            continue
        if not heard or (each.target.protocol is Protocol.TCP and heard != sent):
            amiss[str(each)] = repr(heard)
    assert not amiss, amiss


def check_nothing_lost(lab: Lab, streams: Iterable[Continuous], pods: Iterable[Pod], log: str = "") -> None:
    """See that every connection was answered, and that all these Pods have answered some of each.

    `log` is what a proxy said meanwhile, for the failure.
    """
    for stream in streams:
        failures = stream.report.failures
        assert not failures, f"{stream.report}\n{traces(lab, failures)}\n{log[-6000:]}"
        assert set(stream.report.pods) == {pod.name for pod in pods}
