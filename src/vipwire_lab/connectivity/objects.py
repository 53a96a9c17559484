"""The objects of a connectivity test: a namespace, a Service of each kind, and their EndpointSlices."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from vipwire.kube.objects import Object, path_of

LABEL: Final = "vipwire.io/connectivity-test"
PREFIX: Final = "vipwire-connectivity-"
PORT: Final = 80
POD_PORT: Final = 8080
EXTERNAL: Final = ("192.0.2.253", "2001:db8::253")
"""Addresses of documentation (RFC 5737, RFC 3849) as externalIPs."""
_SLICES: Final = "/apis/discovery.k8s.io/v1"

KINDS: Final[dict[str, dict[str, Any]]] = {
    "cluster-ip": {},
    "node-port": {"type": "NodePort"},
    "node-port-local": {"type": "NodePort", "externalTrafficPolicy": "Local"},
    "load-balancer": {"type": "LoadBalancer"},
    "external-ip": {"externalIPs": list(EXTERNAL)},
    "internal-local": {"internalTrafficPolicy": "Local"},
    "affinity": {"sessionAffinity": "ClientIP"},
    "headless": {"clusterIP": "None"},
    "no-endpoints": {},
}
"""The Services by name, with the fields of their spec besides ports."""


@dataclass(frozen=True, slots=True)
class Echo:
    """An echo server: its name, its port for each protocol, its addresses, and its Node."""

    name: str
    port: int
    addresses: tuple[str, ...]
    node: str


def build_namespace(name: str) -> Object:
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": {LABEL: "true"}}}


def build_service(name: str, namespace: str, protocols: Sequence[str]) -> Object:
    ports = [{"name": each.lower(), "port": PORT, "protocol": each} for each in protocols]
    spec = {"ports": ports, "ipFamilyPolicy": "PreferDualStack", **KINDS[name]}
    meta = {"name": name, "namespace": namespace, "labels": {LABEL: "true"}}
    return {"apiVersion": "v1", "kind": "Service", "metadata": meta, "spec": spec}


def is_ready(node: Object) -> bool:
    conditions = (node.get("status") or {}).get("conditions") or ()
    return any(each.get("type") == "Ready" and each.get("status") == "True" for each in conditions)


def build_pod(node: str, namespace: str, image: str) -> Object:
    """Build an echo Pod for a Node: it runs `vipwire connectivity echo` of the image, without any right."""
    name = f"echo-{node}"
    security = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}, "runAsNonRoot": True}
    security |= {"runAsUser": 65534, "seccompProfile": {"type": "RuntimeDefault"}}
    command = ["vipwire", "connectivity", "echo", "--name", name, "--node", node, "--port", str(POD_PORT)]
    container = {"name": "echo", "image": image, "command": command, "securityContext": security}
    spec = {"nodeName": node, "containers": [container], "automountServiceAccountToken": False}
    spec |= {"terminationGracePeriodSeconds": 1, "tolerations": [{"operator": "Exists"}]}
    meta = {"name": name, "namespace": namespace, "labels": {LABEL: "true"}}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec}


def echo_of(pod: Object) -> Echo | None:
    """Return the echo server of a Pod; None while it is not running or has no address."""
    status, name = pod.get("status") or {}, pod["metadata"]["name"]
    addresses = [each["ip"] for each in status.get("podIPs") or [{"ip": status.get("podIP")}] if each.get("ip")]
    if status.get("phase") != "Running" or not addresses:
        return None
    return Echo(name, POD_PORT, tuple(addresses), pod["spec"]["nodeName"])


def build_slices(service: str, namespace: str, echoes: Sequence[Echo], protocols: Sequence[str]) -> Iterator[Object]:
    """Yield an EndpointSlice for each echo server and family: each server has a port of its own."""
    for echo in echoes if service != "no-endpoints" else ():
        for address in echo.addresses:
            family = "IPv6" if ":" in address else "IPv4"
            labels = {"kubernetes.io/service-name": service, LABEL: "true"}
            labels["endpointslice.kubernetes.io/managed-by"] = "vipwire-connectivity-test"
            name = f"{service}-{echo.name}-{family.lower()}"
            yield {
                "apiVersion": "discovery.k8s.io/v1",
                "kind": "EndpointSlice",
                "metadata": {"name": name, "namespace": namespace, "labels": labels},
                "addressType": family,
                "endpoints": [{"addresses": [address], "conditions": {"ready": True}, "nodeName": echo.node}],
                "ports": [{"name": each.lower(), "port": echo.port, "protocol": each} for each in protocols],
            }


def collection_path(value: Object) -> str:
    """Return the path of the collection in which an object is created."""
    namespace = value["metadata"].get("namespace", "")
    plural = f"{value['kind'].lower()}s"
    return path_of(_SLICES if value["kind"] == "EndpointSlice" else "/api/v1", plural, namespace)
