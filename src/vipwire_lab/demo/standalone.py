"""The scenes of `vipwire up`: kubectl, health checks and names, without a cluster."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import yaml

from vipwire_lab.cluster.cluster import Lab
from vipwire_lab.cluster.continuous import Continuous
from vipwire_lab.cluster.manifests import Manifest
from vipwire_lab.cluster.state import find_program
from vipwire_lab.demo import objects
from vipwire_lab.demo.narrator import Narrator
from vipwire_lab.demo.objects import CLIENT, MANY, NODE_ADDRESS, POD
from vipwire_lab.demo.stage import NODE, Listened, Stage
from vipwire_lab.namespaces import links
from vipwire_lab.namespaces.errors import LabError
from vipwire_lab.namespaces.topology import UNDERLAY

OTHER: Final = "node-2"
ADDRESS: Final = "10.0.0.66"
"""An address that the names assign to node-2 while both machines run."""
_LAN_FLAGS: Final = (
    "--bind-address",
    "0.0.0.0",  # noqa: S104
    "--announce-interface",
    "lan0",
    "--load-balancer-range",
    f"{ADDRESS}/32",
)
_LONGEST: Final = 10.0
"""The longest outage in seconds that the scene accepts as a failover."""
POOL = "198.51.100.64/28"
DNS = "10.96.0.10"
_DOMAIN = "hello.default.svc.cluster.local"
_FLAGS = (
    *("--node-name", NODE, "--dns-address", NODE_ADDRESS, "--load-balancer-range", POOL),
    *(_LAN_FLAGS if objects.TOPOLOGY.lan else ()),
)
_PATIENCE = 60.0
"""Seconds until a missing start, end or kubectl answer is an error."""
_SILENT = 0.3
"""Seconds after which a connection in a lab counts as unanswered."""


class Standalone:
    """A running `vipwire up` with its data folder."""

    def __init__(self, lab: Lab, node: str, folder: Path, kubectl: str) -> None:
        self._lab, self._node, self.folder, self._kubectl = lab, node, folder, kubectl
        self.process: Listened | None = None

    def start(self, *flags: str) -> list[str]:
        """Start it; return its first lines."""
        command = [sys.executable, "-m", "vipwire", "up", "--data-dir", str(self.folder), *flags]
        # A session of its own: Ctrl-C reaches only the demo, which then ends it.
        options: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "text": True}
        options |= {"stderr": subprocess.STDOUT, "start_new_session": True}
        self.process = Listened("vipwire up", self._lab.popen(self._node, command, **options))
        lines = self.process.wait_until(lambda said: any(line.startswith("try:") for line in said), _PATIENCE)
        return [line for line in lines if not line.startswith(("ts=", "try:"))]

    def kubectl(self, *arguments: str) -> str:
        """Run kubectl on the node; return its output. Raise LabError with its error."""
        done = self._run_command([self._kubectl, *arguments])
        if done.returncode:
            raise LabError(f"kubectl {' '.join(arguments)}: {done.stderr or done.stdout}")
        return done.stdout

    def make_token(self) -> str:
        """Make a token; return the command with which a machine joins."""
        command = [sys.executable, "-m", "vipwire", "token", "create", "--data-dir", str(self.folder)]
        return self._lab.run(self._node, command, timeout=_PATIENCE).stdout.strip()

    def apply(self, objects: list[Manifest]) -> str:
        path = self.folder / "applied.yaml"
        path.write_text(yaml.safe_dump_all(objects, sort_keys=False))
        return self.kubectl("apply", "-f", str(path))

    def wait_until(self, holds: Callable[[str], bool], *arguments: str) -> tuple[float, str]:
        """Run kubectl until `holds` accepts its answer; return the seconds, and the answer."""
        began = time.monotonic()
        while time.monotonic() - began < _PATIENCE:
            if holds(answer := self.kubectl(*arguments)):
                return time.monotonic() - began, answer
        raise LabError(f"kubectl {' '.join(arguments)} still says: {answer}")

    def _run_command(self, command: list[str]) -> "subprocess.CompletedProcess[str]":
        environment: Mapping[str, str] = os.environ | {
            "KUBECONFIG": str(self.folder / "admin.kubeconfig"),
            "HOME": str(self.folder),  # kubectl keeps its cache there
        }
        return self._lab.run(self._node, command, timeout=_PATIENCE, check=False, env=environment)


def show_standalone(stage: Stage, narrator: Narrator) -> None:
    """Start `vipwire up` and play its scenes; without kubectl, say so."""
    narrator.print_chapter("Without a cluster: vipwire up, and kubectl")
    kubectl = find_program("kubectl")
    if kubectl is None:
        narrator.print_text("This machine has no kubectl for this part. (Debian: apt install kubernetes-client)")
        return
    here = Standalone(stage.lab, NODE, stage.folder / "up", kubectl)
    narrator.print_text(
        "An API server, its store, controllers, health checks, DNS and the proxy, in one process on node-1:"
    )
    flags = (
        " ".join(_FLAGS)
        .replace(" --load", " \\\n            --load", 1)
        .replace(" --bind", " \\\n            --bind")
    )
    narrator.print_quote(f"{NODE}$ vipwire up --data-dir DIRECTORY {flags}")
    with narrator.show_waiting("starting vipwire up"):
        narrator.print_quote("\n".join(here.start(*_FLAGS)))
    narrator.print_quote(f"{NODE}$ kubectl apply -f hello.yaml        (a Service, and five Pods that run already)")
    narrator.print_quote(here.apply([objects.hello(), *map(objects.workload, objects.PODS)]))
    with narrator.show_waiting("waiting for the Pods' readiness probes"):
        here.kubectl("wait", "--for=condition=Ready", "pod", "--all", f"--timeout={_PATIENCE:.0f}s")
    _show_balancing(stage, narrator, here)
    _show_health_check(stage, narrator, here)
    _show_dns(stage, narrator, here)
    show_kill(stage, narrator, here)
    _show_deletion(stage, narrator, here)


def _show_balancing(stage: Stage, narrator: Narrator, here: Standalone) -> None:
    _show_kubectl(narrator, here, "get", "services")
    _show_kubectl(narrator, here, "get", "endpointslices")
    address, outside = _service_addresses(here)
    stage.wait_until_answered(POD.name, address, 80)
    results = stage.lab.probe(POD.name, address, 80, count=MANY)
    narrator.print_results(results)
    narrator.check_answers(results, objects.PODS, f"{address}:80 from {POD.name}: all 5 Pods")
    results = stage.lab.probe(CLIENT, outside, 80, count=MANY)
    narrator.check_answers(results, objects.PODS, f"{outside}:80 from {CLIENT}: all 5 Pods")


def _show_health_check(stage: Stage, narrator: Narrator, here: Standalone) -> None:
    narrator.print_chapter(
        "A workload breaks; vipwire removes its endpoint after failed readiness probes, and adds it again"
    )
    going = objects.PODS[3]
    rest = [pod for pod in objects.PODS if pod is not going]
    address, outside = _service_addresses(here)
    stage.lab.stop_echo_servers(going.name, [objects.HELLO_PORT])
    seconds, _ = here.wait_until(lambda said: "False" in said, *_readiness_of(going.name))
    narrator.print_text(f"{going.name} has closed its port; {seconds:.1f} s later:")
    _show_kubectl(narrator, here, "get", "pods")
    with narrator.show_waiting("waiting for the kernel"):
        stage.wait_until_gone(POD.name, address, 80, going)
    results = stage.lab.probe(POD.name, address, 80, count=MANY)
    narrator.check_answers(results, rest, f"the other 4, never {going.name}")
    stage.lab.start_echo_servers(going.name, [objects.HELLO_PORT])
    seconds, _ = here.wait_until(lambda said: "True" in said, *_readiness_of(going.name))
    stage.wait_until_seen(CLIENT, outside, 80, objects.PODS)
    results = stage.lab.probe(CLIENT, outside, 80, count=MANY)
    narrator.check_answers(results, objects.PODS, f"all 5 again: its probe has been answered {seconds:.1f} s later")


def _show_dns(stage: Stage, narrator: Narrator, here: Standalone) -> None:
    narrator.print_chapter("DNS, at the usual address for resolv.conf")
    dig = find_program("dig")
    if dig is None:
        narrator.print_text("This machine has no dig for DNS queries. (Debian: apt install bind9-dnsutils)")
        return
    address, _ = _service_addresses(here)
    for name, kind in ((_DOMAIN, "A"), (f"_http._tcp.{_DOMAIN}", "SRV")):
        said = stage.lab.run(POD.name, [dig, f"@{DNS}", "+short", name, kind]).stdout.strip()
        narrator.print_quote(f"{POD.name}$ dig @{DNS} +short {name} {kind}\n{said}")
        wanted = address if kind == "A" else f"0 100 80 {_DOMAIN}."
        narrator.print_check(f"{'the ClusterIP' if kind == 'A' else 'the named port'} of hello", holds=said == wanted)


def _show_deletion(stage: Stage, narrator: Narrator, here: Standalone) -> None:
    narrator.print_chapter("After the deletion, no Service has the addresses; vipwire up stops")
    address, outside = _service_addresses(here)
    _show_kubectl(narrator, here, "delete", "service", "hello")
    stage.wait_until_unanswered(POD.name, address, 80)
    for host, gone in ((POD.name, address), (CLIENT, outside)):
        (result,) = stage.lab.probe(host, gone, 80, timeout=_SILENT)
        narrator.print_check(f"{host} to {gone}:80: no Service, {result.outcome.value}", holds=not result.answer)
    status = here.process.end_process(_PATIENCE) if here.process else 1
    narrator.print_check("it ends on SIGTERM with status 0", holds=status == 0)


def _show_kubectl(narrator: Narrator, here: Standalone, *arguments: str) -> None:
    said = here.kubectl(*arguments)
    narrator.print_quote(f"{NODE}$ kubectl {' '.join(arguments)}\n{said}")


def _service_addresses(here: Standalone) -> tuple[str, str]:
    path = "jsonpath={.spec.clusterIP} {.status.loadBalancer.ingress[0].ip}"
    _, said = here.wait_until(lambda said: len(said.split()) == 2, "get", "service", "hello", "-o", path)
    inside, outside = said.split()
    return inside, outside


def _readiness_of(pod: str) -> tuple[str, ...]:
    return "get", "pod", pod, "-o", 'jsonpath={.status.conditions[?(@.type=="Ready")].status}'


def show_kill(stage: Stage, narrator: Narrator, here: Standalone) -> None:
    """Let a machine join, and kill the one that has an address."""
    narrator.print_chapter("A second machine joins, takes an address, and is killed")
    if not stage.lab.topology.lan:
        narrator.print_text("This machine has no ip command to build an Ethernet. (Debian: apt install iproute2)")
        return
    joined = _join_machine(stage, narrator, here)
    here.apply([_build_service()])
    with narrator.show_waiting("the address goes to its owner"):
        _wait_until_owner(here, OTHER)
        _wait_until_heard(stage)
        stage.wait_until_seen(CLIENT, ADDRESS, 80, objects.PODS)
    results = stage.lab.probe(CLIENT, ADDRESS, 80, count=MANY)
    narrator.check_answers(results, objects.PODS, f"all 5 Pods, at {ADDRESS}, which {OTHER} has")
    narrator.print_text(
        f"{OTHER} fails: the demo cuts its cable and kills its process, while the client keeps connecting."
    )
    with stage.lab.connect_continuously(CLIENT, ADDRESS, 80, timeout=0.2) as stream:
        stream.wait_for(20)
        began = time.monotonic()
        stage.lab.run(UNDERLAY, ["ip", "link", "set", links.lan_port_name(OTHER), "down"])
        joined.end_process(_PATIENCE, signal.SIGKILL)
        seconds = _measure_outage(stream, began)
    narrator.print_check(f"no answers for {seconds:.1f} s; then {NODE} answers", holds=seconds < _LONGEST)
    with narrator.show_waiting(f"the Pods on {OTHER} leave"):
        stage.wait_until_gone(CLIENT, ADDRESS, 80, objects.PODS[-1])
    narrator.print_quote(f"{NODE}$ kubectl get nodes\n{here.kubectl('get', 'nodes')}")
    _wait_until_owner(here, NODE)
    results = stage.lab.probe(CLIENT, ADDRESS, 80, count=MANY)
    narrator.check_answers(results, objects.LOCAL_PODS, f"the Pods on {NODE} alone")


def _join_machine(stage: Stage, narrator: Narrator, here: Standalone) -> Listened:
    command = here.make_token().split()
    words = [*command[1:], "--node-name", OTHER, "--node-lease-seconds", "2", "--announce-interface", "lan0"]
    shown = " ".join(f"{word[:16]}…" if word.startswith("sha256:") else word for word in command)
    narrator.print_quote(f"{NODE}$ vipwire token create\n{shown}")
    narrator.print_quote(f"{OTHER}$ {shown} \\\n            {' '.join(words[len(command) - 1 :])}")
    options: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "text": True}
    options |= {"stderr": subprocess.STDOUT, "start_new_session": True}
    started = [sys.executable, "-m", "vipwire", *words, "--data-dir", str(stage.folder / OTHER)]
    joined = Listened("vipwire join", stage.lab.popen(OTHER, started, **options))
    with narrator.show_waiting("joining"):
        joined.wait_until(lambda said: any(line.startswith("joined as") for line in said), _PATIENCE)
    return joined


def _measure_outage(stream: Continuous, began: float) -> float:
    """Wait until connections succeed again; return the seconds since `began`."""
    while True:
        failed, good = len(stream.report.failures), sum(stream.report.pods.values())
        stream.wait_for(1)
        now = stream.report
        if failed and len(now.failures) == failed and sum(now.pods.values()) > good:
            return time.monotonic() - began
        if time.monotonic() - began > _PATIENCE:
            raise LabError(f"{ADDRESS} has not failed, or not come back, for {_PATIENCE:.0f} s")


def _wait_until_owner(here: Standalone, node: str) -> None:
    lease = f"vipwire-address-{ADDRESS.replace('.', '-')}"
    path = "jsonpath={.items[*].spec.holderIdentity}"
    where = ("-n", "kube-system", f"--field-selector=metadata.name={lease}")
    here.wait_until(lambda said: said == node, "get", "leases", *where, "-o", path)


def _wait_until_heard(stage: Stage) -> None:
    """Wait until the client sends to the owner: connections through the earlier owner end at the change."""

    def ethernet(host: str, *command: str) -> str:
        found = json.loads(stage.lab.run(host, ["ip", "-j", *command, "dev", "lan0"]).stdout or "[]")
        return str(found[0].get("lladdr") or found[0].get("address")) if found else ""

    owner, began = ethernet(OTHER, "link", "show"), time.monotonic()
    while ethernet(CLIENT, "neigh", "show", "to", ADDRESS) != owner:
        if time.monotonic() - began > _PATIENCE:
            raise LabError(f"the client has not heard for {_PATIENCE:.0f} s that {OTHER} has {ADDRESS}")
        stage.lab.probe(CLIENT, ADDRESS, 80, count=1, timeout=0.5)


def _build_service() -> Manifest:
    ports = [{"name": "http", "port": 80, "targetPort": objects.HELLO_PORT}]
    spec = {"type": "LoadBalancer", "loadBalancerIP": ADDRESS, "selector": {"app": "hello"}, "ports": ports}
    return {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "front"}, "spec": spec}
