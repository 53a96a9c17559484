"""Pods behind a bridge (`BridgeInterface`): one that reaches itself is served. Run in the guest.

The lab has no bridges, so this module makes one, with two Pods at ports in hairpin mode.
"""

import subprocess
import sys
from collections.abc import Iterator

import pytest
from tests.fakes.own_network import own_network, run
from tests.fakes.values import named
from tests.proxy.kernel.ipvs.proxy import BALANCER, EXTERNAL, FAMILIES, VIP

from vipwire.linux.host.settings import apply_sysctls
from vipwire.linux.netlink.ipvs import Timeouts
from vipwire.model.net import Family, Prefix, Protocol, parse_address
from vipwire.model.service import Endpoint, EndpointPort, EndpointSlice, Service, ServicePort, TrafficPolicy
from vipwire.modes.ipvs.driver import build_backends, ipvs_sysctls
from vipwire.modes.ipvs.kernel import IpvsBackend
from vipwire.modes.ipvs.render import IpvsSettings
from vipwire.plan.node import NodePlan, PodBridge
from vipwire.plan.planner import Planner
from vipwire.reconcile.reconciler import Reconciler

pytestmark = pytest.mark.kernel

BRIDGE, SERVER, OTHER = "cni0", "11", "12"
NET = {Family.IPV4: ("10.244.1.", "24"), Family.IPV6: ("fd00:10:244:1::", "64")}
NODE = {Family.IPV4: "192.168.0.1", Family.IPV6: "2001:db8::1"}
HTTP = ServicePort("", Protocol.TCP, 80, 30080)


def pod(family: Family, name: str) -> str:
    return f"{NET[family][0]}{name}"


def build_bridge() -> None:
    run("modprobe br_netfilter")
    run(f"ip link add {BRIDGE} type bridge")
    run("ip link add uplink type dummy")
    run("sysctl -q -w net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1")
    for family in Family:
        run(f"ip addr add {NET[family][0]}1/{NET[family][1]} dev {BRIDGE}{' nodad' * (family is Family.IPV6)}")
        run(f"ip addr add {NODE[family]}/{NET[family][1]} dev uplink{' nodad' * (family is Family.IPV6)}")
    run(f"ip link set {BRIDGE} up")
    run("ip link set uplink up")
    for name in (SERVER, OTHER):
        add_pod(name)


def add_pod(name: str) -> None:
    run(f"ip netns add pod-{name}")
    run(f"ip link add v{name} type veth peer name eth0 netns pod-{name}")
    run(f"ip link set v{name} master {BRIDGE} up")
    run(f"ip link set v{name} type bridge_slave hairpin on")
    run(f"ip -n pod-{name} link set lo up")
    run(f"ip -n pod-{name} link set eth0 up")
    for family in Family:
        nodad = " nodad" * (family is Family.IPV6)
        run(f"ip -n pod-{name} addr add {pod(family, name)}/{NET[family][1]} dev eth0{nodad}")
        run(f"ip -n pod-{name} route add default via {NET[family][0]}1")


def program(family: Family, policy: TrafficPolicy) -> IpvsBackend:
    """Program a Service with the serving Pod as its only endpoint."""
    node = NodePlan(
        family,
        "node-1",
        address=parse_address(NODE[family]),
        pod_traffic=PodBridge(BRIDGE),
        node_port_addresses=(Prefix.host(parse_address(NODE[family])),),
        addresses=(parse_address(NODE[family]),),
    )
    service = Service(
        named("web"),
        (HTTP,),
        (parse_address(VIP[family]),),
        external_ips=(parse_address(EXTERNAL[family]),),
        load_balancer_ips=(parse_address(BALANCER[family]),),
        external_policy=policy,
    )
    there = Endpoint(parse_address(pod(family, SERVER)), ready=True, serving=True, terminating=False, node="node-1")
    ports = (EndpointPort("", Protocol.TCP, 8080),)
    piece = EndpointSlice(named("web-1"), service.name, family, ports, (there,))
    backend = IpvsBackend(family, IpvsSettings())
    reconciler = Reconciler(backend)
    reconciler.desire_node(backend.render_node(node))
    for name, change in Planner(node).update([service.name], lambda _: (service, [piece])).items():
        reconciler.desire(name, change.new)
    assert reconciler.sync().added
    return backend


@pytest.fixture(scope="module", params=list(TrafficPolicy), ids=lambda policy: policy.value)
def policy(request: pytest.FixtureRequest) -> Iterator[TrafficPolicy]:
    found: TrafficPolicy = request.param
    with own_network():
        build_bridge()
        apply_sysctls(ipvs_sysctls((6, 1), strict_arp=False))
        for backend in build_backends(Family, IpvsSettings(), Timeouts()).values():
            backend.close()
        backends = [program(family, found) for family in Family]
        command = [
            "ip",
            "netns",
            "exec",
            f"pod-{SERVER}",
            sys.executable,
            "-u",
            "-m",
            "http.server",
            "8080",
            "--bind",
            "::",
        ]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as server:
            assert server.stdout is not None
            assert "Serving" in server.stdout.readline()
            yield found
            server.kill()
        for backend in backends:
            backend.close()
        for name in (SERVER, OTHER):
            run(f"ip netns del pod-{name}")


def answered(name: str, address: str, port: int) -> bool:
    """Request a page from within a Pod."""
    script = f"exec 3<>/dev/tcp/{address}/{port} && printf 'GET / HTTP/1.0\\r\\n\\r\\n' >&3 && head -c 8 <&3"
    command = ["ip", "netns", "exec", f"pod-{name}", "timeout", "20", "bash", "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout == "HTTP/1.0"


@FAMILIES
@pytest.mark.parametrize("filtered", [0, 1], ids=["frames pass the bridge alone", "frames pass the tables"])
def test_a_pod_behind_a_bridge_reaches_itself(policy: TrafficPolicy, family: Family, filtered: int) -> None:
    """And so does another Pod where what is bridged passes the tables: else the answer goes past IPVS.

    There the Pod's answer to itself leaves by the port at which it came, which needs `hairpin on`.
    """
    run(f"sysctl -q -w net.bridge.bridge-nf-call-iptables={filtered} net.bridge.bridge-nf-call-ip6tables={filtered}")
    for address, port in ((VIP[family], 80), (EXTERNAL[family], 80), (BALANCER[family], 80), (NODE[family], 30080)):
        assert answered(SERVER, address, port)
    if policy is TrafficPolicy.CLUSTER:
        assert answered(OTHER, NODE[family], 30080), "masqueraded, so that the answer comes back"
    if filtered:
        assert answered(OTHER, VIP[family], 80)
