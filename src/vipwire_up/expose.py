"""`vipwire expose`: a Service and its endpoints in one command, against the API server of a running `vipwire up`.

The endpoints are EndpointSlices with the Service's label, one for each family and port; or, with a check, Pods with a
readiness probe that the Service selects. vipwire applies all objects: the same command again changes nothing. An
endpoint on a machine of the cluster has its Node's name: if that Node is lost, the endpoint is removed.
"""

import asyncio
import ipaddress
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Final

from vipwire.errors import ConfigError, VipwireError
from vipwire.kube.access.access import FOLDER, Access, load_access
from vipwire.kube.access.kubectl import find_files_of_this_machine, find_kubectl_files
from vipwire.kube.errors import ApiError, UnreachableError
from vipwire.kube.objects import Object, ObjectClient
from vipwire.model.net import add_brackets
from vipwire.model.text import port_number
from vipwire_up.api.objects.addresses import find_endpoint_problem
from vipwire_up.nodes.node import ADDRESSES

MANAGER: Final = "vipwire-expose"
TIMEOUT: Final = 30.0
LABEL: Final = "vipwire.io/exposed"
_LOOKS, _PAUSE = 20, 0.1
"""Number of looks for the Service's load balancer address, and the seconds between them."""
_INVALID: Final = 422
_AT_ONCE: Final = (("gracePeriodSeconds", "0"),)
_NAME: Final = re.compile("[a-z]([-a-z0-9]{0,61}[a-z0-9])?")


@dataclass(frozen=True, slots=True)
class Target:
    """A destination of connections."""

    address: str
    port: int


@dataclass(frozen=True, slots=True)
class Wanted:
    """The Service to create. `check` is "", "tcp" or "http:/path"; `policy` its externalTrafficPolicy."""

    name: str
    namespace: str
    port: int
    targets: tuple[Target, ...]
    type: str = "ClusterIP"
    protocol: str = "TCP"
    check: str = ""
    check_seconds: int = 2
    policy: str = "Cluster"


def read_targets(text: str) -> tuple[Target, ...]:
    return tuple(_parse_target(part.strip()) for part in text.split(","))


def _parse_target(text: str) -> Target:
    host, _, port = text.rpartition(":")
    number = port_number(port)
    try:
        address = ipaddress.ip_address(host[1:-1] if host.startswith("[") and host.endswith("]") else host)
        sound = (address.version == 6) == host.startswith("[")
    except ValueError:
        sound = False
    if number is None or not sound:
        raise ConfigError(f"--to: {text!r} is not a target (allowed: 10.0.0.5:8080 or [fd00::5]:8080)")
    if find_endpoint_problem(str(address)):
        raise ConfigError(f"--to: {address} cannot be an endpoint: every machine and Pod has its own")
    return Target(str(address), number)


def build_objects(wanted: Wanted, nodes: Mapping[str, str] = MappingProxyType({})) -> Iterator[tuple[str, Object]]:
    """Yield the objects with their API paths; `nodes` has the Nodes' names by address. Raise ConfigError."""
    if not _NAME.fullmatch(wanted.name):
        raise ConfigError(f"{wanted.name!r} is not a name for a Service (allowed: lower-case letters, digits and -)")
    families = tuple(dict.fromkeys(_family_of(target) for target in wanted.targets))
    base = f"/api/v1/namespaces/{wanted.namespace}"
    yield f"{base}/services/{wanted.name}", _build_service(wanted, families)
    if not wanted.check:
        yield from _build_slices(wanted, nodes)
        return
    if len({target.port for target in wanted.targets}) > 1:
        raise ConfigError("--to: with --check all targets must have the same port")
    for number, target in enumerate(wanted.targets, 1):
        pod = _build_pod(wanted, target, f"{wanted.name}-{number}")
        if placed := _node_name_field(target.address, nodes):
            pod["spec"] |= placed | {"terminationGracePeriodSeconds": 0}  # no process ends with the Pod
        yield f"{base}/pods/{wanted.name}-{number}", pod


def node_names_by_address(found: Iterable[Object]) -> dict[str, str]:
    nodes: dict[str, str] = {}
    for node in found:
        name = node["metadata"]["name"]
        listed = (node["metadata"].get("annotations") or {}).get(ADDRESSES, "").split(",")
        listed += [each["address"] for each in (node.get("status") or {}).get("addresses") or ()]
        for text in filter(None, listed):
            nodes.setdefault(text, name)
    return nodes


def _node_name_field(address: str, nodes: Mapping[str, str]) -> Object:
    return {"nodeName": nodes[address]} if address in nodes else {}


def _family_of(target: Target) -> str:
    return f"IPv{ipaddress.ip_address(target.address).version}"


def _build_service(wanted: Wanted, families: tuple[str, ...]) -> Object:
    port = {"port": wanted.port, "protocol": wanted.protocol, "targetPort": wanted.targets[0].port}
    spec: Object = {"type": wanted.type, "ports": [port]}
    if wanted.policy != "Cluster":
        spec["externalTrafficPolicy"] = wanted.policy
    if wanted.check:
        spec["selector"] = {LABEL: wanted.name}
    policy = "RequireDualStack" if len(families) > 1 else "SingleStack"
    spec |= {"ipFamilies": list(families), "ipFamilyPolicy": policy}
    return {"apiVersion": "v1", "kind": "Service", "metadata": {"name": wanted.name}, "spec": spec}


def _build_slices(wanted: Wanted, nodes: Mapping[str, str]) -> Iterator[tuple[str, Object]]:
    groups: dict[tuple[str, int], list[str]] = {}
    for target in wanted.targets:
        groups.setdefault((_family_of(target), target.port), []).append(target.address)
    for (family, port), addresses in groups.items():
        name = f"{wanted.name}-{family.lower()}-{port}"
        path = f"/apis/discovery.k8s.io/v1/namespaces/{wanted.namespace}/endpointslices/{name}"
        labels = {"kubernetes.io/service-name": wanted.name, LABEL: wanted.name}
        ready = {"conditions": {"ready": True}}
        endpoints = [
            {"addresses": [each]} | ready | _node_name_field(each, nodes) for each in dict.fromkeys(addresses)
        ]
        ports = [{"name": "", "port": port, "protocol": wanted.protocol}]
        head = {"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": family}
        yield path, head | {"metadata": {"name": name, "labels": labels}, "endpoints": endpoints, "ports": ports}


def _build_pod(wanted: Wanted, target: Target, name: str) -> Object:
    kind, _, path = wanted.check.partition(":")
    action: Object = {"tcpSocket": {"port": target.port}}
    if kind == "http":
        action = {"httpGet": {"port": target.port, "path": path or "/"}}
    elif wanted.check != "tcp":
        raise ConfigError(f"--check: {wanted.check!r} is not known (allowed: tcp, http:/path)")
    port = {"containerPort": target.port, "protocol": wanted.protocol}
    container = {
        "name": "workload",
        "image": "none",
        "ports": [port],
        "readinessProbe": action | {"periodSeconds": wanted.check_seconds},
    }
    meta = {"name": name, "labels": {LABEL: wanted.name}, "annotations": {"vipwire.io/address": target.address}}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": {"containers": [container]}}


def find_access(said: Path | None, tell: Callable[[str], object]) -> Access:
    """Return the access to the API server: by the flag's kubeconfig, or kubectl's, or this machine's.

    Without the flag, `tell` is called with a text about the choice. Raise ConfigError.
    """
    if said is not None:
        return load_access(said)
    found = find_kubectl_files() or find_files_of_this_machine()
    if found is None:
        where = f"there is no ~/.kube/config, and in {FOLDER} no readable admin.kubeconfig"
        raise ConfigError(f"no API server: $KUBECONFIG is not set, {where} (is `vipwire up` running?)")
    return found.access(tell)


async def expose_service(access: Access, wanted: Wanted) -> Object:
    """Apply all objects, delete those of an earlier command that are no longer wanted; return the Service.

    vipwire waits a moment for a load balancer's address. Raise VipwireError with the API server's message.
    """
    dict(build_objects(wanted))  # raises for invalid flags before the first request
    try:
        async with ObjectClient(access, MANAGER, timeout=TIMEOUT) as client:
            return await _apply_wanted(client, wanted)
    except UnreachableError as error:
        raise VipwireError(f"{error} (is `vipwire up` running?)") from None
    except ApiError as error:
        raise VipwireError(error.message) from None


async def _apply_wanted(client: ObjectClient, wanted: Wanted) -> Object:
    places = node_names_by_address(await client.list("/api/v1/nodes"))
    if wanted.policy == "Local" and not any(target.address in places for target in wanted.targets):
        raise ConfigError("--external-traffic-policy Local: none of --to is an address of a machine of the cluster")
    made = dict(build_objects(wanted, places))
    (home, value), *others = made.items()
    service = await client.apply(home, value)
    for path, value in others:
        value["metadata"]["ownerReferences"] = [_owner_reference(service)]  # deleted with the Service
        await _apply_object(client, path, value)
    for folder in _collection_paths(wanted.namespace):
        for item in await client.list(folder, (("labelSelector", f"{LABEL}={wanted.name}"),)):
            path = f"{folder}/{item['metadata']['name']}"
            if path not in made:
                await client.delete(path, _AT_ONCE)
    left = _LOOKS if wanted.type == "LoadBalancer" else 0
    while left and not _assigned_addresses(service):
        left -= 1
        await asyncio.sleep(_PAUSE)
        service = await client.ask("GET", home)
    return service


def _owner_reference(service: Object) -> Object:
    meta = service["metadata"]
    return {"apiVersion": "v1", "kind": "Service", "name": meta["name"], "uid": meta["uid"]}


def _assigned_addresses(service: Object) -> list[str]:
    balancer = (service.get("status") or {}).get("loadBalancer") or {}
    return [entry.get("ip") or entry.get("hostname") or "" for entry in balancer.get("ingress") or ()]


def describe_addresses(service: Object) -> Iterator[str]:
    spec, meta = service["spec"], service["metadata"]
    name = f"{meta['namespace']}/{meta['name']}"
    for address in (*(spec.get("clusterIPs") or ()), *_assigned_addresses(service)):
        host = add_brackets(address)
        yield f"{name}: {host}:{spec['ports'][0]['port']}"
    if node_port := spec["ports"][0].get("nodePort"):
        yield f"{name}: port {node_port} of this machine"
    if spec.get("type") == "LoadBalancer" and not _assigned_addresses(service):
        where = f"`kubectl describe service {meta['name']}`, and `--load-balancer-range` of `vipwire up`"
        yield f"{name}: no load balancer has assigned an address yet: see {where}"


def _collection_paths(namespace: str) -> Iterable[str]:
    return (
        f"/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices",
        f"/api/v1/namespaces/{namespace}/pods",
    )


async def _apply_object(client: ObjectClient, path: str, value: Object) -> None:
    try:
        await client.apply(path, value)
    except ApiError as error:
        if error.code != _INVALID or value["kind"] != "Pod":
            raise
        await client.delete(path, _AT_ONCE)  # a Pod's probe and Node are immutable
        await client.apply(path, value)
