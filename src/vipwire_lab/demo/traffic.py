"""The scenes in which nothing changes: who answers, and whom they see."""

from vipwire.model.net import Protocol
from vipwire_lab.demo import objects
from vipwire_lab.demo.narrator import Narrator
from vipwire_lab.demo.stage import Stage
from vipwire_lab.lab.outcome import Outcome

CLIENT, CLIENT_ADDRESS, NODE_ADDRESS = "client", "203.0.113.2", "192.168.0.1"
CLIENT_IPV6 = "2001:db8:113::2"
POD = objects.PODS[0]
OTHER_POD = objects.PODS[1]
MANY = 100
_AT_ONCE = 1.0
"""Seconds. A SYN that nobody refuses is repeated after one second: whoever is refused sooner was told at once."""


def from_a_pod(stage: Stage, narrator: Narrator) -> None:
    """Connect from a Pod to a ClusterIP."""
    narrator.chapter(f"A Pod asks the ClusterIP {objects.WEB} of Service web, {MANY} times")
    results = stage.lab.probe(POD.name, objects.WEB, 80, count=MANY)
    narrator.results(results)
    narrator.check_answers(results, objects.PODS, "all 5 Pods, chosen at random")
    others = [result for result in results if result.pod != POD.name]
    narrator.check(
        f"the others saw {POD.name}'s own address: no source NAT between Pods",
        holds=all(result.saw == POD.addresses[0] for result in others),
    )
    itself = [result for result in results if result.pod == POD.name]
    narrator.check(
        f"{POD.name} was also sent to itself, and saw its node: else its answer would not pass the NAT",
        holds=bool(itself) and all(result.saw != POD.addresses[0] for result in itself),
    )
    udp = stage.lab.probe(POD.name, objects.WEB, 53, Protocol.UDP, count=20)
    narrator.check("UDP works the same way", holds=all(result.answer for result in udp))


def from_outside(stage: Stage, narrator: Narrator) -> None:
    """Connect from outside to a node port, and to a load balancer's address."""
    narrator.chapter("A client outside asks a node port, then a load balancer's address")
    port = objects.WEB_NODE_PORT
    narrator.say(f"{CLIENT} to {NODE_ADDRESS}:{port}, which is web's node port:")
    results = stage.lab.probe(CLIENT, NODE_ADDRESS, port, count=MANY)
    narrator.results(results)
    narrator.check_answers(results, objects.PODS, "all 5 Pods, on both nodes")
    narrator.check(
        "they saw node-1, so that their answers come back through it",
        holds={result.saw for result in results} == {NODE_ADDRESS},
    )
    narrator.say(f"{CLIENT} to {objects.SHOP_IP}:80, Service shop with externalTrafficPolicy: Local:")
    results = stage.lab.probe(CLIENT, objects.SHOP_IP, 80, count=MANY)
    narrator.results(results)
    narrator.check_answers(results, objects.LOCAL_PODS, "the Pods on this node only")
    narrator.check(
        "which is why they can see who the client really is", holds={r.saw for r in results} == {CLIENT_ADDRESS}
    )


def over_ipv6(stage: Stage, narrator: Narrator) -> None:
    """Connect over IPv6."""
    narrator.chapter("The same over IPv6")
    results = stage.lab.probe(OTHER_POD.name, objects.WEB_IPV6, 80, count=MANY)
    narrator.check_answers(results, objects.PODS, f"[{objects.WEB_IPV6}]:80 from {OTHER_POD.name}: all 5 Pods")
    results = stage.lab.probe(CLIENT, objects.SHOP_IPV6, 80, count=MANY)
    narrator.check_answers(results, objects.LOCAL_PODS, f"[{objects.SHOP_IPV6}]:80 from {CLIENT}: the Pods on node-1")
    narrator.check(f"and they saw {CLIENT_IPV6}", holds={result.saw for result in results} == {CLIENT_IPV6})


def nobody_there(stage: Stage, narrator: Narrator) -> None:
    """Connect to a Service without endpoints."""
    narrator.chapter("A Service without endpoints refuses, at once")
    for host in (POD.name, CLIENT):
        (result,) = stage.lab.probe(host, objects.EMPTY, 80, timeout=3.0)
        narrator.check(
            f"{host} to {objects.EMPTY}:80: {result.outcome.value} after {result.duration * 1000:.1f} ms",
            holds=result.outcome is Outcome.REFUSED and result.duration < _AT_ONCE,
        )


def clients_stick(stage: Stage, narrator: Narrator) -> None:
    """Connect to a Service with session affinity."""
    narrator.chapter(f"Session affinity: each client of {objects.STICKY} stays where it went first")
    clients = (
        (CLIENT, CLIENT_ADDRESS),
        (CLIENT, "203.0.113.130"),
        *((pod.name, pod.addresses[0]) for pod in objects.PODS[:3]),
    )
    for host, source in clients:
        results = stage.lab.probe(host, objects.STICKY, 80, source=source, count=20, parallel=1)
        who = {result.pod for result in results}
        names = ", ".join(sorted(who))
        narrator.check(f"20 connections from {source}: all to {names}", holds=len(who) == 1 and "" not in who)
