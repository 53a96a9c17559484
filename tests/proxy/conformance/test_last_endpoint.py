"""Open connections outlive the last endpoint, whatever the frontend is and wherever the other endpoints are."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, suppress
from typing import Any

import pytest
from tests.proxy.conformance.cluster import Cluster
from tests.proxy.conformance.packets import OUTSIDE, POD, Caller
from tests.proxy.conformance.sentences import sentence
from tests.proxy.conformance.services import EXTERNAL_IP, LOAD_BALANCER, NODE_PORT, LabService

from vipwire.model.net import Family
from vipwire_lab.cluster.continuous import Connection
from vipwire_lab.cluster.manifests import Backend, Manifest, Port
from vipwire_lab.cluster.outcome import Target
from vipwire_lab.namespaces.topology import Pod

pytestmark = pytest.mark.conformance

_LOCAL: dict[str, Any] = {"externalTrafficPolicy": "Local"}
_RANGES: dict[str, Any] = {"loadBalancerSourceRanges": ["203.0.113.0/24", "2001:db8:113::/48"]}
_SPECS: dict[str, dict[str, Any]] = {
    "cluster": {},
    "local": _LOCAL,
    "ranges": _RANGES,
    "local-ranges": _LOCAL | _RANGES,
    "local-affinity": _LOCAL | {"sessionAffinity": "ClientIP"},
    "own": {},
    "own-local": _LOCAL,
    "wide": {},
    "wide-local": _LOCAL,
    "wide-own": {},
}
_WIDE = 9  # ports behind the first


def _objects(
    cluster: Cluster, service: LabService, kind: str, hosts: list[Backend | Pod], **more: Any
) -> list[Manifest]:
    spec = _SPECS[kind] | more
    if "own" in kind:
        spec = spec | {"externalIPs": [cluster.lab.find_host("node-1").addresses[index] for index in (1, 3)]}
    made, *slices = service.objects(hosts, **spec)
    if "wide" in kind:
        port = service.ports[0].port
        made["metadata"]["annotations"] = {"vipwire.io/port-range": f"{port}-{port + _WIDE}"}
    return [made, *slices]


def _targets(cluster: Cluster, service: LabService, kind: str, family: Family) -> Iterator[Target]:
    port = service.ports[0].port
    if "own" in kind:
        own = [each for each in cluster.lab.find_host("node-1").addresses if (":" in each) is (family is Family.IPV6)]
        yield Target(own[1], port)
    else:
        yield from (service.at(each, family) for each in (EXTERNAL_IP, LOAD_BALANCER))
    yield service.at(NODE_PORT, family)
    if "wide" in kind and "S146" not in cluster.mode.cannot:
        yield Target(next(_targets(cluster, service, "own" if "own" in kind else "", family)).address, port + _WIDE)


def _connected(
    cluster: Cluster, stack: ExitStack, targets: Iterable[tuple[str, Target, Caller]]
) -> dict[str, Connection]:
    """Open connections that last for the block, by what they are."""
    return {
        f"{kind}: {caller} to {target}": stack.enter_context(cluster.connect(caller, target))
        for kind, target, caller in targets
    }


def _lost(connections: Mapping[str, Connection]) -> Iterator[str]:
    for about, connection in connections.items():
        with suppress(OSError):
            if connection.exchange(b"still there?\n") == b"still there?\n":
                continue
        yield about


@sentence("S100")
def test_open_connections_outlive_the_last_endpoint(cluster: Cluster, family: Family) -> None:
    here, there = cluster.pods("pod-1a", "pod-2a")
    names = {kind: f"last-{kind}-{family.value}".lower() for kind in _SPECS}
    services = {
        kind: cluster.named(name, [Port(4400 + 20 * at, 80)]) for at, (kind, name) in enumerate(names.items())
    }

    def become(hosts: list[Backend | Pod]) -> None:
        cluster.put_all({name: _objects(cluster, services[kind], kind, hosts) for kind, name in names.items()})

    lasts: dict[str, list[Backend | Pod]] = {
        "removed": [],
        "not serving": [Backend(here, ready=False, serving=False, terminating=True)],
        "elsewhere": [there],
    }
    lost: list[str] = []
    for last, hosts in lasts.items():
        become([here])
        with ExitStack() as stack:
            targets = (
                (kind, target, caller)
                for kind, service in services.items()
                for target in _targets(cluster, service, kind, family)
                for caller in ((OUTSIDE,) if "ranges" in kind else (OUTSIDE, POD))
            )
            connections = _connected(cluster, stack, targets)
            become(hosts)
            lost += [f"{last}: {each}" for each in _lost(connections)]
    cluster.put_all(dict.fromkeys(names.values(), ()))
    assert not lost, "\n".join(lost)


@sentence("S100")
def test_open_connections_outlive_a_change_of_policy(cluster: Cluster, family: Family) -> None:
    """The policy goes to and fro; the endpoint stays."""
    here = cluster.pods("pod-1a")
    kinds = ("cluster", "own", "wide")
    names = {kind: f"policy-{kind}-{family.value}".lower() for kind in kinds}
    services = {
        kind: cluster.named(name, [Port(4700 + 20 * at, 80)]) for at, (kind, name) in enumerate(names.items())
    }

    def become(external: str, internal: str) -> None:
        policies = {"externalTrafficPolicy": external, "internalTrafficPolicy": internal}
        objects = {name: _objects(cluster, services[kind], kind, [*here], **policies) for kind, name in names.items()}
        cluster.put_all(objects)

    lost: list[str] = []
    for before, after in (("Local", "Cluster"), ("Cluster", "Local")):
        become(before, before)
        with ExitStack() as stack:
            targets = (
                (kind, target, caller)
                for kind, service in services.items()
                for target in (*_targets(cluster, service, kind, family), service.vip(family))
                for caller in (OUTSIDE, POD)
            )
            connections = _connected(cluster, stack, targets)
            for policy in (after, before, after):
                become(policy, policy)
                lost += [f"{before} to {policy}: {each}" for each in _lost(connections)]
    cluster.put_all(dict.fromkeys(names.values(), ()))
    assert not lost, "\n".join(lost)
