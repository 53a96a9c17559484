"""`vipwire connectivity test` beside `vipwire up`: all passes, or the broken part is named; nothing is left."""

import json
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.fakes.waiting import until
from tests.up.unit.cluster_process import CLIENTS

from vipwire.config.flags import build_config, parse_flags
from vipwire.kube.access.access import load_access
from vipwire_lab.cluster.cluster import Lab
from vipwire_lab.connectivity.run import Test as Connectivity
from vipwire_lab.demo.standalone import Standalone

pytestmark = [pytest.mark.kernel, pytest.mark.slow]
NODE, ADDRESS, PATIENCE = "node-1", "192.168.0.1", 60.0
Break = Callable[["Stage", str], None]


class Stage:
    """`vipwire up` with proxy and DNS on a node of a lab, and connectivity tests beside it."""

    def __init__(self, lab: Lab, folder: Path) -> None:
        self.lab, self.state = lab, folder / "state"
        self.up = Standalone(lab, NODE, folder / "up", CLIENTS[0])
        pools = ("--load-balancer-range=198.51.100.64/28", "--load-balancer-range=2001:db8:100::40/124")
        proxy = ("--", f"--state-dir={self.state}", "--oom-score-adj=0", "--iptables-sync-period=1h")
        self.up.start("--node-name", NODE, "--dns-address", ADDRESS, *pools, *proxy)

    @property
    def flags(self) -> list[str]:
        return [f"--kubeconfig={self.up.folder / 'admin.kubeconfig'}", f"--state-dir={self.state}"]

    def nft(self, *words: str) -> str:
        return self.lab.run(NODE, ["nft", *words]).stdout

    def run(self, broken: Break, wait: float = 1.0) -> dict[str, Any]:
        """Run a test in this process; break something once its Services are in the kernel, before it asks."""
        config = build_config(parse_flags([*self.flags, f"--hostname-override={NODE}"])).config
        access, told = load_access(self.up.folder / "admin.kubeconfig"), list[str]()

        def tell(text: str) -> None:
            if text.startswith("asking") and not any(each.startswith("asking") for each in told):
                end = time.monotonic() + PATIENCE
                while "/no-endpoints" not in self.nft("list", "table", "ip", "vipwire"):
                    assert time.monotonic() < end
                broken(self, test.namespace)
            told.append(text)

        test = Connectivity(config, access, tell, wait, "cluster.local")
        with self.lab.enter_namespace(NODE):
            return test.run_test()

    def left(self) -> str:
        return self.up.kubectl("get", "namespaces,services,endpointslices", "-A", "-o", "name")


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with Lab() as lab:
        made = Stage(lab, tmp_path_factory.mktemp("connectivity"))
        yield made
        assert made.up.process
        made.up.process.end_process(PATIENCE)


def failed(document: dict[str, Any]) -> dict[tuple[str, str, str, str], str]:
    """Return the causes of the failed checks, by Service, place, family and protocol."""
    return {
        (each["service"], each["what"], each["family"], each["protocol"]): "\n".join(each["cause"])
        for each in document["checks"]
        if each["state"] == "failed"
    }


def test_all_passes_and_nothing_is_left(stage: Stage) -> None:
    before = stage.left()
    command = [sys.executable, "-m", "vipwire", "connectivity", "test", *stage.flags, "-o", "json", "--wait=60"]
    done = stage.lab.run(NODE, command, timeout=PATIENCE * 3, check=False)
    document = json.loads(done.stdout)
    assert (failed(document), done.returncode) == ({}, 0)
    assert {each["service"] for each in document["checks"] if each["state"] == "passed"} >= {
        *("cluster-ip", "node-port", "node-port-local", "load-balancer", "external-ip", "internal-local"),
        *("affinity", "headless", "no-endpoints"),
    }
    assert {each["family"] for each in document["checks"]} >= {"IPv4", "IPv6"}
    assert stage.left() == before


def stop_repairs(stage: Stage) -> None:
    """Make a change so large that the proxy no longer listens to the kernel: it checks the rules each period only."""
    assert stage.up.process
    since = stage.up.process.count_lines()
    marks = ", ".join(map(str, range(40_000)))
    script = f"add table ip large; add set ip large marks {{ type mark; }}; add element ip large marks {{ {marks} }}"
    stage.lab.run(NODE, ["nft", "-f", "-"], input=script)
    stage.up.process.wait_until(
        lambda lines: any("made a very large change" in line for line in lines), PATIENCE, since
    )
    stage.nft("delete", "table", "ip", "large")


def without_an_element(stage: Stage, namespace: str) -> None:
    stop_repairs(stage)
    listed = stage.nft("list", "map", "ip", "vipwire", "service-ips")
    (element,) = re.findall(rf'([\d.]+ \. tcp \. 80) comment "{namespace}/cluster-ip:tcp"', listed)
    stage.nft("delete", "element", "ip", "vipwire", "service-ips", f"{{ {element} }}")


def test_a_deleted_rule_is_named(stage: Stage) -> None:
    causes = failed(stage.run(without_an_element))
    assert list(causes) == [("cluster-ip", "ClusterIP", "IPv4", "tcp")]
    (cause,) = causes.values()
    assert "kernel: otherwise" in cause
    assert "service-ips: missing" in cause


def without_an_endpoint(stage: Stage, namespace: str) -> None:
    path = ("get", "endpointslice", "cluster-ip-echo-2-ipv4", "-n", namespace, "-o", "jsonpath={.ports[0].port}")
    port = stage.up.kubectl(*path)
    stage.nft("add", "table", "ip", "broken")
    stage.nft("add", "chain", "ip", "broken", "input", "{ type filter hook input priority 10; }")
    stage.nft("add", "rule", "ip", "broken", "input", "tcp", "dport", port, "reject", "with", "tcp", "reset")


def test_a_dead_endpoint_is_named(stage: Stage) -> None:
    try:
        causes = failed(stage.run(without_an_endpoint))
    finally:
        stage.nft("delete", "table", "ip", "broken")
    cause = causes["cluster-ip", "ClusterIP", "IPv4", "tcp"]
    assert re.search(rf"endpoint {re.escape(ADDRESS)}:\d+/tcp: refused .*when asked directly", cause)
    assert cause.count("endpoint ") == 1
    assert {(family, protocol) for _, _, family, protocol in causes} == {("IPv4", "tcp")}


def without_dns(stage: Stage, namespace: str) -> None:
    del namespace
    stage.nft("add", "table", "ip", "broken")
    stage.nft("add", "chain", "ip", "broken", "input", "{ type filter hook input priority 10; }")
    stage.nft("add", "rule", "ip", "broken", "input", "meta", "l4proto", "{tcp, udp}", "th", "dport", "53", "reject")


def test_a_dead_dns_server_is_named(stage: Stage) -> None:
    try:
        causes = failed(stage.run(without_dns))
    finally:
        stage.nft("delete", "table", "ip", "broken")
    assert {(service, what[:3]) for service, what, _, _ in causes} == {("cluster-ip", "DNS"), ("headless", "DNS")}
    assert all(f"endpoint {ADDRESS}:53/tcp: " in cause for cause in causes.values())


class Kubelet(threading.Thread):
    """Runs the echo Pods of Node node-1 as a kubelet would: their command, in a Pod of the lab, and their status."""

    def __init__(self, stage: Stage) -> None:
        super().__init__(daemon=True)
        self.stage, self.ending = stage, threading.Event()
        self.running: dict[str, subprocess.Popen[str]] = {}

    def run(self) -> None:
        while not self.ending.wait(0.2):
            listed = json.loads(self.stage.up.kubectl("get", "pods", "-A", "-o", "json"))["items"]
            for pod in listed:
                if pod["metadata"]["name"] not in self.running:
                    self._start(pod)

    def _start(self, pod: dict[str, Any]) -> None:
        meta, command = pod["metadata"], pod["spec"]["containers"][0]["command"]
        words = [sys.executable, "-m", *command]
        self.running[meta["name"]] = self.stage.lab.popen("pod-1a", words, stdin=subprocess.DEVNULL, text=True)
        addresses = self.stage.lab.find_host("pod-1a").addresses
        status = {"phase": "Running", "podIP": addresses[0], "podIPs": [{"ip": each} for each in addresses]}
        place = ("-n", meta["namespace"], "--subresource=status", "--type=merge")
        self.stage.up.kubectl("patch", "pod", meta["name"], *place, "-p", json.dumps({"status": status}))

    def end(self) -> None:
        self.ending.set()
        self.join()
        for process in self.running.values():
            process.terminate()
            process.wait(PATIENCE)


def test_pods_of_an_image_are_the_endpoints(stage: Stage) -> None:
    before, kubelet = stage.left(), Kubelet(stage)
    stage.lab.stop_echo_servers("pod-1a")  # its own servers, one at the same port
    kubelet.start()
    words = ("connectivity", "test", "--image=vipwire", "-o", "json", *stage.flags)
    command = [sys.executable, "-m", "vipwire", *words]
    try:
        done = stage.lab.run(NODE, command, timeout=PATIENCE * 3, check=False)
    finally:
        kubelet.end()
    document = json.loads(done.stdout)
    assert (failed(document), done.returncode) == ({}, 0)
    assert list(kubelet.running) == [f"echo-{NODE}"]
    until(lambda: stage.left() == before, "the API server has removed the namespace")
    assert stage.up.kubectl("get", "pods", "-A", "-o", "name") == ""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_leaves_nothing(stage: Stage, number: int) -> None:
    before = stage.left()
    command = [sys.executable, "-m", "vipwire", "connectivity", "test", *stage.flags]
    process = stage.lab.popen(NODE, command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    end = time.monotonic() + PATIENCE
    while "cluster-ip" not in stage.left():
        assert time.monotonic() < end
    process.send_signal(number)
    _, said = process.communicate(timeout=PATIENCE)
    assert process.returncode not in (0, 1)
    assert "Traceback" not in said
    assert stage.left() == before
