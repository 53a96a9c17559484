"""Validates Services (pkg/apis/core/validation, ValidateService and ValidateServiceUpdate). Pure."""

from collections.abc import Iterator
from typing import Any, Final

from vipwire_up.api.kinds.rules.families import check_addresses, check_kept
from vipwire_up.api.kinds.rules.load_balancer import check_load_balancer
from vipwire_up.api.kinds.rules.probe import check_port
from vipwire_up.api.objects import names
from vipwire_up.api.objects.addresses import network_problem
from vipwire_up.api.objects.cells import at
from vipwire_up.api.objects.endpoint_address import problem_of
from vipwire_up.api.objects.errors import Cause, duplicate, forbidden, invalid, required
from vipwire_up.api.objects.resource import Object

TOPOLOGY_HINTS: Final = "service.kubernetes.io/topology-aware-hints"
TOPOLOGY_MODE: Final = "service.kubernetes.io/topology-mode"
_SOURCE_RANGES: Final = "service.beta.kubernetes.io/load-balancer-source-ranges"
_LONGEST_REST: Final = 86400  # seconds


def is_reached_from_outside(spec: Object) -> bool:
    """Report whether a Service has addresses or ports for clients that are not in the cluster."""
    kind = spec.get("type")
    return kind in ("NodePort", "LoadBalancer") or (kind == "ClusterIP" and bool(spec.get("externalIPs")))


def wants_health_check(spec: Object) -> bool:
    """Report whether a Service has a health check node port."""
    return spec.get("type") == "LoadBalancer" and spec.get("externalTrafficPolicy") == "Local"


def check_service(new: Object, old: Object | None) -> Iterator[Cause]:
    """Find what is wrong in a Service."""
    spec = new["spec"]
    if old is not None:
        yield from check_kept(spec, old.get("spec") or {})
    yield from _check_annotations(new)
    yield from _check_type(spec)
    yield from _check_ports(spec)
    yield from names.check_labels(spec.get("selector") or {}, "spec.selector")
    yield from check_addresses(spec)
    yield from _check_external_addresses(spec)
    yield from _check_source_ranges(new)
    yield from check_load_balancer(new, old)
    yield from _check_outside(spec)


def _check_annotations(new: Object) -> Iterator[Cause]:
    found = at(new, "metadata", "annotations") or {}
    if TOPOLOGY_MODE in found and TOPOLOGY_HINTS in found and found[TOPOLOGY_MODE] != found[TOPOLOGY_HINTS]:
        why = f"must match annotations[{TOPOLOGY_HINTS}] when both are specified"
        yield invalid(f"metadata.annotations[{TOPOLOGY_MODE}]", found[TOPOLOGY_MODE], why)


def _check_type(spec: Object) -> Iterator[Cause]:
    kind = spec.get("type")
    if not spec.get("ports") and kind != "ExternalName" and not (kind == "ClusterIP" and _is_headless(spec)):
        yield required("spec.ports")
    if kind in ("LoadBalancer", "NodePort") and _is_headless(spec):
        yield invalid("spec.clusterIPs[0]", "None", f"may not be set to 'None' for {kind} services")
    if kind != "ExternalName":
        return
    for name in ("clusterIPs", "ipFamilies", "ipFamilyPolicy"):
        if spec.get(name):
            yield forbidden(f"spec.{name}", "may not be set for ExternalName services")
    name = (spec.get("externalName") or "").removesuffix(".")
    if not name:
        yield required("spec.externalName")
    elif problem := names.subdomain(name):
        yield invalid("spec.externalName", name, problem)


def _is_headless(spec: Object) -> bool:
    return bool(spec.get("clusterIP") == "None")


def _check_ports(spec: Object) -> Iterator[Cause]:
    ports, seen = spec.get("ports") or [], set[str]()
    for index, port in enumerate(ports):
        path, name = f"spec.ports[{index}]", port.get("name")
        if not name and len(ports) > 1:
            yield required(f"{path}.name")
        elif name:
            if problem := names.label(name):
                yield invalid(f"{path}.name", name, problem)
            if name in seen:
                yield duplicate(f"{path}.name", name)
            seen.add(name)
        yield from check_port(port.get("targetPort") or 0, f"{path}.targetPort")
        protocol = port.get("appProtocol")
        if protocol is not None and (problem := names.qualified(protocol)):
            yield invalid(f"{path}.appProtocol", protocol, problem)
        if port.get("nodePort") and spec.get("type") == "ClusterIP":
            yield forbidden(f"{path}.nodePort", "may not be used when `type` is 'ClusterIP'")
    yield from _check_twice(ports)


_UNSAID: Final = {"Name": "", "Protocol": "", "AppProtocol": None, "Port": 0, "TargetPort": 0, "NodePort": 0}
"""A port of which nothing is said, in the letters that Kubernetes prints."""


def _check_twice(ports: list[Object]) -> Iterator[Cause]:
    seen = set[tuple[str, Any, Any]]()
    for index, port in enumerate(ports):
        protocol, path = port.get("protocol"), f"spec.ports[{index}]"
        for name, number in (("nodePort", port.get("nodePort")), ("port", port.get("port"))):
            if not number:
                continue
            if (name, protocol, number) in seen:
                yield (
                    duplicate(f"{path}.nodePort", number)
                    if name == "nodePort"
                    else duplicate(path, _UNSAID | {"Protocol": protocol, "Port": number})
                )
            seen.add((name, protocol, number))


def _check_external_addresses(spec: Object) -> Iterator[Cause]:
    timeout = at(spec, "sessionAffinityConfig", "clientIP", "timeoutSeconds")
    if timeout is not None and not 0 < timeout <= _LONGEST_REST:
        path = "spec.sessionAffinityConfig.clientIP.timeoutSeconds"
        yield invalid(path, timeout, f"must be greater than 0 and less than {_LONGEST_REST}")
    for index, address in enumerate(spec.get("externalIPs") or ()):
        if problem := problem_of(address):
            yield invalid(f"spec.externalIPs[{index}]", address, problem)


def _check_source_ranges(new: Object) -> Iterator[Cause]:
    spec, path = new["spec"], "spec.LoadBalancerSourceRanges"
    annotation = at(new, "metadata", "annotations", _SOURCE_RANGES)
    ranges = [(f"{path}[{index}]", text) for index, text in enumerate(spec.get("loadBalancerSourceRanges") or ())]
    if not ranges and annotation is not None:
        path = f"metadata.annotations[{_SOURCE_RANGES}]"
        ranges = [(path, text) for text in annotation.split(",")] if annotation.strip() else []
    elif not ranges:
        return
    if spec.get("type") != "LoadBalancer":
        yield forbidden(path, "may only be used when `type` is 'LoadBalancer'")
    for where, text in ranges:
        if problem := network_problem(text.strip()):
            yield invalid(where, text.strip(), problem)


def _check_outside(spec: Object) -> Iterator[Cause]:
    for name in ("allocateLoadBalancerNodePorts", "loadBalancerClass"):
        if spec.get(name) is not None and spec.get("type") != "LoadBalancer":
            yield forbidden(f"spec.{name}", "may only be used when `type` is 'LoadBalancer'")
    if spec.get("externalTrafficPolicy") and not is_reached_from_outside(spec):
        policy, why = spec["externalTrafficPolicy"], "may only be set for externally-accessible services"
        yield invalid("spec.externalTrafficPolicy", policy, why)
    port = spec.get("healthCheckNodePort")
    if port and not wants_health_check(spec):
        why = "may only be set when `type` is 'LoadBalancer' and `externalTrafficPolicy` is 'Local'"
        yield invalid("spec.healthCheckNodePort", port, why)
    elif port:
        yield from check_port(port, "spec.healthCheckNodePort")
