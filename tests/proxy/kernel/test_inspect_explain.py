"""What `vipwire explain` says is what real packets meet: each kind of frontend, policy and client, both families."""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from vipwire.config.configuration import Config
from vipwire.config.flags import build_config, parse_flags
from vipwire.inspect.explain.document import explain_document
from vipwire.inspect.explain.explanation import Explanation, explain
from vipwire.inspect.explain.packet import read_packet
from vipwire.inspect.explain.routes import obstacle_towards, source_towards
from vipwire.inspect.node.situation import Situation, opened, take
from vipwire.inspect.node.source import list_once, make_source
from vipwire.inspect.status.document import Document
from vipwire.model.net import Family, Protocol, format_endpoint, parse_address
from vipwire_lab.lab import manifests
from vipwire_lab.lab.cluster import Lab
from vipwire_lab.lab.manifests import Manifest, Port
from vipwire_lab.lab.outcome import Outcome, ProbeResult, Target
from vipwire_lab.net.topology import DEFAULT, SERVICE_CIDRS

pytestmark = pytest.mark.kernel

CALLERS = {"pod-1c": 0, "node-1": 1, "client": 0, "client (other address)": 1}
"""Hosts, and from which of their addresses of a family they connect."""


class Offer(NamedTuple):
    """A Service of the test: its Pods, and what its spec says beside the ordinary."""

    pods: tuple[str, ...]
    spec: dict[str, Any] = {}  # noqa: RUF012 - never changed
    protocol: Protocol = Protocol.TCP
    annotations: dict[str, str] = {}  # noqa: RUF012


_AFFINE = {"sessionAffinity": "ClientIP", "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 300}}}


def _by(algorithm: str) -> dict[str, str]:
    return {"vipwire.io/algorithm": algorithm}


OFFERS = {
    "web": Offer(("pod-1a", "pod-2a")),
    "local": Offer(("pod-1a", "pod-2a"), {"externalTrafficPolicy": "Local"}),
    "away": Offer(("pod-2a",), {"externalTrafficPolicy": "Local"}),
    "inside": Offer(("pod-1a", "pod-2a"), {"internalTrafficPolicy": "Local"}),
    "nobody-inside": Offer(("pod-2a",), {"internalTrafficPolicy": "Local"}),
    "empty": Offer(()),
    "guarded": Offer(("pod-1a",), {"loadBalancerSourceRanges": ["203.0.113.0/25", "2001:db8:113::/120"]}),
    "sticky": Offer(
        ("pod-1a", "pod-1b", "pod-2a"),
        _AFFINE,
    ),
    "dns": Offer(("pod-1a", "pod-2b"), {}, Protocol.UDP),
    "itself": Offer(("pod-1c",)),
    "hashed": Offer(("pod-1a", "pod-1b", "pod-2a", "pod-2b"), {}, Protocol.TCP, _by("source-hash")),
    "turns": Offer(("pod-1a", "pod-2b"), {"externalTrafficPolicy": "Local"}, Protocol.TCP, _by("round-robin")),
    "table": Offer(("pod-1a", "pod-1b", "pod-2a"), {}, Protocol.TCP, _by("maglev")),
    "weighted": Offer(
        ("pod-1a", "pod-2a"),
        {},
        Protocol.TCP,
        {"vipwire.io/weights": '{"10.244.1.11": 2, "fd00:10:244:1::11": 2}'},
    ),
    "shared": Offer(("pod-1a", "pod-2a"), _AFFINE, Protocol.TCP, {"vipwire.io/affinity-scope": "service"}),
}
_NETS = {
    ("cluster IP", Family.IPV4): "10.96.7.{}",
    ("external IP", Family.IPV4): "198.18.7.{}",
    ("loadbalancer IP", Family.IPV4): "198.19.7.{}",
    ("cluster IP", Family.IPV6): "fd00:10:96::7{:02x}",
    ("external IP", Family.IPV6): "2001:db8:e::{:x}",
    ("loadbalancer IP", Family.IPV6): "2001:db8:1b::{:x}",
}


class Elsewhere(NamedTuple):
    """A destination that no frontend has."""

    what: str
    four: str
    six: str
    port: int
    outcome: str


ELSEWHERE = (
    Elsewhere("a port that a ClusterIP does not have", "10.96.7.1", "fd00:10:96::701", 81, "rejected"),
    Elsewhere("an address that no Service has", "10.96.200.1", "fd00:10:96::f001", 80, "dropped"),
    Elsewhere("a node port at a node's other address", "192.168.1.1", "fd00:192:168:1::1", 30101, "untouched"),
    Elsewhere("a port of the node that nobody serves", "192.168.0.1", "fd00:192:168::1", 9, "untouched"),
    Elsewhere("an external IP's port that is not served", "198.18.7.1", "2001:db8:e::1", 81, "untouched"),
)
KINDS = ("cluster IP", "external IP", "loadbalancer IP", "node port")


def target(name: str, kind: str, family: Family) -> Target:
    number = list(OFFERS).index(name) + 1
    protocol = OFFERS[name].protocol
    if kind == "node port":
        address = "192.168.0.1" if family is Family.IPV4 else "fd00:192:168::1"
        return Target(address, 30100 + number, protocol)
    return Target(_NETS[kind, family].format(number), 80, protocol)


def objects(name: str) -> list[Manifest]:
    offer = OFFERS[name]
    ports = [Port(80, protocol=offer.protocol, node_port=target(name, "node port", Family.IPV4).port)]
    ips = [target(name, "cluster IP", family).address for family in Family]
    outer = [target(name, "external IP", family).address for family in Family]
    made = manifests.service(name, ips, ports, type="LoadBalancer", externalIPs=outer, **offer.spec)
    made["metadata"]["annotations"] = offer.annotations
    status = manifests.load_balancer_status(*(target(name, "loadbalancer IP", family).address for family in Family))
    pods = [pod for pod in DEFAULT.pods if pod.name in offer.pods]
    return [made | status, *manifests.endpoint_slices(DEFAULT, name, pods, ports)]


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with Lab(DEFAULT) as made:
        yield made


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Config:
    folder: Path = tmp_path_factory.mktemp("manifests")
    cidr = {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "ServiceCIDR",
        "metadata": {"name": "kubernetes"},
        "spec": {"cidrs": list(SERVICE_CIDRS)},
    }
    every = [
        *(manifests.node(node) for node in DEFAULT.nodes),
        cidr,
        *(each for name in OFFERS for each in objects(name)),
    ]
    (folder / "all.yaml").write_text("---\n".join(json.dumps(each) + "\n" for each in every))
    flags = [
        f"--manifests={folder}",
        "--hostname-override=node-1",
        "--cluster-cidr=10.244.0.0/16,fd00:10:244::/48",
        "--nodeport-addresses=primary",
    ]
    return build_config(parse_flags(flags)).config


def look(lab: Lab, config: Config) -> Situation:
    with lab.inside("node-1"), opened(config) as kernel:
        return take(config, list_once(make_source(config)), kernel)


@pytest.fixture(scope="module")
def situation(lab: Lab, config: Config) -> Situation:
    """Program the node as the proxy would, and look at it."""
    with lab.inside("node-1"), opened(config) as kernel:
        for side in take(config, list_once(make_source(config)), kernel).sides:
            assert side.delta, "nothing is programmed at first"
            assert side.mode is not None
            side.mode.commit(side.delta)
    programmed = look(lab, config)
    assert [side.delta is not None and len(side.delta) for side in programmed.sides] == [0, 0]
    return programmed


def caller_address(lab: Lab, caller: str, family: Family) -> tuple[str, str]:
    host = caller.partition(" ")[0]
    found = [each for each in lab.host(host).addresses if (":" in each) is (family is Family.IPV6)]
    return host, found[CALLERS[caller]]


def explained(lab: Lab, situation: Situation, source: str, where: Target) -> Explanation:
    destination = f"{format_endpoint(parse_address(where.address), where.port)}/{where.protocol.label}"
    with lab.inside("node-1"):
        packet = read_packet(situation, source, destination)
        made = explain(situation, packet, source_towards)
        assert made is not None
        explain_document(made)  # the addresses that endpoints see are looked up in the node's namespace
        return made


def said(lab: Lab, explanation: Explanation) -> Document:
    with lab.inside("node-1"):
        return explain_document(explanation)


def happened(results: list[ProbeResult]) -> str:
    outcomes = {result.outcome for result in results}
    assert len(outcomes) == 1, outcomes
    outcome = outcomes.pop()
    return {Outcome.TIMED_OUT: "dropped", Outcome.REFUSED: "rejected"}.get(outcome, outcome.value)


def check(document: Document, results: list[ProbeResult], *, whole_pool: bool = True) -> None:
    assert document["kernel"]["agrees"] is True, (document["kernel"]["difference"], document["endpoints"])
    if document["outcome"] == "untouched":
        assert not any(result.answer for result in results), document
        return
    assert happened(results) == document["outcome"], document
    if document["outcome"] != "answered":
        return
    expected = {(each["address"], each["port"]): each["sees"] for each in document["endpoints"]}
    seen = {(each.answer.local.address, each.answer.local.port): each.saw for each in results if each.answer}
    if whole_pool:
        assert seen == expected
    else:
        assert seen.items() <= expected.items()


@pytest.mark.parametrize("family", list(Family), ids=lambda family: family.value)
@pytest.mark.parametrize("caller", CALLERS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", OFFERS)
def test_packets_meet_what_is_explained(
    lab: Lab, situation: Situation, name: str, kind: str, caller: str, family: Family
) -> None:
    where = target(name, kind, family)
    host, source = caller_address(lab, caller, family)
    document = said(lab, explained(lab, situation, source, where))
    count = 48 if document["outcome"] == "answered" else 2
    manner: Any = {"source": source, "count": count, "timeout": patience(document)}
    results = lab.probe(host, where.address, where.port, where.protocol, **manner)
    check(document, results, whole_pool=name not in ("sticky", "shared"))


def patience(document: Document) -> float:
    """Tell how long an answer may take, in seconds; where there will be none, how long to wait for it."""
    return 20.0 if document["outcome"] in ("answered", "rejected") else 0.3


@pytest.mark.parametrize("family", list(Family), ids=lambda family: family.value)
@pytest.mark.parametrize("caller", CALLERS)
@pytest.mark.parametrize("case", ELSEWHERE, ids=[case.what for case in ELSEWHERE])
def test_what_no_frontend_has_is_explained(
    lab: Lab, situation: Situation, case: Elsewhere, caller: str, family: Family
) -> None:
    where = Target(case.four if family is Family.IPV4 else case.six, case.port)
    host, source = caller_address(lab, caller, family)
    document = said(lab, explained(lab, situation, source, where))
    assert document["outcome"] == case.outcome
    check(document, lab.probe(host, where.address, where.port, source=source, count=2, timeout=patience(document)))


@pytest.mark.parametrize("family", list(Family), ids=lambda family: family.value)
@pytest.mark.parametrize("name", ["sticky", "shared"])
def test_the_endpoint_that_a_client_is_bound_to_is_named(
    lab: Lab, situation: Situation, name: str, family: Family
) -> None:
    where = target(name, "external IP", family)
    host, source = caller_address(lab, "client", family)
    (first,) = lab.probe(host, where.address, where.port, source=source)
    assert first.answer is not None
    remembered = said(lab, explained(lab, situation, source, where))["kernel"]["remembered"]
    endpoint = parse_address(first.answer.local.address), first.answer.local.port
    assert remembered["endpoint"] == format_endpoint(*endpoint)
    assert 0 < remembered["seconds"] <= 300


def test_an_address_without_a_route_is_known(lab: Lab) -> None:
    with lab.inside("node-1"):
        for kind in ("blackhole", "unreachable", "prohibit", "throw"):
            subprocess.run(["ip", "route", "add", kind, f"198.18.{len(kind)}.0/24"], check=True)
        said = {
            kind: obstacle_towards(parse_address(f"198.18.{len(kind)}.1"))
            for kind in ("blackhole", "unreachable", "prohibit", "throw")
        }
        assert said == {
            "blackhole": "a route drops it",
            "unreachable": "host is unreachable",
            "prohibit": "a route prohibits it",
            "throw": "network is unreachable",
        }
        for address in (*lab.host("node-2").addresses, "127.0.0.1", "::1"):
            assert obstacle_towards(parse_address(address)) == ""
