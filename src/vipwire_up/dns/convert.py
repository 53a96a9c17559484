"""From the wire to `dns.objects`: what of an object is valid. What is not is a Problem; nothing raises.

Another proxy's Services (label `service.kubernetes.io/service-proxy-name`) have names like any other.
"""

from collections.abc import Iterable, Iterator

from vipwire.kube.finding import Findings, is_label
from vipwire.kube.wire import Meta, WireEndpointPort, WireServicePort
from vipwire.model.names import ObjectName
from vipwire.model.problem import Problem
from vipwire_up.dns import wire
from vipwire_up.dns.messages.names import parse_name
from vipwire_up.dns.objects import DnsEndpoint, DnsPort, DnsService, DnsSlice, Form

_NO_META = Meta()
_FAMILIES = {"IPv4": 4, "IPv6": 16}


def convert_service(source: wire.WireService) -> tuple[DnsService | None, tuple[Problem, ...]]:
    """Convert a Service; None when it has nothing that a name could lead to."""
    meta, spec = source.metadata or _NO_META, source.spec or wire.ServiceSpec()
    found = _findings("Service", meta)
    if not found.named(namespaced=True) or not is_label(found.name.name):
        return None, found.problems()
    if spec.type == "ExternalName":
        return _external(spec, found), found.problems()
    ports = tuple(_ports(spec.ports or (), "spec.ports", found))
    texts = spec.cluster_ips or ((spec.cluster_ip,) if spec.cluster_ip else ())
    if "None" in texts:
        publish = spec.publish_not_ready_addresses is True
        return DnsService(found.name, Form.HEADLESS, ports=ports, publish_not_ready=publish), found.problems()
    addresses = found.addresses("spec.clusterIPs", texts)
    if not addresses:
        return None, found.problems()
    return DnsService(found.name, Form.CLUSTER_IP, addresses, ports), found.problems()


def _external(spec: wire.ServiceSpec, found: Findings) -> DnsService | None:
    try:
        if not (spec.external_name or "").strip("."):
            raise ValueError("is missing")  # noqa: TRY301  # told like any other reason
        target = parse_name(spec.external_name or "")
    except ValueError as error:
        found.note("spec.externalName", str(error))
        return None
    return DnsService(found.name, Form.EXTERNAL, target=target)


def convert_slice(source: wire.EndpointSlice) -> tuple[DnsSlice | None, tuple[Problem, ...]]:
    """Convert an EndpointSlice; None when it belongs to no Service or is of no IP family."""
    meta = source.metadata or wire.SliceMeta()
    service = (meta.labels and meta.labels.service) or ""
    found = _findings("EndpointSlice", meta)
    size = _FAMILIES.get(source.address_type or "")
    if size is None or not is_label(service) or not found.named(namespaced=True):
        return None, found.problems()
    name = ObjectName(found.name.namespace, service)
    ports = tuple(_ports(source.ports or (), "ports", found))
    return DnsSlice(found.name, name, ports, tuple(_endpoints(source.endpoints or (), size, found))), found.problems()


def _endpoints(sources: Iterable[wire.WireEndpoint], size: int, found: Findings) -> Iterator[DnsEndpoint]:
    for index, source in enumerate(sources):
        path = f"endpoints[{index}]"
        text = source.addresses[0] if source.addresses else None
        # Unknown is not "no": a slice that somebody wrote without conditions is to be used.
        ready = source.conditions is None or source.conditions.ready is not False
        endpoint = _endpoint(
            (f"{path}.addresses[0]", text), (f"{path}.hostname", source.hostname), found, ready=ready
        )
        if endpoint is not None and len(endpoint.address) == size:
            yield endpoint


def _endpoint(
    address: tuple[str, str | None], hostname: tuple[str, str | None], found: Findings, *, ready: bool
) -> DnsEndpoint | None:
    """Read an endpoint from two fields, each with its path; one with a bad hostname goes by its address."""
    value, name = found.address(*address, local_use=False), hostname[1] or ""
    if name and not is_label(name):
        found.note(hostname[0], f"{name[:80]!r} is not a DNS label of at most 63 characters")
        name = ""
    return None if value is None else DnsEndpoint(value, name, ready)


def convert_endpoints(source: wire.Endpoints) -> tuple[tuple[DnsSlice, ...], tuple[Problem, ...]]:
    """Convert v1 Endpoints: one slice for each subset, both families together.

    The slices' names hold colons, so that they cannot be the name of a slice that somebody wrote.
    """
    found = _findings("Endpoints", source.metadata or _NO_META)
    if not found.named(namespaced=True):
        return (), found.problems()
    slices = []
    for index, subset in enumerate(source.subsets or ()):
        path = f"subsets[{index}]"
        ports = tuple(_ports(subset.ports or (), f"{path}.ports", found))
        name = ObjectName(found.name.namespace, f"{found.name.name}:{index}")
        slices.append(DnsSlice(name, found.name, ports, tuple(_subset(subset, path, found))))
    return tuple(slices), found.problems()


def _subset(subset: wire.Subset, path: str, found: Findings) -> Iterator[DnsEndpoint]:
    for ready, field in ((True, "addresses"), (False, "notReadyAddresses")):
        for index, source in enumerate((subset.addresses if ready else subset.not_ready_addresses) or ()):
            where = f"{path}.{field}[{index}]"
            endpoint = _endpoint(
                (f"{where}.ip", source.ip), (f"{where}.hostname", source.hostname), found, ready=ready
            )
            if endpoint is not None:
                yield endpoint


def _ports(sources: Iterable[WireServicePort | WireEndpointPort], field: str, found: Findings) -> Iterator[DnsPort]:
    """Read the ports that have a name: without one there is nothing that DNS could say."""
    for index, source in enumerate(sources):
        path = f"{field}[{index}]"
        if not source.name:
            continue
        name, number = found.port_name(f"{path}.name", source.name), found.port(f"{path}.port", source.port)
        protocol = found.protocol(f"{path}.protocol", source.protocol)
        if name and number is not None and protocol is not None:
            yield DnsPort(name, protocol, number)


def _findings(kind: str, meta: Meta) -> Findings:
    return Findings(kind, ObjectName(meta.namespace or "", meta.name or ""))
