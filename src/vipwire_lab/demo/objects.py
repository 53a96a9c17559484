"""The Services of the demo, as manifest files."""

import dataclasses
import shutil
from collections.abc import Iterable

from vipwire.model.net import Protocol
from vipwire_lab.cluster import manifests
from vipwire_lab.cluster.manifests import Manifest, Port
from vipwire_lab.namespaces.topology import DEFAULT, Pod

TOPOLOGY = DEFAULT
if shutil.which("ip"):  # iproute2 builds an Ethernet, on which addresses can move
    TOPOLOGY = dataclasses.replace(DEFAULT, lan=("node-1", "node-2", "client"))
PODS = TOPOLOGY.pods
LOCAL_PODS = tuple(pod for pod in PODS if pod.node == "node-1")
POD, OTHER_POD = PODS[:2]
CLIENT, CLIENT_ADDRESS, CLIENT_IPV6 = "client", "203.0.113.2", "2001:db8:113::2"
NODE_ADDRESS = "192.168.0.1"
MANY = 100
"""Connections of a scene: enough to reach every Pod."""
POD_CIDRS = "10.244.0.0/16,fd00:10:244::/48"

WEB, WEB_IPV6 = "10.96.0.10", "fd00:10:96::10"
WEB_NODE_PORT = 30080
SHOP_IP, SHOP_IPV6 = "198.51.100.10", "2001:db8:100::10"
HELLO_PORT = 8080
EMPTY, STICKY, LATE = "10.96.0.20", "10.96.0.30", "10.96.0.40"

_HTTP = (Port(80, name="http"),)


def nodes() -> list[Manifest]:
    return [manifests.node_manifest(node) for node in TOPOLOGY.nodes]


def web(pods: Iterable[Pod] = PODS) -> list[Manifest]:
    """Build the main Service: a ClusterIP of each family, a node port, TCP and UDP."""
    ports = (Port(80, name="http", node_port=WEB_NODE_PORT), Port(53, 8080, Protocol.UDP, "udp"))
    return manifests.build_service_with_slices(TOPOLOGY, "web", (WEB, WEB_IPV6), ports, pods, type="NodePort")


def shop() -> list[Manifest]:
    """Build a LoadBalancer Service with externalTrafficPolicy Local, which keeps the client's address."""
    service, *slices = manifests.build_service_with_slices(
        TOPOLOGY,
        "shop",
        ("10.96.0.11", "fd00:10:96::11"),
        _HTTP,
        PODS,
        type="LoadBalancer",
        externalTrafficPolicy="Local",
        healthCheckNodePort=32000,
    )
    return [service | manifests.build_load_balancer_status(SHOP_IP, SHOP_IPV6), *slices]


def empty() -> list[Manifest]:
    return manifests.build_service_with_slices(TOPOLOGY, "empty", (EMPTY,), _HTTP, ())


def sticky() -> list[Manifest]:
    return manifests.build_service_with_slices(
        TOPOLOGY,
        "sticky",
        (STICKY,),
        _HTTP,
        PODS,
        sessionAffinity="ClientIP",
        sessionAffinityConfig={"clientIP": {"timeoutSeconds": 600}},
    )


def late() -> list[Manifest]:
    """Build the Service that a scene adds to the running proxy."""
    return manifests.build_service_with_slices(TOPOLOGY, "late", (LATE,), _HTTP, LOCAL_PODS)


def hello() -> Manifest:
    """Build the Service that the demo applies with kubectl, as a user would write it."""
    ports = [{"name": "http", "port": 80, "targetPort": HELLO_PORT}]
    spec = {"type": "LoadBalancer", "selector": {"app": "hello"}, "ports": ports}
    return {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "hello"}, "spec": spec}


def workload(pod: Pod) -> Manifest:
    """Build a Pod object for a running Pod of the lab, with a probe of its port each second."""
    meta = {"name": pod.name, "labels": {"app": "hello"}, "annotations": {"vipwire.io/address": pod.addresses[0]}}
    probe = {"tcpSocket": {"port": HELLO_PORT}, "periodSeconds": 1, "failureThreshold": 1}
    container = {"name": "hello", "image": "none", "readinessProbe": probe}
    spec = {"nodeName": pod.node, "containers": [container]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec}
