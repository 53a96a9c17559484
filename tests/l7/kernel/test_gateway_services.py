"""Gateways with the same port, each reached at its own address and ClusterIP: by HAProxy or by a proxy's rules."""

import json
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.fakes.own_network import own_network, run
from tests.l7.gateway.test_gateway_daemon import CLASS, COMMAND, PODS, POOLED, SERVICE, code, until
from tests.up.unit.cluster_process import CLIENTS, VIPWIRE, Kubectl

pytestmark = [pytest.mark.kernel, pytest.mark.slow]

NETWORK = """
link add outer type veth peer name inner
link set outer up
addr add 192.0.2.10/24 dev inner
link set inner up
route add default via 192.0.2.1
route add local 198.51.100.0/28 dev lo
"""


@contextmanager
def program(folder: Path, *command: str) -> Iterator[None]:
    """Run something until it is left."""
    with (folder / "log").open("ab") as log, subprocess.Popen(command, stdout=log, stderr=log) as process:
        try:
            yield
        finally:
            process.send_signal(signal.SIGTERM)


def made(name: str, of_class: str) -> str:
    """Write a Gateway at port 80, and its route for one path of any host."""
    text = POOLED.replace("addresses: [ADDRESSES], ", "").replace(
        "gatewayClassName: vipwire", f"gatewayClassName: {of_class}"
    )
    text = text.replace("hostnames: [NAME.example.com]", "").replace("NAME", name).replace("PORT", "80")
    rule = f"[{{matches: [{{path: {{value: /{name}}}}}], backendRefs: [{{name: web, port: 8080}}]}}]"
    return text.replace("[{backendRefs: [{name: web, port: 8080}]}]", rule)


def test_gateways_with_one_port_are_reached_at_addresses_and_cluster_ips(tmp_path: Path) -> None:
    """With the range of `vipwire up`, and by Services of the gateway's own as in clusters (`--services`)."""
    data = tmp_path / "cluster"
    up = ("up", "--data-dir", str(data), "--no-dns", "--node-name", "one", "--load-balancer-range", "198.51.100.0/28")
    own = CLASS.replace("vipwire.io/gateway", "example.com/own").replace("name: vipwire", "name: own")
    with own_network():
        for line in NETWORK.strip().splitlines():
            run(f"ip {line}")
        with program(tmp_path, *VIPWIRE, *up):
            kubectl = Kubectl(CLIENTS[0], data / "admin.kubeconfig", tmp_path)
            until(lambda: kubectl.run("get", "namespace", "default").returncode == 0, tmp_path)
            gateways = (made("ranged", "vipwire"), made("first", "own"), made("second", "own"))
            kubectl("apply", "-f", "-", stdin="---".join((CLASS, own, SERVICE, PODS, *gateways)))
            with (
                gateway(tmp_path, "ranged", data / "ingress.kubeconfig"),
                gateway(tmp_path, "own", data / "admin.kubeconfig", "--controller=example.com/own", SERVICES),
            ):
                reached = {}
                for name, of_class in (("ranged", "vipwire"), ("first", "own"), ("second", "own")):
                    until(has_address(kubectl, f"{name}-{of_class}"), tmp_path)
                    found = json.loads(kubectl("get", "service", f"{name}-{of_class}", "-o", "json"))
                    reached[name] = found["spec"]["clusterIP"], *addresses(found)
                assert [len(set(each)) for each in reached.values()] == [2, 2, 2]
                for name, places in reached.items():
                    for place in places:
                        until(lambda: code(80, "any.org", f"/{name}", at=place) == "503", tmp_path)  # noqa: B023
                        others = [code(80, "any.org", f"/{each}", at=place) for each in reached if each != name]
                        assert others == ["404", "404"]


SERVICES = "--services=kube-system/vipwire-gateway"


@contextmanager
def gateway(folder: Path, name: str, kubeconfig: Path, *flags: str) -> Iterator[None]:
    """Run `vipwire gateway` beside others."""
    common = ("--kubeconfig", str(kubeconfig), "--run-dir", str(folder / name), "--grace", "0.2", "--threads", "1")
    with program(folder, *COMMAND, *common, "--lease", "", "--metrics-bind-address", "127.0.0.1:0", *flags):
        yield


def addresses(service: Any) -> list[str]:
    return [each["ip"] for each in service["status"]["loadBalancer"].get("ingress", ())]


def has_address(kubectl: Kubectl, name: str) -> Callable[[], bool]:
    """Make what tells whether a Service is there and has an address."""

    def found() -> bool:
        done = kubectl.run("get", "service", name, "-o", "json")
        return done.returncode == 0 and bool(addresses(json.loads(done.stdout)))

    return found
