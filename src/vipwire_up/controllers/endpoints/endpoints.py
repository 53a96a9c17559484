"""Derives a Service's endpoints from its selector's Pods, or from Endpoints made by hand. Pure.

Endpoints are grouped by family and ports: Pods whose named target port has another number form their own group
(staging/src/k8s.io/endpointslice/reconciler.go). A Pod has an endpoint if it has a reachable address and has not
ended:

    ready        publishNotReadyAddresses, or serving and not terminating
    serving      its condition Ready, unless its machine is lost
    terminating  it has a deletionTimestamp
"""

import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from vipwire_up.api.objects.addresses import family_of, find_endpoint_problem
from vipwire_up.api.objects.object import value_at
from vipwire_up.api.objects.resource import Object
from vipwire_up.controllers.endpoints.topology import wants_topology_hints

_ENDED: Final = ("Succeeded", "Failed")
_CLOSE: Final = ("PreferClose", "PreferSameZone", "PreferSameNode")


@dataclass(frozen=True, slots=True)
class Group:
    """The properties that all endpoints of a slice share. `ports` is JSON, which can be compared."""

    family: str
    ports: str

    @property
    def port_list(self) -> list[Object]:
        ports: list[Object] = json.loads(self.ports)
        return ports


Grouped: TypeAlias = dict[Group, list[Object]]
"""Endpoints by group."""


def format_ports_key(ports: Iterable[Mapping[str, Any]]) -> str:
    fields = ("name", "protocol", "port", "appProtocol")
    plain = [{name: port[name] for name in fields if port.get(name) is not None} for port in ports]
    return json.dumps(sorted(plain, key=lambda port: (str(port.get("name", "")), str(port.get("port")))))


def group_pod_endpoints(
    service: Object, pods: Iterable[Object], zones: Mapping[str, str], lost: Collection[str] = ()
) -> Grouped:
    """Return the endpoints of the Pods that a Service selects; `zones` by node, `lost` nodes by name."""
    found: Grouped = {}
    for pod in pods:
        if not is_endpoint(pod):
            continue
        ports = format_ports_key(_resolve_ports(service["spec"], pod))
        for family in value_at(service, "spec", "ipFamilies") or ["IPv4"]:
            address = next((ip for ip in _reachable_addresses(pod) if family_of(ip) == family), None)
            if address:
                found.setdefault(Group(family, ports), []).append(_build_endpoint(service, pod, address, zones, lost))
    return found


def group_mirrored_endpoints(endpoints: Object, zones: Mapping[str, str]) -> Grouped:
    """Convert Endpoints made by hand into endpoints of slices (KEP-0752, mirroring)."""
    found: Grouped = {}
    for subset in endpoints.get("subsets") or ():
        ports = format_ports_key(subset.get("ports") or ())
        for part, ready in (("addresses", True), ("notReadyAddresses", False)):
            for address in subset.get(part) or ():
                family = "" if find_endpoint_problem(address.get("ip", "")) else family_of(address["ip"])
                if family:
                    found.setdefault(Group(family, ports), []).append(_mirror_endpoint(address, zones, ready=ready))
    return {group: list(_drop_repeated(listed)) for group, listed in found.items()}


def is_endpoint(pod: Object) -> bool:
    return bool(_reachable_addresses(pod)) and value_at(pod, "status", "phase") not in _ENDED


def is_ready(pod: Object) -> bool:
    conditions = value_at(pod, "status", "conditions") or ()
    return any(entry.get("type") == "Ready" and entry.get("status") == "True" for entry in conditions)


def pod_addresses(pod: Object) -> list[str]:
    listed = [entry.get("ip") or "" for entry in value_at(pod, "status", "podIPs") or ()]
    first = value_at(pod, "status", "podIP")
    return [address for address in listed or [first] if address]


def _reachable_addresses(pod: Object) -> list[str]:
    return [address for address in pod_addresses(pod) if not find_endpoint_problem(address)]


def _resolve_ports(spec: Object, pod: Object) -> Iterator[Object]:
    for port in spec.get("ports") or ():
        protocol = port.get("protocol", "TCP")
        number = _resolve_target_port(port, protocol, pod)
        if number:
            found = {"name": port.get("name", ""), "protocol": protocol, "port": number}
            yield found | ({"appProtocol": port["appProtocol"]} if port.get("appProtocol") else {})


def _resolve_target_port(port: Object, protocol: str, pod: Object) -> int | None:
    """Return the number of a target port; a name is looked up among the Pod's container ports."""
    target = port.get("targetPort") or port.get("port")
    if isinstance(target, int):
        return target
    spec = pod.get("spec") or {}
    containers = [*(spec.get("containers") or ()), *(spec.get("initContainers") or ())]
    listed = (entry for container in containers for entry in container.get("ports") or ())
    named = (e["containerPort"] for e in listed if e.get("name") == target and e.get("protocol", "TCP") == protocol)
    return next(named, None)


def _build_endpoint(
    service: Object, pod: Object, address: str, zones: Mapping[str, str], lost: Collection[str]
) -> Object:
    meta, spec = pod["metadata"], pod.get("spec") or {}
    serving = is_ready(pod) and spec.get("nodeName") not in lost
    terminating = bool(meta.get("deletionTimestamp"))
    ready = bool(value_at(service, "spec", "publishNotReadyAddresses")) or (serving and not terminating)
    endpoint: Object = {
        "addresses": [address],
        "conditions": {"ready": ready, "serving": serving, "terminating": terminating},
        "targetRef": {"kind": "Pod", "namespace": meta["namespace"], "name": meta["name"], "uid": meta["uid"]},
    }
    if spec.get("hostname") and spec.get("subdomain") == service["metadata"]["name"]:
        endpoint["hostname"] = spec["hostname"]
    _set_node_and_zone(endpoint, spec.get("nodeName") or "", zones)
    wanted = (
        None if wants_topology_hints(service) else value_at(service, "spec", "trafficDistribution")
    )  # this takes precedence
    hints = _build_hints(wanted, endpoint) if ready else {}
    return endpoint | ({"hints": hints} if hints else {})


def _set_node_and_zone(endpoint: Object, node: str, zones: Mapping[str, str]) -> None:
    if node:
        endpoint["nodeName"] = node
        if zones.get(node):
            endpoint["zone"] = zones[node]


def _build_hints(distribution: str | None, endpoint: Object) -> Object:
    """Return the hints of an endpoint (KEP-4444, KEP-3015): its zone, or its node."""
    hints: Object = {}
    if distribution in _CLOSE and endpoint.get("zone"):
        hints["forZones"] = [{"name": endpoint["zone"]}]
    if distribution == "PreferSameNode" and endpoint.get("nodeName"):
        hints["forNodes"] = [{"name": endpoint["nodeName"]}]
    return hints


def _mirror_endpoint(address: Object, zones: Mapping[str, str], *, ready: bool) -> Object:
    endpoint: Object = {"addresses": [address["ip"]], "conditions": {"ready": ready}}
    for name in ("hostname", "targetRef"):
        if address.get(name):
            endpoint[name] = address[name]
    _set_node_and_zone(endpoint, address.get("nodeName") or "", zones)
    return endpoint


def _drop_repeated(endpoints: Iterable[Object]) -> Iterator[Object]:
    seen = set[str]()
    for endpoint in endpoints:
        if endpoint["addresses"][0] not in seen:
            seen.add(endpoint["addresses"][0])
            yield endpoint
