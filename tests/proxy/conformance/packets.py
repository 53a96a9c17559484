"""The tests' packets: the caller, the expected result, and the source address that the endpoint sees."""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import cycle, repeat

from tests.fakes import waiting
from tests.proxy.conformance.underlay import name_no_vip

from vipwire.model.net import Family
from vipwire_lab.cluster.cluster import Lab
from vipwire_lab.cluster.continuous import Connection
from vipwire_lab.cluster.outcome import Outcome, ProbeOptions, ProbeResult, Target
from vipwire_lab.cluster.probe import probe

_BATCH, _BATCHES, _FEW, _AGAIN = 24, 5, 3, 12
PATIENCE, _SECOND_SYN = waiting.PATIENCE / 4, 0.9
"""Seconds: the timeout of an answer, and the time after which a client has repeated its SYN."""
_passed_on: Iterator[int] = cycle(range(10500, 13500))
"""Source ports of connections that bypass the proxy: outside the kernel's ephemeral range.

Conntrack keeps such a connection for two minutes as untranslated. The kernel's own choice might use the port again
when the Service is back.
"""


@dataclass(frozen=True, slots=True)
class Caller:
    """The connecting host, and the number or the text of its source address."""

    host: str
    index: int = 0
    address: str = ""

    def __str__(self) -> str:
        return self.host


POD, OTHER_POD, REMOTE_POD = Caller("pod-1c"), Caller("pod-1b"), Caller("pod-2b")
NODE = Caller("node-1", 1)
"""A process on the node, from the secondary address, so that a replacement by the primary one is visible."""
OUTSIDE, BLOCKED = Caller("client"), Caller("client", 1)


class Packets:
    """The hosts of a lab as callers. `node_name` is the node under test.

    `relayed`: endpoints see that node as every caller. `sent` counts all connections.
    """

    def __init__(self, lab: Lab, node_name: str) -> None:
        self.lab, self.node_name = lab, node_name
        self.relayed, self.sent = False, 0

    def name_no_vip(self) -> None:
        """Let the network between the nodes refuse VIPs without delay."""
        name_no_vip(self.lab)

    def address(self, caller: Caller, family: Family) -> str:
        if caller.address:
            return caller.address
        found = [
            each for each in self.lab.find_host(caller.host).addresses if (":" in each) is (family is Family.IPV6)
        ]
        return found[caller.index]

    def probe(
        self,
        caller: Caller,
        target: Target,
        count: int = 1,
        source_port: int | None = None,
        *,
        timeout: float = PATIENCE,
        parallel: int = 16,
    ) -> list[ProbeResult]:
        """Connect `count` times from a caller's address; return the results."""
        return self.send(caller, target, ProbeOptions(None, source_port, timeout, count, parallel))

    def send(self, caller: Caller, target: Target, manner: ProbeOptions) -> list[ProbeResult]:
        self.sent += 1
        source = self.address(caller, family_of(target))
        return probe(self.lab.namespace_of(caller.host), target, replace(manner, source=source))

    def connect(
        self, caller: Caller, target: Target, source_port: int | None = None, *, timeout: float = PATIENCE
    ) -> Connection:
        """Open a lasting connection; over UDP, a socket with one source port."""
        self.sent += 1
        source = self.address(caller, family_of(target))
        address, port, protocol = target.address, target.port, target.protocol
        return self.lab.connect(
            caller.host, address, port, protocol, source=source, source_port=source_port, timeout=timeout
        )

    def answered(
        self, caller: Caller, target: Target, pods: Iterable[str], *, masqueraded: bool | None = None
    ) -> list[ProbeResult]:
        """Connect until each of these has answered, and often enough to see any other.

        `masqueraded` is whether they must see the node or the caller. A Pod always sees the node for itself.
        """
        expected, seen, results = set(pods), set[str](), list[ProbeResult]()
        for _ in range(_BATCHES):
            for result in self.probe(caller, target, _BATCH):
                assert result.pod in expected, f"{caller} to {target}: {result}, expected {sorted(expected)}"
                self._check_source(caller, target, result, masqueraded=masqueraded)
                seen.add(result.pod)
                results.append(result)
            if seen == expected:
                return results
        message = f"{caller} to {target}: {_BATCH * _BATCHES} times only {sorted(seen)} of {sorted(expected)}"
        raise AssertionError(message)

    def _check_source(self, caller: Caller, target: Target, result: ProbeResult, *, masqueraded: bool | None) -> None:
        family = family_of(target)
        if masqueraded is None or (self.relayed and not masqueraded):
            return
        if masqueraded or (result.pod == caller.host and caller.host != self.node_name):
            expected = self.lab.address_of(self.node_name, family)
        else:
            expected = self.address(caller, family)
        assert result.saw == expected, f"{caller} to {target}: {result}, expected to be seen as {expected}"

    def refused(self, caller: Caller, target: Target) -> None:
        """Connect; the refusal must be immediate."""
        self._told_at_once(caller, target, Outcome.REFUSED, repeat(None))

    def dropped(self, caller: Caller, target: Target) -> None:
        """Connect; no answer may come."""
        self._became(caller, target, Outcome.TIMED_OUT, _FEW, timeout=0.3)

    def passed_on(self, caller: Caller, target: Target) -> None:
        """Connect; the packet must leave the node untranslated: the network behind has no route to a VIP."""
        self._told_at_once(caller, target, Outcome.UNREACHABLE, _passed_on)

    def _told_at_once(
        self, caller: Caller, target: Target, outcome: Outcome, source_ports: Iterator[int | None]
    ) -> None:
        """Connect; each attempt must fail at its first SYN, as far as the machine was not stopped that long.

        A client that the first SYN does not inform learns late in every attempt.
        """
        soonest = math.inf
        for number in range(_FEW + _AGAIN):
            if number >= _FEW and soonest < _SECOND_SYN:
                return
            (result,) = self._became(caller, target, outcome, source_port=next(source_ports))
            soonest = min(soonest, result.duration)
        assert soonest < _SECOND_SYN, f"{caller} to {target}: told late"

    def _became(
        self,
        caller: Caller,
        target: Target,
        outcome: Outcome,
        count: int = 1,
        source_port: int | None = None,
        *,
        timeout: float = PATIENCE,
    ) -> list[ProbeResult]:
        results = self.probe(caller, target, count, source_port, timeout=timeout)
        for result in results:
            assert result.outcome is outcome, f"{caller} to {target}: {result}, expected {outcome.value}"
        return results

    def sticks(self, caller: Caller, target: Target, count: int = 15) -> str:
        """Connect `count` times, always to the same endpoint; return its name."""
        pods = {result.pod for result in self.probe(caller, target, count)}
        assert len(pods) == 1, f"{caller} to {target}: {sorted(pods)}, expected one of them only"
        assert pods != {""}, f"{caller} to {target}: nobody answers"
        return pods.pop()


def family_of(target: Target) -> Family:
    return Family.IPV6 if ":" in target.address else Family.IPV4
