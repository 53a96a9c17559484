"""Repeated connections during a change of hands, and lasting ones: none may be lost."""

import contextlib
from collections.abc import Iterable, Iterator, Sequence

from tests.proxy.conformance.lost import traces
from tests.proxy.conformance.packets import PATIENCE
from tests.proxy.conformance.services import LabService

from vipwire.model.net import Family, Protocol
from vipwire.plan.plan import FrontendKind
from vipwire_lab.cluster.cluster import Lab
from vipwire_lab.cluster.continuous import Connection, Continuous
from vipwire_lab.namespaces.topology import Pod

Way = tuple[str, FrontendKind, int]
"""The caller, the frontend of a Service, and the index of its port."""


@contextlib.contextmanager
def traffic(
    lab: Lab, service: LabService, ways: Sequence[Way], *, interval: float = 0.02
) -> Iterator[list[Continuous]]:
    """Connect in all these ways, in both families, during the block."""
    with contextlib.ExitStack() as stack:
        yield [
            stack.enter_context(
                lab.connect_continuously(
                    host, target.address, target.port, target.protocol, timeout=PATIENCE, interval=interval
                )
            )
            for family in Family
            for host, kind, port in ways
            for target in [service.at(kind, family, port)]
        ]


def pass_some(streams: Iterable[Continuous], enough: int) -> None:
    """Wait for `enough` more concurrent connections of each."""
    wanted = [(stream, stream.report.attempts + enough) for stream in streams]
    for stream, attempts in wanted:
        stream.wait_for(attempts - stream.report.attempts)


def check_open(connections: Iterable[Connection]) -> None:
    """Check that open connections still answer: with the same data over TCP, with a line over UDP."""
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
    """Check that every connection was answered, and that all these Pods answered some of each.

    A failure prints `log`, the proxy's.
    """
    for stream in streams:
        failures = stream.report.failures
        assert not failures, f"{stream.report}\n{traces(lab, failures)}\n{log[-6000:]}"
        assert set(stream.report.pods) == {pod.name for pod in pods}
