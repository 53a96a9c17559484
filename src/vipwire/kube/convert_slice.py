"""Converts EndpointSlices and v1 Endpoints from the wire to `model.EndpointSlice`, dropping invalid parts. Pure.

A start may read 100,000 endpoints, so usual endpoints take a fast path, and equal values (zones, ports, node names)
are shared.
"""

import functools
from collections.abc import Iterator
from sys import intern

from vipwire.kube import wire
from vipwire.kube.finding import Findings, is_label, parse_ordinary_address
from vipwire.model.names import ObjectName
from vipwire.model.net import Address, Family, family_of
from vipwire.model.problem import Problem
from vipwire.model.service import Endpoint, EndpointPort, EndpointSlice

_NO_NAME = ObjectName("", "")
_FAMILIES = {family.value: family for family in Family}
_NO_META = wire.SliceMeta()
_NO_LABELS = wire.SliceLabels()
_NO_CONDITIONS = wire.Conditions()
_NO_ANNOTATIONS = wire.SliceAnnotations()
_TRIGGER_FIELD = "metadata.annotations[endpoints.kubernetes.io/last-change-trigger-time]"


def convert_slice(source: wire.WireEndpointSlice) -> tuple[EndpointSlice | None, tuple[Problem, ...]]:
    """Convert one EndpointSlice; None without a Service, for another proxy's, headless, or a non-IP address type."""
    meta = source.metadata or _NO_META
    labels = meta.labels or _NO_LABELS
    if not labels.service or labels.headless is not None or labels.proxy_name is not None:
        return None, ()
    if source.address_type == "FQDN":
        return None, ()
    namespace = intern(meta.namespace or "")
    found = Findings("EndpointSlice", ObjectName(namespace, meta.name or ""))
    family = _FAMILIES.get(source.address_type or "")
    if family is None:
        found.add_problem("addressType", f"{source.address_type!r} is unknown (allowed: IPv4, IPv6, FQDN)")
    if not is_label(labels.service):
        found.add_problem(
            "metadata.labels[kubernetes.io/service-name]", f"{labels.service[:80]!r} is not the name of a Service"
        )
        family = None
    if not found.named(namespaced=True) or family is None:
        return None, found.problems()
    annotations = meta.annotations or _NO_ANNOTATIONS
    converted = EndpointSlice(
        name=found.name,
        service=ObjectName(namespace, intern(labels.service)),
        family=family,
        ports=_convert_ports(source.ports or (), "ports", found),
        endpoints=_convert_endpoints(source.endpoints or (), family, found),
        triggered=found.timestamp(_TRIGGER_FIELD, annotations.triggered),
    )
    return converted, found.problems()


def convert_endpoints(source: wire.WireEndpoints) -> tuple[tuple[EndpointSlice, ...], tuple[Problem, ...]]:
    """Convert v1 Endpoints as the mirroring controller does: one slice for each subset and family.

    Returns none with the label `endpointslice.kubernetes.io/skip-mirror`. The slices' names contain colons, so they
    cannot be names of real slices.
    """
    meta, labels = source.metadata or wire.EndpointsMeta(), (source.metadata and source.metadata.labels)
    if labels and (labels.skip_mirror == "true" or labels.headless is not None or labels.proxy_name is not None):
        return (), ()
    service = ObjectName(intern(meta.namespace or ""), intern(meta.name or ""))
    found = Findings("Endpoints", service)
    if not found.named(namespaced=True):
        return (), found.problems()
    triggered = found.timestamp(_TRIGGER_FIELD, (meta.annotations or _NO_ANNOTATIONS).triggered)
    slices = []
    for index, subset in enumerate(source.subsets or ()):
        path = f"subsets[{index}]"
        ports = _convert_ports(subset.ports or (), f"{path}.ports", found)
        endpoints = tuple(_convert_subset(subset, path, found))
        for family in Family:
            ours = tuple(endpoint for endpoint in endpoints if family_of(endpoint.address) is family)
            if ours:
                name = ObjectName(service.namespace, f"{service.name}:{index}:{family.value}")
                slices.append(EndpointSlice(name, service, family, ports, ours, triggered))
    return tuple(slices), found.problems()


def _convert_subset(subset: wire.Subset, path: str, found: Findings) -> Iterator[Endpoint]:
    for ready, field in ((True, "addresses"), (False, "notReadyAddresses")):
        sources = (subset.addresses if ready else subset.not_ready_addresses) or ()
        for index, source in enumerate(sources):
            address = found.address(f"{path}.{field}[{index}].ip", source.ip, local_use=False)
            if address is not None:
                node = intern(source.node_name) if source.node_name else ""
                yield Endpoint(address, ready, serving=ready, node=node)


def _convert_ports(ports: tuple[wire.WireEndpointPort, ...], field: str, found: Findings) -> tuple[EndpointPort, ...]:
    """Read the ports. A single port, the usual case, is cached."""
    if len(ports) == 1:
        try:
            return _convert_single_port(ports[0])
        except ValueError:
            pass  # the slow path notes the problem
    return _share_ports(tuple(_convert_each_port(ports, field, found)))


@functools.lru_cache(maxsize=1024)
def _convert_single_port(source: wire.WireEndpointPort) -> tuple[EndpointPort, ...]:
    """Read a slice's single port; raise ValueError (which is not cached) if it has a problem."""
    found = Findings("EndpointSlice", _NO_NAME)
    ports = tuple(_convert_each_port((source,), "ports", found))
    if found.problems():
        raise ValueError
    return _share_ports(ports)


def _convert_each_port(
    ports: tuple[wire.WireEndpointPort, ...], field: str, found: Findings
) -> Iterator[EndpointPort]:
    names: set[str] = set()
    for index, source in enumerate(ports):
        path = f"{field}[{index}]"
        name = found.port_name(f"{path}.name", source.name)
        protocol = found.protocol(f"{path}.protocol", source.protocol)
        number = found.port(f"{path}.port", source.port)
        if name is None or protocol is None or number is None:
            continue
        if name in names:
            found.add_problem(f"{path}.name", f"{name!r} is duplicate: vipwire uses the first")
            continue
        names.add(name)
        yield EndpointPort(intern(name), protocol, number)


def _convert_endpoints(
    sources: tuple[wire.WireEndpoint, ...], family: Family, found: Findings
) -> tuple[Endpoint, ...]:
    size = family.bits // 8
    endpoints: list[Endpoint] = []
    for index, source in enumerate(sources):
        address = parse_ordinary_address(source.addresses[0]) if size == 4 and source.addresses else None
        if address is None and (address := _choose_address(source, index, size, found)) is None:
            continue
        conditions, hints = source.conditions or _NO_CONDITIONS, source.hints
        node = intern(source.node_name) if source.node_name else ""
        # Unknown is not false: an EndpointSlice without conditions is used.
        ready, serving = conditions.ready is not False, conditions.serving is not False
        if hints is None:
            endpoints.append(Endpoint(address, ready, serving, conditions.terminating is True, node))
        else:
            zones = _list_zone_names(hints.for_zones) if hints.for_zones else ()
            nodes = _list_zone_names(hints.for_nodes) if hints.for_nodes else ()
            endpoints.append(Endpoint(address, ready, serving, conditions.terminating is True, node, zones, nodes))
    return tuple(endpoints)


def _choose_address(source: wire.WireEndpoint, index: int, size: int, found: Findings) -> Address | None:
    """Read the first address: the others have no defined meaning, and no proxy uses them."""
    if not source.addresses:
        found.add_problem(f"endpoints[{index}].addresses", "is missing")
        return None
    text = source.addresses[0]
    address = found.address(f"endpoints[{index}].addresses[0]", text, local_use=False)
    if address is not None and len(address) != size:
        found.add_problem(f"endpoints[{index}].addresses[0]", f"{text!r} is not of the slice's addressType")
        return None
    return address


def _list_zone_names(hinted: tuple[wire.HintedName, ...]) -> tuple[str, ...]:
    if len(hinted) == 1:
        return _one_name(hinted[0].name)
    return _share_names(tuple([hint.name for hint in hinted if hint.name]))


@functools.lru_cache(maxsize=4096)
def _one_name(name: str | None) -> tuple[str, ...]:
    return _share_names((name,)) if name else ()


@functools.lru_cache(maxsize=4096)
def _share_names(names: tuple[str, ...]) -> tuple[str, ...]:
    """Return an equal earlier tuple: a cluster has few zones, and every endpoint names one."""
    return names


@functools.lru_cache(maxsize=4096)
def _share_ports(ports: tuple[EndpointPort, ...]) -> tuple[EndpointPort, ...]:
    """Return an equal earlier tuple: most slices have the same ports."""
    return ports
