"""Endpoints that do not answer new connections get none for a while, by annotation; never the last one."""

import contextlib
from collections import Counter
from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest
from tests.fakes.waiting import until
from tests.proxy.conformance.cluster import Cluster
from tests.proxy.conformance.packets import NODE, OUTSIDE, PATIENCE, POD, Packets
from tests.proxy.conformance.sentences import sentence
from tests.proxy.conformance.services import EXTERNAL, LabService

from vipwire.model.net import Family
from vipwire_lab.cluster.outcome import ProbeOptions, Target
from vipwire_lab.namespaces.errors import LabError

pytestmark = [pytest.mark.attack, pytest.mark.conformance]
FIRST, SECOND, THIRD = "pod-1b", "pod-2a", "pod-1c"
_EJECTED = 'msg="endpoint ejected"'
_NUMBERS = count()
"""A test that failed leaves its Service, with an endpoint that stays ejected: the next one has another Service."""


class Ejecting:
    """A Service that wants ejection, and what the proxy has said of it since it was written."""

    def __init__(self, cluster: Cluster, name: str, family: Family, *pods: str, **annotations: str) -> None:
        self.cluster, self.family = cluster, family
        self.service: LabService = cluster.named(f"{name}-{family.value.lower()}-{next(_NUMBERS)}")
        self.since = len(cluster.proxy.log)
        self.last: dict[int, str] = {}
        self.objects = self.service.objects(cluster.pods(*pods))
        self.objects[0]["metadata"]["annotations"] = {
            "vipwire.io/eject-after": "3",
            **{f"vipwire.io/{key.replace('_', '-')}": value for key, value in annotations.items()},
        }

    def write(self, **spec: Any) -> "Ejecting":
        self.objects[0]["spec"] |= spec
        self.cluster.put(self.service.name, self.objects)
        return self

    @property
    def vip(self) -> Target:
        return self.service.vip(self.family)

    def ejected(self) -> list[str]:
        """Name the Pods that were ejected of this Service, in order."""
        lines = [line for line in self.cluster.proxy.log[self.since :].splitlines() if _EJECTED in line]
        of_ours = [line for line in lines if f"/{self.service.name}" in line]
        found = []
        for pod in self.cluster.pods(FIRST, SECOND, THIRD):
            found += [pod.name for line in of_ours if self.cluster.lab.address_of(pod.name, self.family) in line]
        return found

    def knock(self, count: int = 12) -> Counter[str]:
        """Connect, whatever becomes of it: nobody can say that beforehand. `last` notes by port who has answered."""
        manner = ProbeOptions(timeout=0.5, count=count, parallel=count)
        results = Packets.send(self.cluster, OUTSIDE, self.vip, manner)
        self.last |= {result.source.port: result.pod for result in results if result.source}
        return Counter(result.pod for result in results)

    def again(self) -> list[str]:
        """Connect once more from a few of the ports at which nobody answered; name who does now."""
        answered: list[str] = []
        for port in [port for port, pod in self.last.items() if not pod][:-6:-1]:
            manner = ProbeOptions(source_port=port, timeout=PATIENCE)
            with contextlib.suppress(LabError):  # a connection to another address rests at this port, too
                answered += [result.pod for result in Packets.send(self.cluster, OUTSIDE, self.vip, manner)]
        return answered

    def until_ejected(self) -> str:
        until(lambda: self.knock() and self.ejected(), lambda: f"one is ejected:\n{self.cluster.proxy.log[-3000:]}")
        return self.ejected()[0]

    def end(self) -> None:
        self.cluster.put(self.service.name, [])


@contextlib.contextmanager
def silent(cluster: Cluster, pod: str, family: Family) -> Iterator[None]:
    """Have a Pod answer nothing: it has no route for what it sends."""
    rule = ["ip", "-6" if family is Family.IPV6 else "-4", "rule"]
    cluster.lab.run(pod, [*rule, "add", "priority", "100", "blackhole"])
    try:
        yield
    finally:
        cluster.lab.run(pod, [*rule, "del", "priority", "100"])


@contextlib.contextmanager
def closed(cluster: Cluster, *pods: str) -> Iterator[None]:
    """Have Pods refuse connections."""
    for pod in pods:
        cluster.lab.stop_echo_servers(pod)
    try:
        yield
    finally:
        for pod in pods:
            cluster.lab.start_pod(pod)


@sentence("S162", "S167")
def test_one_that_is_silent_gets_no_new_connections_at_any_frontend(cluster: Cluster, family: Family) -> None:
    of = Ejecting(cluster, "silent", family, FIRST, SECOND, THIRD, eject_for="60m").write(type="NodePort")
    with silent(cluster, SECOND, family):
        assert of.until_ejected() == SECOND
        assert set(of.again()) in ({FIRST}, {THIRD}, {FIRST, THIRD})
        for target in (of.vip, *(of.service.at(kind, family) for kind in EXTERNAL)):
            cluster.answered(OUTSIDE, target, [FIRST, THIRD])
        for caller in (POD, NODE):
            cluster.answered(caller, of.vip, [FIRST, THIRD])
    of.end()


@sentence("S162", "S163")
def test_one_that_refuses_comes_back_when_its_time_is_over(cluster: Cluster, family: Family) -> None:
    of = Ejecting(cluster, "closed", family, FIRST, SECOND, THIRD, eject_for="1s").write()
    with closed(cluster, FIRST):
        assert of.until_ejected() == FIRST
    until(lambda: of.knock()[FIRST], "it is used again")
    cluster.answered(OUTSIDE, of.vip, [FIRST, SECOND, THIRD])
    of.end()


@sentence("S164")
def test_the_last_one_stays(cluster: Cluster, family: Family) -> None:
    of = Ejecting(cluster, "last", family, FIRST, SECOND, eject_for="60m", eject_at_most="100").write()
    with closed(cluster, FIRST, SECOND):
        gone = of.until_ejected()
        of.knock(24)
    assert of.ejected() == [gone]
    cluster.answered(OUTSIDE, of.vip, [SECOND if gone == FIRST else FIRST])
    of.end()


@sentence("S165")
def test_a_client_that_is_remembered_for_it_is_given_another(cluster: Cluster, family: Family) -> None:
    of = Ejecting(cluster, "remembered", family, FIRST, SECOND, eject_for="60m").write(sessionAffinity="ClientIP")
    (had,) = of.knock(3)
    other = SECOND if had == FIRST else FIRST
    with closed(cluster, had):
        assert of.until_ejected() == had
        assert {result.pod for result in cluster.probe(OUTSIDE, of.vip, 6)} == {other}
    of.end()


@sentence("S166")
def test_a_restart_forgets(restless: Cluster, family: Family) -> None:
    of = Ejecting(restless, "forgotten", family, FIRST, SECOND, eject_for="60m").write()
    with closed(restless, FIRST):
        assert of.until_ejected() == FIRST
    restless.answered(OUTSIDE, of.vip, [SECOND])
    assert restless.proxy.end_process() == 0
    restless.proxy.start()
    restless.answered(OUTSIDE, of.vip, [FIRST, SECOND])
    of.end()
