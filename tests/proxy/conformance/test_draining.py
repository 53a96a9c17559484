"""`vipwire drain`: no new connections to an endpoint on this node, while those that it has go on."""

import json
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest
from tests.proxy.conformance.cluster import POD_CIDRS, Cluster
from tests.proxy.conformance.conftest import ClusterWith
from tests.proxy.conformance.packets import NODE, OUTSIDE, POD, Caller
from tests.proxy.conformance.sentences import sentence
from tests.proxy.conformance.services import EXTERNAL, NODE_PORT, LabService
from tests.proxy.conformance.test_changes_udp import UDP, all_hear, flows
from tests.proxy.conformance.translated import look

from vipwire.linux.conntrack.flows import FlowTable
from vipwire.model.net import Family, family_of, parse_address
from vipwire.plan.plan import FrontendKind
from vipwire_lab.cluster.manifests import Port

pytestmark = pytest.mark.conformance
HERE, THERE, THIRD = "pod-1b", "pod-2a", "pod-1c"
POD_THERE = Caller("pod-2b")


class Drained:
    """A cluster, and `vipwire drain` on its node with the flags of its proxy."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster

    def address(self, pod: str, family: Family) -> str:
        return self.cluster.lab.address_of(pod, family)

    def run(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        mode = self.cluster.mode
        flags = [f"--proxy-mode={mode.name}", f"--hostname-override={self.cluster.node_name}", *mode.flags]
        return self.cluster.proxy.command("drain", *arguments, *flags, *self.cluster.proxy.options)

    def done(self, *arguments: str) -> dict[str, Any]:
        """Do it, and find that the kernel has followed."""
        done = self.run(*arguments, "-o", "json")
        assert done.returncode == 0, done.stdout + done.stderr
        document: dict[str, Any] = json.loads(done.stdout)
        assert document.get("kernel", True), done.stdout + done.stderr
        return document

    def undo_all(self) -> None:
        for each in self.done("--list")["drained"]:
            self.done("--undo", each["endpoint"])


@pytest.fixture
def drained(cluster_with: ClusterWith, state: str) -> Iterator[Drained]:
    """A cluster of its own, in which nothing is drained before and after a test."""
    cluster = cluster_with([POD_CIDRS, f"--state-dir={state}"], "draining")
    made = Drained(cluster)
    yield made
    made.undo_all()


def everywhere(it: Drained, service: LabService, family: Family, *pods: str) -> None:
    """Find that these and no others answer, at each frontend."""
    for caller in (POD, NODE, OUTSIDE):
        for kind in FrontendKind:
            it.cluster.answered(caller, service.at(kind, family), pods)


@sentence("S136", "S137")
def test_a_drained_endpoint_gets_no_new_connection_until_that_is_undone(drained: Drained, family: Family) -> None:
    cluster = drained.cluster
    service = cluster.service("leaving", cluster.pods(HERE, THERE))
    document = drained.done(drained.address(HERE, family))
    assert "default/leaving" in document["services"]
    everywhere(drained, service, family, THERE)
    drained.done("--undo", drained.address(HERE, family))
    everywhere(drained, service, family, HERE, THERE)


@sentence("S137")
def test_the_time_of_a_drain_ends_it(drained: Drained, family: Family) -> None:
    cluster = drained.cluster
    service = cluster.service("leaving", cluster.pods(HERE, THERE))
    since = len(cluster.proxy.log)
    drained.done(drained.address(HERE, family), "--timeout=3s")
    cluster.proxy.said(since, "endpoint is no longer drained")
    cluster.answered(OUTSIDE, service.vip(family), [HERE, THERE])
    assert drained.done("--list")["drained"] == []


def forget_flows(cluster: Cluster, endpoint: str) -> None:
    """Forget all flows of an endpoint, also those of datagrams: tests before may have asked it by its own address."""
    there = parse_address(endpoint)
    with cluster.lab.enter_namespace(cluster.node_name), FlowTable() as table:
        table.delete([flow for flow in table.list_flows(family_of(there)) if flow.reply_source == there])


@sentence("S138")
def test_connections_that_it_has_go_on_and_are_counted(drained: Drained, family: Family) -> None:
    cluster = drained.cluster
    service = cluster.service("counted", cluster.pods(HERE))
    forget_flows(cluster, drained.address(HERE, family))  # of a relay's flows nothing tells the Service
    with cluster.connect(OUTSIDE, service.at(NODE_PORT, family)) as connection:
        cluster.service("counted", cluster.pods(HERE, THERE))
        ours = (drained.address(HERE, family), "--service=default/counted")
        assert drained.done(*ours)["connections"]["open"] == 1
        assert connection.exchange(b"still there?\n") == b"still there?\n"
        cluster.answered(OUTSIDE, service.at(NODE_PORT, family), [THERE])
        assert connection.exchange(b"still there?\n") == b"still there?\n"
        waited = drained.run(*ours, "--wait", "--timeout=2s")
        assert (waited.returncode, "1 connection left" in waited.stdout) == (1, True), waited.stdout + waited.stderr
    waited = drained.run(*ours, "--wait", "--timeout=60s")
    assert (waited.returncode, "no connections left" in waited.stdout) == (0, True), waited.stdout + waited.stderr


@pytest.mark.direct
@sentence("S138")
def test_connections_that_programs_made_are_counted_and_go_on(drained: Drained, family: Family) -> None:
    """Nothing of a Service is in them: only their other end says that they are the endpoint's."""
    cluster = drained.cluster
    service = cluster.service("counted-direct", cluster.pods(THERE))
    address, target = drained.address(THERE, family), service.vip(family)
    forget_flows(cluster, address)  # of tests before: they are the endpoint's as well
    before = look(cluster.lab, cluster.node_name, target).connections
    with cluster.connect(POD, target) as connection:
        assert look(cluster.lab, cluster.node_name, target).connections == before + 1, "by programs"
        cluster.service("counted-direct", cluster.pods(HERE, THERE))
        assert drained.done(address)["connections"]["open"] == 1
        cluster.answered(POD, target, [HERE])
        assert connection.exchange(b"still there?\n") == b"still there?\n"
        waited = drained.run(address, "--wait", "--timeout=2s")
        assert (waited.returncode, "1 connection left" in waited.stdout) == (1, True), waited.stdout + waited.stderr
    waited = drained.run(address, "--wait", "--timeout=60s")
    assert (waited.returncode, "no connections left" in waited.stdout) == (0, True), waited.stdout + waited.stderr


@sentence("S138")
def test_udp_clients_stay_as_long_as_they_send(drained: Drained, family: Family) -> None:
    cluster = drained.cluster
    service = cluster.service("leaving-udp", cluster.pods(HERE), UDP)
    with flows(cluster, service, family) as connections:
        all_hear(connections, HERE)
        cluster.service("leaving-udp", cluster.pods(HERE, THERE), UDP)
        drained.done(drained.address(HERE, family))
        all_hear(connections, HERE)
    for kind in EXTERNAL:
        cluster.answered(OUTSIDE, service.at(kind, family), [THERE])


@sentence("S139")
def test_a_restart_of_the_proxy_changes_nothing(drained: Drained, family: Family) -> None:
    cluster = drained.cluster
    service = cluster.service("leaving", cluster.pods(HERE, THERE))
    drained.done(drained.address(HERE, family))
    target = service.vip(family)
    cluster.proxy.stop()
    with cluster.lab.connect_continuously(OUTSIDE.host, target.address, target.port, interval=0.002) as stream:
        stream.wait_for(10)
        cluster.proxy.start()
        stream.wait_for(10)
    assert stream.report.failures == ()
    cluster.answered(OUTSIDE, target, [THERE])
    drained.done("--undo", drained.address(HERE, family))
    cluster.answered(OUTSIDE, target, [HERE, THERE])


@sentence("S140")
def test_one_service_or_one_port_can_be_drained_alone(drained: Drained, family: Family) -> None:
    cluster = drained.cluster
    ports = (Port(80, name="a"), Port(81, 8080, name="b"))
    first = cluster.service("first", cluster.pods(HERE, THERE), ports)
    other = cluster.service("other", cluster.pods(HERE, THERE))
    address = drained.address(HERE, family)
    drained.done(address, "--service=default/first")
    cluster.answered(OUTSIDE, first.vip(family), [THERE])
    cluster.answered(OUTSIDE, other.vip(family), [HERE, THERE])
    drained.done("--undo", address)
    drained.done(f"[{address}]:8080" if ":" in address else f"{address}:8080")
    cluster.answered(OUTSIDE, first.vip(family), [HERE, THERE])
    cluster.answered(OUTSIDE, first.vip(family, 1), [THERE])
    cluster.answered(OUTSIDE, other.vip(family), [HERE, THERE])


@sentence("S141")
def test_other_nodes_go_on_to_use_it(drained: Drained, family: Family) -> None:
    cluster = drained.cluster
    service = cluster.service("leaving", cluster.pods(HERE, THERE))
    drained.done(drained.address(HERE, family))
    with cluster.beside("node-2") as other:
        elsewhere = other.service("elsewhere", other.pods(HERE, THERE))
        other.answered(POD_THERE, elsewhere.vip(family), [HERE, THERE])
    cluster.answered(OUTSIDE, service.vip(family), [THERE])


@sentence("S142")
def test_the_last_endpoint_is_drained_only_by_force(drained: Drained, family: Family) -> None:
    cluster = drained.cluster
    service = cluster.service("lonely", cluster.pods(HERE))
    local = cluster.service("lonely-local", cluster.pods(HERE, THERE), externalTrafficPolicy="Local")
    address = drained.address(HERE, family)
    refused = drained.run(address)
    assert refused.returncode == 1
    assert "default/lonely would have no endpoints left for" in refused.stderr
    assert "default/lonely-local would have no local endpoints left for" in refused.stderr
    cluster.answered(OUTSIDE, service.vip(family), [HERE])
    drained.done(address, "--force")
    cluster.refused(OUTSIDE, service.vip(family))
    cluster.dropped(OUTSIDE, local.at(NODE_PORT, family))
    cluster.answered(OUTSIDE, local.vip(family), [THERE])
    cluster.put_all(dict.fromkeys(("lonely", "lonely-local"), ()))


@sentence("S143")
def test_a_client_that_it_remembered_is_given_another(drained: Drained, family: Family) -> None:
    cluster = drained.cluster
    config = {"clientIP": {"timeoutSeconds": 600}}
    spec: dict[str, Any] = {"sessionAffinity": "ClientIP", "sessionAffinityConfig": config}
    service = cluster.service("leaving-sticky", cluster.pods(HERE, THERE, THIRD), **spec)
    pod = cluster.sticks(OUTSIDE, service.vip(family))
    drained.done(drained.address(pod, family))
    other = cluster.sticks(OUTSIDE, service.vip(family))
    assert other != pod
    drained.done("--undo", drained.address(pod, family))
    assert cluster.sticks(OUTSIDE, service.vip(family)) == other
