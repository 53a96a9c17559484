"""The Kubernetes objects of a lab: its Nodes, and Services with the EndpointSlices of a controller.

Plain mappings as in YAML, so that a test can change any field before writing them.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from vipwire.model.net import Protocol
from vipwire_lab.namespaces.topology import Node, Pod, Topology

Manifest = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Port:
    """A Service's port; `target` is the Pods' port (0: the same), `node_port` 0 means none."""

    port: int
    target: int = 0
    protocol: Protocol = Protocol.TCP
    name: str = ""
    node_port: int = 0


@dataclass(frozen=True, slots=True)
class Backend:
    """A Pod (or a node, for a hostNetwork Pod) behind a Service, and its conditions. `serving` None: as `ready`."""

    host: Pod | Node
    ready: bool = True
    serving: bool | None = None
    terminating: bool = False
    for_zones: tuple[str, ...] = ()
    for_nodes: tuple[str, ...] = ()


def node_manifest(of: Node) -> Manifest:
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": of.name,
            "labels": {"kubernetes.io/hostname": of.name, "topology.kubernetes.io/zone": of.zone},
        },
        "spec": {"podCIDR": of.pod_cidrs[0], "podCIDRs": list(of.pod_cidrs)} if of.pod_cidrs else {},
        "status": {"addresses": [{"type": "InternalIP", "address": address} for address in _primary_addresses(of)]},
    }


def build_service(
    name: str, cluster_ips: Sequence[str], ports: Sequence[Port], *, namespace: str = "default", **spec: Any
) -> Manifest:
    """Build a Service; `spec` has further fields by Kubernetes' names: `type="NodePort"`, `externalIPs=[...]`."""
    families = ["IPv6" if ":" in address else "IPv4" for address in cluster_ips]
    fields = {
        "type": "ClusterIP",
        "clusterIP": cluster_ips[0],
        "clusterIPs": list(cluster_ips),
        "ipFamilies": families,
        "ipFamilyPolicy": "RequireDualStack" if len(families) > 1 else "SingleStack",
        "selector": {"app": name},
        "ports": [_build_service_port(port) for port in ports],
    }
    metadata = {"name": name, "namespace": namespace, "uid": f"uid-{namespace}-{name}"}
    return {"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": fields | spec}


def build_load_balancer_status(*addresses: str, mode: str = "VIP") -> Manifest:
    """Build the status with these load balancer addresses, to merge into a Service."""
    return {"status": {"loadBalancer": {"ingress": [{"ip": ip, "ipMode": mode} for ip in addresses]}}}


def build_endpoint_slices(
    topology: Topology,
    name: str,
    backends: Iterable[Pod | Node | Backend],
    ports: Sequence[Port],
    *,
    namespace: str = "default",
) -> list[Manifest]:
    behind = [each if isinstance(each, Backend) else Backend(each) for each in backends]
    slices = []
    for family in ("IPv4", "IPv6"):
        endpoints = [endpoint for each in behind for endpoint in _build_endpoints(topology, each, family)]
        if not endpoints:
            continue
        labels = {"kubernetes.io/service-name": name, "endpointslice.kubernetes.io/managed-by": "lab"}
        slices.append(
            {
                "apiVersion": "discovery.k8s.io/v1",
                "kind": "EndpointSlice",
                "metadata": {"name": f"{name}-{family.lower()}", "namespace": namespace, "labels": labels},
                "addressType": family,
                "endpoints": endpoints,
                "ports": [
                    {"name": port.name, "port": port.target or port.port, "protocol": port.protocol.name}
                    for port in ports
                ],
            }
        )
    return slices


def build_service_with_slices(
    topology: Topology,
    name: str,
    cluster_ips: Sequence[str],
    ports: Sequence[Port],
    backends: Iterable[Pod | Node | Backend],
    *,
    namespace: str = "default",
    **spec: Any,
) -> list[Manifest]:
    slices = build_endpoint_slices(topology, name, backends, ports, namespace=namespace)
    return [build_service(name, cluster_ips, ports, namespace=namespace, **spec), *slices]


def build_example(topology: Topology) -> list[Manifest]:
    """Build the lab's Nodes and a Service `web` with all its Pods: 10.96.0.10 and fd00:10:96::10, port 80."""
    ports = (Port(80, name="http", node_port=30080),)
    ips = ("10.96.0.10", "fd00:10:96::10")
    nodes = [node_manifest(each) for each in topology.nodes]
    return [*nodes, *build_service_with_slices(topology, "web", ips, ports, topology.pods, type="NodePort")]


def dump_yaml(manifests: Iterable[Manifest]) -> str:
    text: str = yaml.safe_dump_all(manifests, sort_keys=False, explicit_start=True)
    return text


def _primary_addresses(of: Node) -> list[str]:
    fours = [address for address in of.addresses if ":" not in address]
    sixes = [address for address in of.addresses if ":" in address]
    return fours[:1] + sixes[:1]


def _build_service_port(port: Port) -> Manifest:
    fields = {
        "name": port.name,
        "port": port.port,
        "targetPort": port.target or port.port,
        "protocol": port.protocol.name,
        "nodePort": port.node_port,
    }
    return {name: value for name, value in fields.items() if value}


def _build_endpoints(topology: Topology, backend: Backend, family: str) -> list[Manifest]:
    host = backend.host
    addresses = [address for address in host.addresses if (":" in address) is (family == "IPv6")][:1]
    node_name = topology.node_of(host.name)
    zone = next((each.zone for each in topology.nodes if each.name == node_name), "")
    conditions = {
        "ready": backend.ready,
        "serving": backend.ready if backend.serving is None else backend.serving,
        "terminating": backend.terminating,
    }
    fields: Manifest = {"conditions": conditions, "nodeName": node_name, "zone": zone}
    if isinstance(host, Pod):
        fields["targetRef"] = {"kind": "Pod", "name": host.name, "namespace": "default"}
    hints = {
        "forZones": [{"name": name} for name in backend.for_zones],
        "forNodes": [{"name": name} for name in backend.for_nodes],
    }
    if any(hints.values()):
        fields["hints"] = {kind: names for kind, names in hints.items() if names}
    return [{"addresses": [address]} | fields for address in addresses]
