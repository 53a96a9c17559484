"""The scene of two machines: a second one joins, has an address, and is killed."""

import json
import signal
import subprocess
import sys
import time
from typing import Any, Final

from vipwire_lab.demo import objects
from vipwire_lab.demo.apiserver import Standalone
from vipwire_lab.demo.narrator import Narrator
from vipwire_lab.demo.process import Listened
from vipwire_lab.demo.stage import NODE, Stage
from vipwire_lab.demo.traffic import CLIENT, MANY
from vipwire_lab.lab.continuous import Continuous
from vipwire_lab.lab.manifests import Manifest
from vipwire_lab.net import lan
from vipwire_lab.net.errors import LabError
from vipwire_lab.net.topology import UNDERLAY

OTHER: Final = "node-2"
ADDRESS: Final = "10.0.0.66"
"""An address that node-2 has while both machines are there: who has which one follows from the names."""
FLAGS: Final = ("--bind-address", "0.0.0.0", "--announce-interface", "lan0", "--load-balancer-range", f"{ADDRESS}/32")  # noqa: S104
_PATIENCE: Final = 60.0
_LONGEST: Final = 10.0
"""Seconds without an answer that the scene still calls a failover."""


def killed(stage: Stage, narrator: Narrator, here: Standalone) -> None:
    """Let a machine join, and kill the one that has an address."""
    narrator.chapter("A second machine joins, takes an address, and is killed")
    if not stage.lab.topology.lan:
        narrator.say(
            "There is no ip command on this machine to build an Ethernet with. (Debian: apt install iproute2)"
        )
        return
    joined = _join(stage, narrator, here)
    here.apply([_service()])
    with narrator.waiting("the address goes to its owner"):
        _until_owner(here, OTHER)
        _until_heard(stage)
        stage.until_seen(CLIENT, ADDRESS, 80, objects.PODS)
    results = stage.lab.probe(CLIENT, ADDRESS, 80, count=MANY)
    narrator.check_answers(results, objects.PODS, f"all 5 Pods, at {ADDRESS}, which {OTHER} has")
    narrator.say(
        f"{OTHER} loses its plug: its cable is cut, and its process killed, while the client goes on asking."
    )
    with stage.lab.continuous(CLIENT, ADDRESS, 80, timeout=0.2) as stream:
        stream.wait_for(20)
        began = time.monotonic()
        stage.lab.run(UNDERLAY, ["ip", "link", "set", lan.port(OTHER), "down"])
        joined.end(_PATIENCE, signal.SIGKILL)
        seconds = _outage(stream, began)
    narrator.check(f"nobody answers for {seconds:.1f} s; then {NODE} does", holds=seconds < _LONGEST)
    with narrator.waiting(f"the Pods on {OTHER} leave"):
        stage.until_gone(CLIENT, ADDRESS, 80, objects.PODS[-1])
    narrator.quote(f"{NODE}$ kubectl get nodes\n{here.kubectl('get', 'nodes')}")
    _until_owner(here, NODE)
    results = stage.lab.probe(CLIENT, ADDRESS, 80, count=MANY)
    narrator.check_answers(results, objects.LOCAL_PODS, f"the Pods on {NODE} alone")


def _join(stage: Stage, narrator: Narrator, here: Standalone) -> Listened:
    command = here.make_token().split()
    words = [*command[1:], "--node-name", OTHER, "--node-lease-seconds", "2", "--announce-interface", "lan0"]
    shown = " ".join(f"{word[:16]}…" if word.startswith("sha256:") else word for word in command)
    narrator.quote(f"{NODE}$ vipwire token create\n{shown}")
    narrator.quote(f"{OTHER}$ {shown} \\\n            {' '.join(words[len(command) - 1 :])}")
    options: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "text": True}
    options |= {"stderr": subprocess.STDOUT, "start_new_session": True}
    started = [sys.executable, "-m", "vipwire", *words, "--data-dir", str(stage.folder / OTHER)]
    joined = Listened("vipwire join", stage.lab.popen(OTHER, started, **options))
    with narrator.waiting("joining"):
        joined.until(lambda said: any(line.startswith("joined as") for line in said), _PATIENCE)
    return joined


def _outage(stream: Continuous, began: float) -> float:
    """Wait until connections succeed again; give the seconds since something began."""
    while True:
        failed, good = len(stream.report.failures), sum(stream.report.pods.values())
        stream.wait_for(1)
        now = stream.report
        if failed and len(now.failures) == failed and sum(now.pods.values()) > good:
            return time.monotonic() - began
        if time.monotonic() - began > _PATIENCE:
            raise LabError(f"{ADDRESS} has not failed, or not come back, for {_PATIENCE:.0f} s")


def _until_owner(here: Standalone, node: str) -> None:
    lease = f"vipwire-address-{ADDRESS.replace('.', '-')}"
    path = "jsonpath={.items[*].spec.holderIdentity}"
    where = ("-n", "kube-system", f"--field-selector=metadata.name={lease}")
    here.until(lambda said: said == node, "get", "leases", *where, "-o", path)


def _until_heard(stage: Stage) -> None:
    """Wait until the client sends to the owner: what began through the earlier one ends as it changes over."""

    def ethernet(host: str, *command: str) -> str:
        found = json.loads(stage.lab.run(host, ["ip", "-j", *command, "dev", "lan0"]).stdout or "[]")
        return str(found[0].get("lladdr") or found[0].get("address")) if found else ""

    owner, began = ethernet(OTHER, "link", "show"), time.monotonic()
    while ethernet(CLIENT, "neigh", "show", "to", ADDRESS) != owner:
        if time.monotonic() - began > _PATIENCE:
            raise LabError(f"the client has not heard for {_PATIENCE:.0f} s that {OTHER} has {ADDRESS}")
        stage.lab.probe(CLIENT, ADDRESS, 80, count=1, timeout=0.5)


def _service() -> Manifest:
    ports = [{"name": "http", "port": 80, "targetPort": objects.HELLO_PORT}]
    spec = {"type": "LoadBalancer", "loadBalancerIP": ADDRESS, "selector": {"app": "hello"}, "ports": ports}
    return {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "front"}, "spec": spec}
