"""Kubernetes objects as an API server sends them, made by number, for tests and load."""

from typing import Any

Json = dict[str, Any]
CREATED = "2026-01-01T00:00:00Z"


def service(index: int = 0, **spec: Any) -> Json:
    """Make Service number `index` of namespace `ns-<index mod 50>`, with one TCP port 80."""
    address = f"10.{96 + (index >> 16)}.{index >> 8 & 255}.{index & 255}"
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {
            **_metadata(f"service-{index}", index),
            "annotations": {"kubectl.kubernetes.io/last-applied-configuration": "{}" * 100},
            "managedFields": _managed(),
        },
        "spec": {
            "type": "ClusterIP",
            "clusterIP": address,
            "clusterIPs": [address],
            "ipFamilies": ["IPv4"],
            "ipFamilyPolicy": "SingleStack",
            "internalTrafficPolicy": "Cluster",
            "sessionAffinity": "None",
            "selector": {"app": f"app-{index}"},
            "ports": [{"name": "http", "protocol": "TCP", "port": 80, "targetPort": 8080}],
            **spec,
        },
        "status": {"loadBalancer": {}},
    }


def slice_of(index: int = 0, endpoints: int = 10) -> Json:
    """Make the EndpointSlice of Service number `index`."""
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {
            **_metadata(f"service-{index}-abcde", index),
            "labels": {
                "kubernetes.io/service-name": f"service-{index}",
                "endpointslice.kubernetes.io/managed-by": "endpointslice-controller.k8s.io",
            },
            "annotations": {"endpoints.kubernetes.io/last-change-trigger-time": CREATED},
            "managedFields": _managed(),
        },
        "addressType": "IPv4",
        "ports": [{"name": "http", "protocol": "TCP", "port": 8080}],
        "endpoints": [endpoint(index * endpoints + position) for position in range(endpoints)],
    }


def endpoint(number: int) -> Json:
    """Make endpoint number `number` of the cluster, on one of a hundred nodes in three zones."""
    zone = f"zone-{number % 3}"
    return {
        "addresses": [f"10.{128 + (number >> 16)}.{number >> 8 & 255}.{number & 255}"],
        "conditions": {"ready": True, "serving": True, "terminating": False},
        "nodeName": f"node-{number % 100}",
        "zone": zone,
        "hints": {"forZones": [{"name": zone}]},
        "targetRef": {"kind": "Pod", "namespace": "default", "name": f"pod-{number}", "uid": f"{number:032x}"},
    }


def node(name: str, address: str = "192.0.2.10") -> Json:
    """Make a Node with an address, a Pod CIDR and a zone."""
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "uid": f"uid-{name}", "labels": {"topology.kubernetes.io/zone": "zone-0"}},
        "spec": {"podCIDR": "10.244.0.0/24", "podCIDRs": ["10.244.0.0/24"]},
        "status": {"addresses": [{"type": "InternalIP", "address": address}, {"type": "Hostname", "address": name}]},
    }


def service_cidr(name: str, *cidrs: str) -> Json:
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "ServiceCIDR",
        "metadata": {"name": name},
        "spec": {"cidrs": list(cidrs)},
    }


def _metadata(name: str, index: int) -> Json:
    return {
        "name": name,
        "namespace": f"ns-{index % 50}",
        "uid": f"0b6a7f1e-0000-4000-8000-{index:012x}",
        "creationTimestamp": CREATED,
    }


def _managed() -> list[Json]:
    """Make the `managedFields` that every real object has and vipwire ignores."""
    fields: Json = {
        "f:spec": {"f:ports": {".": {}, 'k:{"port":80,"protocol":"TCP"}': {".": {}, "f:port": {}, "f:name": {}}}}
    }
    return [{"manager": "controller", "operation": "Update", "apiVersion": "v1", "time": CREATED, "fieldsV1": fields}]
