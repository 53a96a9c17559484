"""What explain and diff say of ipvs mode is what tools do, on a real IPVS kernel; packets: see conformance."""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import pytest
from tests.fakes.values import ip
from tests.proxy.kernel.ipvs.proxy import (
    BALANCER,
    EXTERNAL,
    FAMILIES,
    NODE,
    VIP,
    IpvsProxy,
    addresses,
    annotated,
    in_turn,
    slices,
    web,
)

from vipwire.model.net import Family, Protocol, family_of, parse_address
from vipwire.model.service import Service, ServicePort, TrafficPolicy
from vipwire.modes.ipvs.explain.explainer import IpvsExplainer
from vipwire.modes.ipvs.objects.names import Object, ObjectKey
from vipwire.plan.resolve import Packet
from vipwire.reconcile.delta import compute_delta
from vipwire.reconcile.explainer import Walk
from vipwire.reconcile.steps import End, ObjectState, Verdict
from vipwire_lab.cluster.cluster import Lab
from vipwire_lab.cluster.outcome import Outcome, ProbeResult, count_pods

pytestmark = pytest.mark.kernel

PORT = ServicePort("", Protocol.TCP, 80, 30080)
ALL = ("pod-1a", "pod-1b", "pod-2a")


class Offer(NamedTuple):
    """A Service of a test and its Pods."""

    service: Service
    pods: tuple[str, ...] = ("pod-1a", "pod-2a")


def offered(**fields: object) -> Service:
    return web(ports=(PORT,), external_ips=addresses(EXTERNAL), load_balancer_ips=addresses(BALANCER), **fields)


OFFERS = {
    "weighted": Offer(offered(annotations=annotated(weights='{"10.244.1.11": 3, "fd00:10:244:1::11": 3}'))),
    "external Local": Offer(offered(external_policy=TrafficPolicy.LOCAL)),
}


class Seen:
    """One family's observed and desired objects, for questions about packets."""

    def __init__(self, proxy: IpvsProxy, family: Family) -> None:
        self.proxy, self.family = proxy, family
        line = proxy.lines[family]
        self.own = frozenset(
            a for a in map(parse_address, proxy.lab.find_host(NODE).addresses) if family_of(a) is family
        )
        self.wanted: dict[ObjectKey, Object] = dict(line.backend.render_node(line.planner.node))
        for plan in line.planner.plans.values():
            rendered = line.backend.render(plan)
            self.wanted |= {**rendered.own, **rendered.shared}
        self.observed: Mapping[ObjectKey, Object] = {}
        self.look()

    def look(self) -> None:
        with self.proxy.lab.enter_namespace(NODE):
            self.observed = self.proxy.lines[self.family].backend.observe()

    def walk(self, caller: str, address: str, port: int = 80) -> Walk:
        source = parse_address(self.proxy.lab.address_of(caller, self.family))
        from_node = caller == NODE
        to_node = ip(address) in self.own
        packet = Packet(source, ip(address), Protocol.TCP, port, "" if from_node else "any", from_node, to_node)
        backend = self.proxy.lines[self.family].backend
        with self.proxy.lab.enter_namespace(NODE):
            explainer = IpvsExplainer(self.family, lambda: backend.resting)
            return explainer.walk(self.observed, self.wanted, packet, self.own)


def agree(lab: Lab, seen: Seen, walk: Walk, results: list[ProbeResult], caller: str, where: str) -> None:
    text = f"{where}: {walk}\n{count_pods(results)} {results[0]}"
    outcomes = {result.outcome for result in results}
    expected = {
        End.ANSWERED: {Outcome.ANSWERED},
        End.DROPPED: {Outcome.TIMED_OUT},
        End.REJECTED: {Outcome.REFUSED},
    }[walk.end]
    assert outcomes == expected, text
    assert {step.state for step in walk.steps} <= {ObjectState.PLANNED}, text
    if walk.end is not End.ANSWERED or walk.shares is None:
        return
    said = {target[0] for target in walk.shares if target is not None}
    met = {ip(lab.address_of(result.pod, seen.family)) for result in results}
    assert met <= said, text
    assert met == said or (caller == NODE and "source" in where), text  # it chooses its source address itself
    for result in results:
        masqueraded = ip(lab.address_of(result.pod, seen.family)) in walk.masqueraded
        assert result.saw == lab.address_of(NODE if masqueraded else caller, seen.family), text


@FAMILIES
def test_shares_are_those_of_the_scheduler(lab: Lab, proxy: IpvsProxy, family: Family) -> None:
    proxy.put(OFFERS["weighted"].service, *slices(lab, "web", ("pod-1a", "pod-2a")))
    walk = Seen(proxy, family).walk("client", VIP[family])
    assert walk.shares is not None
    met = count_pods(lab.probe("client", VIP[family], 80, count=8, parallel=1))
    said = {target[0]: share for target, share in walk.shares.items() if target is not None}
    assert {pod: said[ip(lab.address_of(pod, family))] * 8 for pod in met} == met


@FAMILIES
def test_a_client_that_is_remembered_is_told(lab: Lab, proxy: IpvsProxy, family: Family) -> None:
    for service, place in (
        (web(affinity_seconds=120), VIP[family]),
        (
            web(affinity_seconds=120, external_policy=TrafficPolicy.LOCAL, external_ips=addresses(EXTERNAL)),
            EXTERNAL[family],
        ),
    ):
        proxy.put(service, *slices(lab, "web", ("pod-1a", "pod-1b")))
        seen = Seen(proxy, family)
        assert seen.walk("client", place).remembered is None
        (result,) = lab.probe("client", place, 80)
        remembered = seen.walk("client", place).remembered
        assert remembered is not None
        assert remembered[:2] == (ip(lab.address_of(result.pod, family)), 80)
        assert 60 < remembered[2] <= 120
        assert seen.walk("pod-1c", place).remembered is None
        proxy.drop("web")


@in_turn("chosen", {}, {"algorithm": "source-hash"})
def test_who_finishes_connections_is_told_and_is_no_difference(
    lab: Lab, proxy: IpvsProxy, family: Family, chosen: dict[str, str]
) -> None:
    """By somebody who did not see it begin, as the commands explain and diff do."""
    of = web(annotations=annotated(**chosen))
    proxy.put(of, *slices(lab, "web", ALL))
    with lab.connect("client", VIP[family], 80) as connection:
        gone = connection.answer.pod
        proxy.put(of, *slices(lab, "web", [pod for pod in ALL if pod != gone]))
        proxy.housekeep()
        with proxy.restarted() as other:
            seen = Seen(other, family)
            delta = compute_delta(seen.observed, seen.wanted)
            assert not delta, f"{delta.added} {delta.changed} {delta.removed}"
            walk = seen.walk("client", VIP[family])
            assert [step.verdicts for step in walk.steps if step.text == "weight 0"] == [(Verdict.FINISH,)]
            results = lab.probe("client", VIP[family], 80, count=6, parallel=1)
            agree(lab, seen, walk, results, "client", "source" if chosen else "plain")


def legacy(script: Iterable[str]) -> list[str]:
    """Return the variant of the guest's tool."""
    return [line.replace("tables -t", "tables-legacy -t", 1) for line in script]


DAMAGES = {
    "no virtual server": "ipvsadm -D -t 10.96.0.10:80",
    "no real server": "ipvsadm -d -t 10.96.0.10:80 -r 10.244.1.11:80",
    "another weight": "ipvsadm -e -t 10.96.0.10:80 -r 10.244.1.11:80 -m -w 9",
    "another scheduler": "ipvsadm -E -t 10.96.0.10:80 -s lc -p 30",
    "no elements": "ipset flush KUBE-CLUSTER-IP",
    "no rules": "iptables-legacy -t nat -F KUBE-SERVICES",
    "no jump": "iptables-legacy -t nat -F POSTROUTING",
    "no address": "ip address del 10.96.0.10/32 dev kube-ipvs0",
    "no device": "ip link del kube-ipvs0",
}


def test_damage_is_seen_on_the_way_and_the_script_of_diff_repairs_it(lab: Lab, proxy: IpvsProxy) -> None:
    """In IPv4; the next test has every kind of command in IPv6."""
    family = Family.IPV4
    proxy.put(web(), *slices(lab, "web", ("pod-1a", "pod-2a")))
    seen = Seen(proxy, family)
    assert {step.state for step in seen.walk("client", VIP[family]).steps} == {ObjectState.PLANNED}
    for harm, command in DAMAGES.items():
        lab.run(NODE, command.split())
        seen.look()
        walk = seen.walk("client", VIP[family])
        assert {step.state for step in walk.steps} - {ObjectState.PLANNED}, f"{harm}: {walk}"
        script = list(IpvsExplainer(family).write_script(compute_delta(seen.observed, seen.wanted)))
        assert script, harm
        lines = legacy(script)
        lab.run(NODE, ["sh", "-ec", "\n".join(lines)])
        seen.look()
        left = compute_delta(seen.observed, seen.wanted)
        assert not left, f"{harm}: {left.added} {left.changed} {left.removed}"
    assert set(count_pods(lab.probe("client", VIP[family], 80, count=4))) == {"pod-1a", "pod-2a"}


def test_the_script_makes_everything_and_removes_everything(lab: Lab, proxy: IpvsProxy) -> None:
    """As commands of the tools: all that the mode has written, by hand."""
    family = Family.IPV6
    offer = OFFERS["external Local"]
    proxy.put(offer.service, *slices(lab, "web", offer.pods))
    seen = Seen(proxy, family)
    explainer = IpvsExplainer(family)
    for have, want in ((seen.wanted, {}), ({}, seen.wanted)):
        script = explainer.write_script(compute_delta(have, want))
        lines = legacy(script)
        lab.run(NODE, ["sh", "-ec", "\n".join(lines)])
        seen.look()
        left = compute_delta(seen.observed, want)
        assert not left, f"{left.added} {left.changed} {left.removed}"


def test_a_rule_of_somebody_else_makes_it_uncertain(lab: Lab, proxy: IpvsProxy) -> None:
    proxy.put(web(), *slices(lab, "web", ("pod-1a",)))
    seen = Seen(proxy, Family.IPV4)
    rule = "-m statistic --mode random --probability 0.5 -j RETURN"
    lab.run(NODE, f"iptables-legacy -t nat -I KUBE-SERVICES {rule}".split())
    seen.look()
    walk = seen.walk("client", VIP[Family.IPV4])
    assert walk.end is End.UNKNOWN
    assert any(Verdict.UNREADABLE in step.verdicts for step in walk.steps)
    lab.run(NODE, f"iptables-legacy -t nat -D KUBE-SERVICES {rule}".split())
    seen.look()
    assert seen.walk("client", VIP[Family.IPV4]).end is End.ANSWERED
