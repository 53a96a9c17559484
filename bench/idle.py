"""CPU time of idle commands: `python -m bench.idle` (root, haproxy and kubectl; in a lab of its own).

`vipwire up` on node-1 has 10,000 Services, each with a Pod, and an Ingress and an HTTPRoute for every tenth. A
machine has joined as node-2; proxy, dns, ingress and gateway run on node-3 with this API server. Once all are at
rest, and ingress has sent an Event about each Ingress, the table has the milliseconds of CPU that each process takes
in a second; HAProxy is not counted.
"""

import argparse
import asyncio
import contextlib
import json
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from bench.standalone import Client, pod, service

from vipwire_lab.cluster.cluster import Lab
from vipwire_lab.demo.stage import Listened
from vipwire_lab.namespaces.topology import make_topology

SERVER: Final = "https://192.168.0.1:6443"
PATIENCE: Final = 120.0
EVENTS: Final = 600.0
"""Seconds for an Event about each Ingress, five a second."""
FAR: Final = ("--kubeconfig", "FOLDER/up/admin.kubeconfig", "--master", SERVER)
UP: Final = ("up", "--bind-address", "0.0.0.0", "--data-dir", "FOLDER/up", "--node-name", "node-1", "--no-dns")  # noqa: S104
APART: Final = ("--grace", "0.2", "--threads", "1", "--namespace-limit", "events=100000")
COMMANDS: Final = {
    "proxy": ("proxy", *FAR, "--hostname-override", "node-3"),
    "dns": ("dns", *FAR, "--port", "5353", "--upstream", "127.0.0.1:9"),
    "ingress": ("ingress", *FAR, *APART, "--run-dir", "FOLDER/ingress", "--http", "*:8001", "--https", ""),
    "gateway": ("gateway", *FAR, *APART, "--run-dir", "FOLDER/gateway"),
}
GROUP: Final = "/apis/gateway.networking.k8s.io/v1"


def cpu_milliseconds(pid: int) -> float:
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((each / "schedstat").read_text().split()[0]) for each in tasks) / 1e6


def ingress(number: int) -> dict[str, Any]:
    backend = {"service": {"name": f"s{number}", "port": {"number": 80}}}
    rule = {
        "host": f"i{number}.example.org",
        "http": {"paths": [{"path": "/", "pathType": "Prefix", "backend": backend}]},
    }
    return {"metadata": {"name": f"i{number}"}, "spec": {"ingressClassName": "vipwire", "rules": [rule]}}


def route(number: int) -> dict[str, Any]:
    rules = [{"backendRefs": [{"name": f"s{number}", "port": 80}]}]
    spec = {"parentRefs": [{"name": "edge"}], "hostnames": [f"r{number}.example.org"], "rules": rules}
    return {"metadata": {"name": f"r{number}"}, "spec": spec}


async def fill(folder: Path, services: int) -> None:
    client = Client(folder)
    tenth = range(0, services, 10)
    await client.send("POST", "/api/v1/nodes", {"metadata": {"name": "node-3"}, "spec": {"podCIDR": "10.244.2.0/24"}})
    kind = {"metadata": {"name": "vipwire"}, "spec": {"controllerName": "vipwire.io/gateway"}}
    await client.send("POST", f"{GROUP}/gatewayclasses", kind)
    listeners = [{"name": "http", "port": 8002, "protocol": "HTTP"}]
    edge = {"metadata": {"name": "edge"}, "spec": {"gatewayClassName": "vipwire", "listeners": listeners}}
    await client.send("POST", f"{GROUP}/namespaces/default/gateways", edge)
    found = {"metadata": {"name": "vipwire"}, "spec": {"controller": "vipwire.io/ingress"}}
    await client.send("POST", "/apis/networking.k8s.io/v1/ingressclasses", found)
    await client.create("/api/v1/namespaces/default/services", [service(each) for each in range(services)])
    await client.create("/api/v1/namespaces/default/pods", [pod(each) for each in range(services)])
    await client.create("/apis/networking.k8s.io/v1/namespaces/default/ingresses", [ingress(each) for each in tenth])
    await client.create(f"{GROUP}/namespaces/default/httproutes", [route(each) for each in tenth])
    await client.session.close()


@contextlib.contextmanager
def running(lab: Lab, node: str, words: tuple[str, ...], log: Path, said: str = "") -> Iterator[int]:
    """Run a command on a node for the block, once it has printed a line that begins with `said`; yield its PID."""
    command = [sys.executable, "-m", "vipwire", *(word.replace("FOLDER", str(log.parent)) for word in words)]
    options: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stderr": log.open("w"), "text": True}
    process = lab.popen(node, command, stdout=subprocess.PIPE, **options)
    heard = Listened(words[0], process)
    try:
        if said:
            heard.wait_until(lambda lines: any(line.startswith(said) for line in lines), PATIENCE)
        yield process.pid
    finally:
        heard.end_process(PATIENCE, signal.SIGTERM)


def settle(pids: dict[str, int], least: float = 20.0) -> None:
    """Wait until no process takes more than 0.8 % of a CPU."""
    busy: dict[str, float] = {}

    def rests() -> bool:
        before = {name: cpu_milliseconds(pid) for name, pid in pids.items()}
        time.sleep(least)
        took = {name: cpu_milliseconds(pid) - before[name] for name, pid in pids.items()}
        busy.clear()
        busy.update({name: each for name, each in took.items() if each > least * 8})
        return not busy

    end = time.monotonic() + EVENTS
    while not rests():
        if time.monotonic() > end:
            raise SystemExit(f"not at rest after {EVENTS:.0f} s; ms of CPU in {least:.0f} s: {busy}")


def measure(folder: Path, services: int, seconds: float) -> dict[str, float]:
    """Return the milliseconds of CPU for each second, by command."""
    with contextlib.ExitStack() as stack:
        lab = stack.enter_context(Lab(make_topology((1, 1, 1), lan=True)))
        pids = {"up": stack.enter_context(running(lab, "node-1", UP, folder / "up.log", "try:"))}
        filled = [sys.executable, "-m", "bench.idle", "--fill", str(folder / "up"), "--services", str(services)]
        lab.run("node-1", filled, timeout=PATIENCE * 5)
        made = [sys.executable, "-m", "vipwire", "token", "create", "--data-dir", str(folder / "up")]
        words = shlex.split(lab.run("node-1", made).stdout)[2:]
        join = ("join", *words, "--node-name", "node-2", "--data-dir", "FOLDER/joined")
        pids["join"] = stack.enter_context(running(lab, "node-2", join, folder / "join.log", "joined as"))
        for name, command in COMMANDS.items():
            pids[name] = stack.enter_context(running(lab, "node-3", command, folder / f"{name}.log"))
        time.sleep(20)
        settle(pids)
        before, began = {name: cpu_milliseconds(pid) for name, pid in pids.items()}, time.monotonic()
        time.sleep(seconds)
        took = time.monotonic() - began
        return {name: (cpu_milliseconds(pid) - before[name]) / took for name, pid in pids.items()}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--services", type=int, default=10_000)
    parser.add_argument("--seconds", type=float, default=65.0, help="of rest that are measured")
    parser.add_argument("--fill", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("-o", "--output", choices=("text", "json"), default="text")
    given = parser.parse_args()
    if given.fill:
        asyncio.run(fill(given.fill, given.services))
        raise SystemExit
    with tempfile.TemporaryDirectory() as made:
        found = measure(Path(made), given.services, given.seconds)
    if given.output == "json":
        print(json.dumps(found))
    else:
        for name, figure in found.items():
            print(f"{name:10} {figure:6.2f} ms of CPU a second")
