"""`vipwire up` whole, on a node of a lab: kubectl in, real packets out; health checks, announcements, kill -9."""

import base64
import json
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.fakes.browser import chromium
from tests.up.unit.cluster_process import CLIENTS

from vipwire_lab.cluster.cluster import Lab
from vipwire_lab.demo.standalone import Standalone
from vipwire_lab.namespaces.topology import Pod, make_topology

pytestmark = [pytest.mark.kernel, pytest.mark.slow]

PATIENCE = 60.0
NAME = "kubernetes.default.svc.cluster.local"
NODE, CLIENT = "node-1", "client"
TOPOLOGY = make_topology((2, 1))
PODS = TOPOLOGY.pods
POOLS = ("198.51.100.64/28", "2001:db8:100::40/124")
VIEW = "127.0.0.1:10247"
FLAGS = (
    "--view-bind-address",
    VIEW,
    "--node-name",
    NODE,
    "--announce-interface",
    "eth0",
    *(f"--load-balancer-range={pool}" for pool in POOLS),
)


def service(name: str, port: int, **spec: Any) -> dict[str, Any]:
    ports = [{"name": "http", "port": 80, "targetPort": port}]
    fields = {"selector": {"app": name}, "ports": ports, "ipFamilyPolicy": "RequireDualStack"}
    return {"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}, "spec": fields | spec}


def workload(name: str, pod: Pod, port: int) -> dict[str, Any]:
    probe = {"tcpSocket": {"port": port}, "periodSeconds": 1, "timeoutSeconds": 20, "failureThreshold": 1}
    container = {"name": "a", "image": "none", "readinessProbe": probe}
    meta = {"name": f"{name}-{pod.name}", "labels": {"app": name}}
    meta["annotations"] = {"vipwire.io/address": ",".join(pod.addresses)}
    spec = {"nodeName": pod.node, "terminationGracePeriodSeconds": 0, "containers": [container]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec}


class Cluster:
    def __init__(self, lab: Lab, here: Standalone) -> None:
        self.lab, self.here = lab, here

    def applied(self, name: str, port: int, **spec: Any) -> tuple[str, ...]:
        """Apply a Service with every Pod behind it, on a port of its own, and wait for them; give its ClusterIPs."""
        for pod in PODS:
            self.lab.start_echo_servers(pod.name, [port])
        self.here.apply([service(name, port, **spec), *(workload(name, pod, port) for pod in PODS)])
        self.here.kubectl("wait", "--for=condition=Ready", "pod", "-l", f"app={name}", f"--timeout={PATIENCE:.0f}s")
        return tuple(self.read(name)["spec"]["clusterIPs"])

    def read(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.here.kubectl("get", "service", name, "-o", "json"))
        return found

    def answering(self, host: str, address: str) -> set[str]:
        return {result.pod for result in self.lab.probe(host, address, 80, count=60, timeout=1.0)}

    def until(self, host: str, address: str, who: set[str]) -> None:
        """Connect until exactly these answer, "" for nobody."""
        until(lambda: self.answering(host, address), who)


def until(ask: Callable[[], object], wanted: object) -> None:
    end = time.monotonic() + PATIENCE
    while (found := ask()) != wanted:
        assert time.monotonic() < end, f"{found} is not {wanted}"


def first_syncs(lines: Sequence[str]) -> dict[str, str]:
    """Find what the log tells of the first sync of each family."""
    return {each.split("ip_family=")[1][:4]: each for each in reversed(lines) if "msg=synced" in each}


def names(*without: Pod) -> set[str]:
    return {pod.name for pod in PODS if pod not in without}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Lab(TOPOLOGY) as lab:
        here = Standalone(lab, NODE, tmp_path_factory.mktemp("up"), CLIENTS[0])
        here.start(*FLAGS)
        yield Cluster(lab, here)
        assert here.process
        assert here.process.end_process(PATIENCE) == 0


def test_a_typo_in_an_annotation_is_an_event_of_the_proxy(cluster: Cluster) -> None:
    typo = service("typo", 8100) | {"metadata": {"name": "typo", "annotations": {"vipwire.io/algorithmm": "maglev"}}}
    cluster.here.apply([typo])

    def reasons() -> set[str]:
        words = ("get", "events", "--field-selector=involvedObject.name=typo", "-o", "jsonpath={.items[*].reason}")
        return set(cluster.here.kubectl(*words).split())

    until(reasons, {"InvalidField"})
    cluster.here.kubectl("delete", "service", "typo")


def test_applied_it_balances_broken_it_is_left_out_deleted_it_is_gone(cluster: Cluster) -> None:
    addresses = cluster.applied("web", 8101)
    assert [":" in address for address in addresses] == [False, True]
    going = PODS[2]
    for address in addresses:
        cluster.until(PODS[0].name, address, names())
    cluster.lab.stop_echo_servers(going.name, [8101])
    for address in addresses:
        cluster.until(PODS[0].name, address, names(going))
    cluster.lab.start_echo_servers(going.name, [8101])
    for address in addresses:
        cluster.until(PODS[0].name, address, names())
    cluster.here.kubectl("delete", "pod", f"web-{PODS[1].name}")
    cluster.until(NODE, addresses[0], names(PODS[1]))
    cluster.here.kubectl("delete", "service", "web")
    for address in addresses:
        cluster.until(PODS[0].name, address, {""})


def test_neighbours_are_told_of_a_load_balancers_address_and_led_to_it(cluster: Cluster) -> None:
    cluster.applied("front", 8102, type="LoadBalancer")
    entries = cluster.read("front")["status"]["loadBalancer"]["ingress"]
    assert [":" in entry["ip"] for entry in entries] == [False, True]
    for entry, option in zip(entries, ("-4", "-6"), strict=True):
        # On the link, not behind a router: whoever sends there has to be told by somebody where it is.
        cluster.lab.run("underlay", ["ip", option, "route", "add", entry["ip"], "dev", NODE])
        cluster.until(CLIENT, entry["ip"], names())
        assert entry["ip"] in cluster.lab.run("underlay", ["ip", option, "neigh", "show", "dev", NODE]).stdout
    cluster.here.kubectl("delete", "service", "front")
    for entry in entries:
        cluster.until(CLIENT, entry["ip"], {""})


async def test_the_page_shows_what_is_announced_here_while_it_is(cluster: Cluster, tmp_path: Path) -> None:
    cluster.applied("shown", 8104, type="LoadBalancer")
    marks = "[...document.querySelectorAll('.front .badge')].map((each) => each.textContent).join()"
    with cluster.lab.enter_namespace(NODE):
        async with chromium() as page:
            await page.go(f"http://{VIEW}/#service/default/shown")
            await page.until(f"{marks} === 'announced here on eth0'")
            await page.look(Path(os.environ.get("VIEW_PICTURES", str(tmp_path))) / "announced.png", 1280)
            label = "node.kubernetes.io/exclude-from-external-load-balancers"
            cluster.here.kubectl("label", f"node/{NODE}", f"{label}=")
            await page.until(f"{marks} === ''")
            cluster.here.kubectl("label", f"node/{NODE}", f"{label}-")
            assert page.complaints == []
    cluster.here.kubectl("delete", "service", "shown")


def test_killed_and_started_again_it_keeps_everything_and_no_connection_fails(cluster: Cluster) -> None:
    (address, _) = cluster.applied("kept", 8103)
    cluster.until(PODS[0].name, address, names())
    before = cluster.here.kubectl("get", "services,endpointslices,ipaddresses", "-o", "name")
    with cluster.lab.connect_continuously(PODS[0].name, address, 80, timeout=10.0) as stream:
        stream.wait_for(20)
        assert cluster.here.process
        cluster.here.process.end_process(PATIENCE, signal.SIGKILL)
        stream.wait_for(20)
        cluster.here.start(*FLAGS)
        synced = cluster.here.process.wait_until(
            lambda lines: first_syncs(lines).keys() == {"IPv4", "IPv6"}, PATIENCE
        )
        stream.wait_for(20)
    assert not stream.report.failures
    assert cluster.here.kubectl("get", "services,endpointslices,ipaddresses", "-o", "name") == before
    cluster.until(PODS[0].name, address, names())
    for line in first_syncs(synced).values():
        assert "changed=0" in line
        assert "removed=0" in line
    cluster.here.kubectl("delete", "service", "kept")


def test_the_api_server_and_dns_are_services_for_this_machine_only(cluster: Cluster, tmp_path: Path) -> None:
    path = "jsonpath={.clusters[0].cluster.certificate-authority-data}"
    authority = tmp_path / "ca.crt"
    authority.write_bytes(base64.b64decode(cluster.here.kubectl("config", "view", "--raw", "-o", path)))

    def version(host: str, address: str) -> str:
        command = ["curl", "-s", "--connect-timeout", "2", "--cacert", str(authority), f"https://{address}/version"]
        return cluster.lab.run(host, command, check=False).stdout

    def asked(host: str, address: str, transport: str) -> str:
        command = ["dig", "+short", "+tries=1", "+time=2", transport, f"@{address}", NAME]
        return cluster.lab.run(host, command, check=False).stdout

    own = cluster.lab.address_of(NODE)
    until(lambda: "gitVersion" in version(NODE, "10.96.0.1"), wanted=True)
    until(lambda: "gitVersion" in version(NODE, f"{own}:6443"), wanted=True)
    for transport in ("+notcp", "+tcp"):
        until(lambda: asked(NODE, "10.96.0.10", transport), "10.96.0.1\n")  # noqa: B023  # called at once
        until(lambda: asked(NODE, own, transport), "10.96.0.1\n")  # noqa: B023  # called at once
    for host in (PODS[0].name, CLIENT):
        assert version(host, f"{own}:6443") == ""
        assert "10.96.0.1" not in asked(host, own, "+notcp")
