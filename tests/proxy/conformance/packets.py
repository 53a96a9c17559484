"""What tests do with packets: who connects, what must become of it, and whom the endpoint must have seen."""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import cycle, repeat

from tests.proxy.conformance.underlay import name_no_vip

from vipwire.model.net import Family
from vipwire_lab.cluster.cluster import Lab
from vipwire_lab.cluster.continuous import Connection
from vipwire_lab.cluster.outcome import Outcome, ProbeOptions, ProbeResult, Target
from vipwire_lab.cluster.probe import probe

_BATCH, _BATCHES, _FEW, _AGAIN = 24, 5, 3, 12
PATIENCE, _SECOND_SYN = 15.0, 0.9
"""Seconds: until an answer is given up, and after which a client has sent its SYN again."""
_passed_on: Iterator[int] = cycle(range(10500, 13500))
"""Source ports of connections that go past the proxy: the kernel gives them to nobody.

Conntrack keeps such a connection for two minutes as one that is not to be translated. The kernel chooses source ports
in turn, but begins elsewhere every ten seconds: one of them might come again when the Service has come back.
"""


@dataclass(frozen=True, slots=True)
class Caller:
    """Who connects: a host, and which of its addresses of the family it does it from, or from which other one."""

    host: str
    index: int = 0
    address: str = ""

    def __str__(self) -> str:
        return self.host


POD, OTHER_POD, REMOTE_POD = Caller("pod-1c"), Caller("pod-1b"), Caller("pod-2b")
NODE = Caller("node-1", 1)
"""A process on the node, from the secondary address: so that it can be seen when the primary one replaces it."""
OUTSIDE, BLOCKED = Caller("client"), Caller("client", 1)


class Packets:
    """The hosts of a lab as those who connect. `node_name` is the node that does what is looked at.

    `relayed`: endpoints see that node whoever connects. `sent` grows with everything that is sent.
    """

    def __init__(self, lab: Lab, node_name: str) -> None:
        self.lab, self.node_name = lab, node_name
        self.relayed, self.sent = False, 0

    def name_no_vip(self) -> None:
        """Have the network between the nodes refuse VIPs without delay."""
        name_no_vip(self.lab)

    def address(self, caller: Caller, family: Family) -> str:
        """Tell the address that a caller connects from."""
        if caller.address:
            return caller.address
        found = [each for each in self.lab.host(caller.host).addresses if (":" in each) is (family is Family.IPV6)]
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
        """Connect so often from a caller's address; tell what became of each."""
        return self.send(caller, target, ProbeOptions(None, source_port, timeout, count, parallel))

    def send(self, caller: Caller, target: Target, manner: ProbeOptions) -> list[ProbeResult]:
        """Connect in that manner, but from the caller's address."""
        self.sent += 1
        source = self.address(caller, family_of(target))
        return probe(self.lab.netns(caller.host), target, replace(manner, source=source))

    def connect(
        self, caller: Caller, target: Target, source_port: int | None = None, *, timeout: float = PATIENCE
    ) -> Connection:
        """Open a connection that stays open; over UDP, a socket that keeps sending from one port."""
        self.sent += 1
        source = self.address(caller, family_of(target))
        address, port, protocol = target.address, target.port, target.protocol
        return self.lab.connect(
            caller.host, address, port, protocol, source=source, source_port=source_port, timeout=timeout
        )

    def answered(
        self, caller: Caller, target: Target, pods: Iterable[str], *, masqueraded: bool | None = None
    ) -> list[ProbeResult]:
        """Connect until each of these has answered, and at least so often that another would have been seen.

        `masqueraded` says whom they must have seen: the node or the caller. To itself a Pod is always the node.
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
            expected = self.lab.address(self.node_name, family)
        else:
            expected = self.address(caller, family)
        assert result.saw == expected, f"{caller} to {target}: {result}, expected to be seen as {expected}"

    def refused(self, caller: Caller, target: Target) -> None:
        """Connect, and be told at once that nobody is there."""
        self._told_at_once(caller, target, Outcome.REFUSED, repeat(None))

    def dropped(self, caller: Caller, target: Target) -> None:
        """Connect, and hear nothing."""
        self._became(caller, target, Outcome.TIMED_OUT, _FEW, timeout=0.3)

    def passed_on(self, caller: Caller, target: Target) -> None:
        """Connect, and find that the packet was left alone: behind the node there is no way to a VIP."""
        self._told_at_once(caller, target, Outcome.UNREACHABLE, _passed_on)

    def _told_at_once(
        self, caller: Caller, target: Target, outcome: Outcome, source_ports: Iterator[int | None]
    ) -> None:
        """Connect, and be told so each time: at the first SYN, once the machine has not stood still for that long.

        Whom the first SYN tells nothing is told late however often he tries.
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
        """Connect so often, and find the same endpoint each time; return its name."""
        pods = {result.pod for result in self.probe(caller, target, count)}
        assert len(pods) == 1, f"{caller} to {target}: {sorted(pods)}, expected one of them only"
        assert pods != {""}, f"{caller} to {target}: nobody answers"
        return pods.pop()


def family_of(target: Target) -> Family:
    """Tell the family of a target."""
    return Family.IPV6 if ":" in target.address else Family.IPV4
