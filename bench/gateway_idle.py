"""What an idle `vipwire gateway` takes: `python -m bench.gateway_idle` (needs haproxy and kubectl; loopback only).

A `vipwire up` has HTTPRoutes with a Service each, spread over Gateways; `vipwire gateway` serves them, writes their
statuses, and the Gateways' Services (`--services`). Once all have a status, nothing changes any more.
"""

import argparse
import json
import tempfile
import time
from pathlib import Path

from tests.l7.gateway.test_gateway_daemon import CLASS, running
from tests.up.unit.cluster_process import CLIENTS, Kubectl, up

PODS = """
apiVersion: v1
kind: Service
metadata: {name: pods, namespace: default}
spec: {clusterIP: None, ports: [{port: 8080}]}
"""
GATEWAY = """
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {{name: edge-{number}, namespace: default}}
spec: {{gatewayClassName: vipwire, listeners: [{{name: http, port: 80, protocol: HTTP}}]}}
"""
ROUTE = """
apiVersion: v1
kind: Service
metadata: {{name: web-{number}, namespace: default}}
spec: {{ports: [{{port: 8080}}]}}
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {{name: web-{number}, namespace: default}}
spec:
  parentRefs: [{{name: edge-{gateway}}}]
  hostnames: [h{number}.example.com]
  rules: [{{backendRefs: [{{name: web-{number}, port: 8080}}]}}]
"""
AT_ONCE = 100
FLAGS = ("--services", "default/pods")


def used(pid: int) -> float:
    """Return the CPU time of a process, in milliseconds."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((each / "schedstat").read_text().split()[0]) for each in tasks) / 1e6


def fill(kubectl: Kubectl, routes: int, gateways: int) -> None:
    made = [CLASS, PODS, *(GATEWAY.format(number=number) for number in range(gateways))]
    made += [ROUTE.format(number=number, gateway=number % gateways) for number in range(routes)]
    for first in range(0, len(made), AT_ONCE):
        kubectl("create", "--validate=false", "-f", "-", stdin="---".join(made[first : first + AT_ONCE]))


def wait(kubectl: Kubectl, routes: int) -> None:
    """Wait until each HTTPRoute has a status, and then until all watchers have received them."""
    end = time.monotonic() + 300
    while time.monotonic() < end:
        time.sleep(3)
        found = json.loads(kubectl("get", "httproutes", "-o", "json"))["items"]
        if sum("parents" in each.get("status", {}) for each in found) == routes:
            time.sleep(15)
            return
    raise TimeoutError("not every HTTPRoute has a status")


def idle(folder: Path, routes: int, gateways: int, seconds: float) -> float:
    """Return the CPU milliseconds for each second."""
    with up(folder / "cluster"):
        config = folder / "cluster" / "admin.kubeconfig"
        kubectl = Kubectl(CLIENTS[0], config, folder)
        fill(kubectl, routes, gateways)
        with running(folder, "--kubeconfig", str(config), *FLAGS) as process:
            wait(kubectl, routes)
            before, began = used(process.pid), time.monotonic()
            time.sleep(seconds)
            return (used(process.pid) - before) / (time.monotonic() - began)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--routes", type=int, default=1000)
    parser.add_argument("--gateways", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=65.0, help="of rest")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as made:
        taken = idle(Path(made), given.routes, given.gateways, given.seconds)
    print(f"{given.routes} HTTPRoutes, {given.gateways} Gateways: {taken:.1f} ms of CPU time a second")
