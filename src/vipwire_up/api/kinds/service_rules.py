"""Validates Services and Endpoints (pkg/apis/core/validation: ValidateService, ValidateServiceUpdate). Pure."""

from collections.abc import Iterator
from typing import Any, Final

from vipwire_up.api.objects import names
from vipwire_up.api.objects.addresses import (
    family_of,
    find_address_problem,
    find_endpoint_problem,
    find_host_problem,
    find_network_problem,
)
from vipwire_up.api.objects.errors import Cause, duplicate, forbidden, invalid, required, unsupported
from vipwire_up.api.objects.names import check_port
from vipwire_up.api.objects.object import value_at
from vipwire_up.api.objects.resource import Object

TOPOLOGY_HINTS: Final = "service.kubernetes.io/topology-aware-hints"
TOPOLOGY_MODE: Final = "service.kubernetes.io/topology-mode"
_SOURCE_RANGES: Final = "service.beta.kubernetes.io/load-balancer-source-ranges"
_LONGEST_REST: Final = 86400  # seconds


def is_reached_from_outside(spec: Object) -> bool:
    kind = spec.get("type")
    return kind in ("NodePort", "LoadBalancer") or (kind == "ClusterIP" and bool(spec.get("externalIPs")))


def wants_health_check(spec: Object) -> bool:
    return spec.get("type") == "LoadBalancer" and spec.get("externalTrafficPolicy") == "Local"


def wants_ports(spec: Object) -> bool:
    return spec.get("type") in ("NodePort", "LoadBalancer")


def check_service(new: Object, old: Object | None) -> Iterator[Cause]:
    spec = new["spec"]
    if old is not None:
        yield from _check_kept_addresses(spec, old.get("spec") or {})
    yield from _check_annotations(new)
    yield from _check_type(spec)
    yield from _check_ports(spec)
    yield from names.check_labels(spec.get("selector") or {}, "spec.selector")
    yield from check_cluster_ips(spec)
    yield from _check_external_addresses(spec)
    yield from _check_source_ranges(new)
    yield from _check_load_balancer(new, old)
    yield from _check_external_fields(spec)


def _check_annotations(new: Object) -> Iterator[Cause]:
    found = value_at(new, "metadata", "annotations") or {}
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
    elif problem := names.check_subdomain(name):
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
            if problem := names.check_label(name):
                yield invalid(f"{path}.name", name, problem)
            if name in seen:
                yield duplicate(f"{path}.name", name)
            seen.add(name)
        yield from check_port(port.get("targetPort") or 0, f"{path}.targetPort")
        protocol = port.get("appProtocol")
        if protocol is not None and (problem := names.check_qualified_name(protocol)):
            yield invalid(f"{path}.appProtocol", protocol, problem)
        if port.get("nodePort") and spec.get("type") == "ClusterIP":
            yield forbidden(f"{path}.nodePort", "may not be used when `type` is 'ClusterIP'")
    yield from _check_repeated_ports(ports)


_UNSAID: Final = {"Name": "", "Protocol": "", "AppProtocol": None, "Port": 0, "TargetPort": 0, "NodePort": 0}
"""A port with all fields at their zero values, in the order in which Kubernetes prints it."""


def _check_repeated_ports(ports: list[Object]) -> Iterator[Cause]:
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
    timeout = value_at(spec, "sessionAffinityConfig", "clientIP", "timeoutSeconds")
    if timeout is not None and not 0 < timeout <= _LONGEST_REST:
        path = "spec.sessionAffinityConfig.clientIP.timeoutSeconds"
        yield invalid(path, timeout, f"must be greater than 0 and less than {_LONGEST_REST}")
    for index, address in enumerate(spec.get("externalIPs") or ()):
        if problem := find_endpoint_problem(address):
            yield invalid(f"spec.externalIPs[{index}]", address, problem)


def _check_source_ranges(new: Object) -> Iterator[Cause]:
    spec, path = new["spec"], "spec.LoadBalancerSourceRanges"
    annotation = value_at(new, "metadata", "annotations", _SOURCE_RANGES)
    ranges = [(f"{path}[{index}]", text) for index, text in enumerate(spec.get("loadBalancerSourceRanges") or ())]
    if not ranges and annotation is not None:
        path = f"metadata.annotations[{_SOURCE_RANGES}]"
        ranges = [(path, text) for text in annotation.split(",")] if annotation.strip() else []
    elif not ranges:
        return
    if spec.get("type") != "LoadBalancer":
        yield forbidden(path, "may only be used when `type` is 'LoadBalancer'")
    for where, text in ranges:
        if problem := find_network_problem(text.strip()):
            yield invalid(where, text.strip(), problem)


def _check_external_fields(spec: Object) -> Iterator[Cause]:
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


NONE: Final = "None"
_FAMILIES: Final = ("IPv4", "IPv6")
_STAYS: Final = "may not change once set"


def check_cluster_ips(spec: Object) -> Iterator[Cause]:
    """Validate clusterIP, clusterIPs and ipFamilies of a Service that has them."""
    if spec.get("type") == "ExternalName":
        return
    first, addresses = spec.get("clusterIP"), spec.get("clusterIPs") or []
    if first and not addresses:
        yield required("spec.clusterIPs")
    elif first and addresses[0] != first:
        yield invalid("spec.clusterIPs", addresses, "first value must match `clusterIP`")
    elif addresses and not first:
        yield invalid("spec.clusterIPs", addresses, "must be empty when `clusterIP` is not specified")
    families = spec.get("ipFamilies") or []
    seen = set[str]()
    for index, family in enumerate(families):
        if family not in _FAMILIES:
            yield unsupported(f"spec.ipFamilies[{index}]", family, _FAMILIES)
        if family in seen:
            yield duplicate(f"spec.ipFamilies[{index}]", family)
        seen.add(family)
    yield from _check_cluster_ip_list(addresses, families)


def _check_cluster_ip_list(addresses: list[str], families: list[str]) -> Iterator[Cause]:
    wrong = list(_find_wrong_addresses(addresses))
    yield from wrong
    if len(addresses) > len(_FAMILIES):
        yield invalid("spec.clusterIPs", addresses, "may only hold up to 2 values")
    if wrong or addresses[:1] == [NONE]:
        return
    if len({family_of(address) for address in addresses}) < len(addresses):
        why = "may specify no more than one IP for each IP family"
        yield invalid("spec.clusterIPs", addresses, why)
        return
    for index, (address, family) in enumerate(zip(addresses, families, strict=False)):
        if family in _FAMILIES and family_of(address) != family:
            why = f"expected an {family} value as indicated by `ipFamilies[{index}]`"
            yield invalid(f"spec.clusterIPs[{index}]", address, why)


def _find_wrong_addresses(addresses: list[str]) -> Iterator[Cause]:
    for index, address in enumerate(addresses):
        if index == 0 and address == NONE:
            if len(addresses) > 1:
                yield invalid("spec.clusterIPs", addresses, "'None' must be the first and only value")
        elif problem := find_address_problem(address):
            yield invalid(f"spec.clusterIPs[{index}]", address, problem)


def changes_addresses(spec: Object, old: Object) -> bool:
    before, now = old.get("clusterIPs") or [], spec.get("clusterIPs") or []
    differs = bool(before and now) and before[0] != now[0]
    return differs and "ExternalName" not in (spec.get("type"), old.get("type"))


def _check_kept_addresses(spec: Object, old: Object) -> Iterator[Cause]:
    """Refuse to remove or replace the addresses and families of a Service, except the second ones."""
    if "ExternalName" in (spec.get("type"), old.get("type")):
        return
    if spec.get("clusterIP") == NONE == old.get("clusterIP"):
        return
    policy = spec.get("ipFamilyPolicy")
    yield from _check_unchanged(spec, old, "clusterIPs", "clusterIP", policy)
    yield from _check_unchanged(spec, old, "ipFamilies", "ipFamily", policy)


def _check_unchanged(spec: Object, old: Object, name: str, word: str, policy: Any) -> Iterator[Cause]:
    before, now = old.get(name) or [], spec.get(name) or []
    path = f"spec.{name}"
    if len(before) == len(now):
        for index, (was, value) in enumerate(zip(before, now, strict=True)):
            if was != value:
                yield invalid(f"{path}[{index if name == 'clusterIPs' else 0}]", now, _STAYS)
        return
    if before and not now:
        yield invalid(f"{path}[0]", now, f"primary {word} can not be unset")
    elif before and before[0] != now[0]:
        yield invalid(f"{path}[0]", now, _STAYS)
    if len(before) > len(now) == 1 and policy != "SingleStack":
        why = f"must be set to 'SingleStack' when releasing the secondary {word}"
        yield invalid("spec.ipFamilyPolicy", policy, why)


BALANCED: Final = "LoadBalancer"


def fill_status(new: Object, old: Object | None) -> None:
    """Clear the status of a Service that is no longer of type LoadBalancer; else fill in ipMode."""
    if _is_load_balancer(old) and not _is_load_balancer(new):
        new["status"] = (new.get("status") or {}) | {"loadBalancer": {}}
    for entry in value_at(new, "status", "loadBalancer", "ingress") or ():
        if entry.get("ip") and _is_load_balancer(new):
            entry.setdefault("ipMode", "VIP")


def _check_load_balancer(new: Object, old: Object | None) -> Iterator[Cause]:
    spec, entries = new["spec"], value_at(new, "status", "loadBalancer", "ingress") or []
    wanted = spec.get("loadBalancerClass")
    if _is_load_balancer(new) and wanted is not None and (problem := names.check_qualified_name(wanted)):
        yield invalid("spec.loadBalancerClass", wanted, problem)
    if old is not None and _is_load_balancer(new) and _is_load_balancer(old):
        before = old["spec"].get("loadBalancerClass")
        if spec.get("loadBalancerClass") != before:
            yield invalid("spec.loadBalancerClass", spec.get("loadBalancerClass"), "may not change once set")
        if _has_local_policy(spec) and _has_local_policy(old["spec"]):
            yield from _check_health_port(spec, old["spec"])
    if not entries or entries == (value_at(old, "status", "loadBalancer", "ingress") or []):
        return
    if not _is_load_balancer(new):
        yield forbidden("status.loadBalancer.ingress", 'may only be used when `spec.type` is "LoadBalancer"')
    yield from check_ingress_addresses(entries, "status.loadBalancer.ingress")


def _check_health_port(spec: Object, before: Object) -> Iterator[Cause]:
    port, was = spec.get("healthCheckNodePort"), before.get("healthCheckNodePort")
    if was and port != was:
        yield forbidden("spec.healthCheckNodePort", "field is immutable")


def check_ingress_addresses(entries: list[Object], path: str) -> Iterator[Cause]:
    for index, entry in enumerate(entries):
        yield from _check_ingress_address(entry, f"{path}[{index}]")


def _check_ingress_address(entry: Object, path: str) -> Iterator[Cause]:
    if entry.get("ip") and (problem := find_host_problem(entry["ip"])):
        yield invalid(f"{path}.ip", entry["ip"], problem)
    if entry.get("ipMode") and not entry.get("ip"):
        yield forbidden(f"{path}.ipMode", "may not be specified when `ip` is not set")
    if host := entry.get("hostname"):
        if family_of(host):
            yield invalid(f"{path}.hostname", host, "must be a DNS name, not an IP address")
        elif problem := names.check_subdomain(host):
            yield invalid(f"{path}.hostname", host, problem)


def _is_load_balancer(value: Object | None) -> bool:
    return bool(value_at(value, "spec", "type") == BALANCED)


def _has_local_policy(spec: Object) -> bool:
    return spec.get("externalTrafficPolicy") == "Local"
