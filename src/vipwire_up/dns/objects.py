"""Services and their endpoints for DNS: as wire structs, as values, and as kinds of any source. Pure.

The service proxy's values leave out headless Services, ExternalName and hostnames, and have much that DNS does not
use; so DNS has its own, and the proxy pays nothing for it. Invalid fields become a Problem; nothing raises. Services
of another proxy (label `service.kubernetes.io/service-proxy-name`) have names, too.
"""

import enum
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final, TypeAlias

import msgspec
from msgspec import Struct, field

from vipwire.kube.finding import Findings, is_label
from vipwire.kube.manifests.documents import ManifestKind, ManifestReader, kind_in_manifests
from vipwire.kube.resource import Resource
from vipwire.kube.wire import Conditions, Meta, SliceMeta, WireEndpointPort, WireServicePort
from vipwire.model.names import ObjectName
from vipwire.model.net import Address, Protocol
from vipwire.model.problem import Problem
from vipwire.watched_objects.event import EventOf
from vipwire_up.dns.messages.names import parse_name


class DnsKind(enum.Enum):
    """The kinds that DNS reads; the value is the kind in a manifest."""

    SERVICE = "Service"
    SLICE = "EndpointSlice"


class Form(enum.Enum):
    """The kind of a Service, by the records of its names."""

    CLUSTER_IP = "its own addresses"
    HEADLESS = "its endpoints' addresses"
    EXTERNAL = "another name"


@dataclass(frozen=True, slots=True)
class DnsPort:
    """A port of a Service or of its endpoints; one without a name has no SRV record."""

    name: str
    protocol: Protocol
    number: int


@dataclass(frozen=True, slots=True)
class DnsService:
    """A Service. `addresses` only for ClusterIP, `target` (a wire name) only for ExternalName."""

    name: ObjectName
    form: Form
    addresses: tuple[Address, ...] = ()
    ports: tuple[DnsPort, ...] = ()
    target: bytes = b""
    publish_not_ready: bool = False


@dataclass(frozen=True, slots=True)
class DnsEndpoint:
    """One address of a Service; `hostname` is the Pod's, or empty."""

    address: Address
    hostname: str = ""
    ready: bool = True


@dataclass(frozen=True, slots=True)
class DnsSlice:
    """Some of a Service's endpoints, with the ports that they share."""

    name: ObjectName
    service: ObjectName
    ports: tuple[DnsPort, ...] = ()
    endpoints: tuple[DnsEndpoint, ...] = ()


DnsObject: TypeAlias = DnsService | DnsSlice
DnsEvent: TypeAlias = EventOf[DnsKind, DnsObject]


class ServiceSpec(Struct, gc=False, rename="camel"):
    """A Service's `spec`."""

    type: str | None = None
    cluster_ip: str | None = field(default=None, name="clusterIP")
    cluster_ips: tuple[str, ...] | None = field(default=None, name="clusterIPs")
    ports: tuple[WireServicePort, ...] | None = None
    external_name: str | None = None
    publish_not_ready_addresses: bool | None = None


class WireService(Struct, gc=False):
    """core/v1 Service."""

    metadata: Meta | None = None
    spec: ServiceSpec | None = None


class WireEndpoint(Struct, gc=False):
    """One of an EndpointSlice's `endpoints`."""

    addresses: tuple[str, ...] | None = None
    hostname: str | None = None
    conditions: Conditions | None = None


class EndpointSlice(Struct, gc=False, rename="camel"):
    """discovery.k8s.io/v1 EndpointSlice."""

    metadata: SliceMeta | None = None
    address_type: str | None = None
    endpoints: tuple[WireEndpoint, ...] | None = None
    ports: tuple[WireEndpointPort, ...] | None = None


class EndpointAddress(Struct, gc=False):
    """One of a subset's `addresses` or `notReadyAddresses`."""

    ip: str | None = None
    hostname: str | None = None


class Subset(Struct, gc=False, rename="camel"):
    """One of the `subsets` of v1 Endpoints."""

    addresses: tuple[EndpointAddress, ...] | None = None
    not_ready_addresses: tuple[EndpointAddress, ...] | None = None
    ports: tuple[WireEndpointPort, ...] | None = None


class Endpoints(Struct, gc=False):
    """core/v1 Endpoints, read from manifests only: an API server mirrors them into EndpointSlices itself."""

    metadata: Meta | None = None
    subsets: tuple[Subset, ...] | None = None


_NO_META = Meta()
_FAMILIES = {"IPv4": 4, "IPv6": 16}


def convert_service(source: WireService) -> tuple[DnsService | None, tuple[Problem, ...]]:
    meta, spec = source.metadata or _NO_META, source.spec or ServiceSpec()
    found = _new_findings("Service", meta)
    if not found.named(namespaced=True) or not is_label(found.name.name):
        return None, found.problems()
    if spec.type == "ExternalName":
        return _convert_external_name(spec, found), found.problems()
    ports = tuple(_convert_ports(spec.ports or (), "spec.ports", found))
    texts = spec.cluster_ips or ((spec.cluster_ip,) if spec.cluster_ip else ())
    if "None" in texts:
        publish = spec.publish_not_ready_addresses is True
        return DnsService(found.name, Form.HEADLESS, ports=ports, publish_not_ready=publish), found.problems()
    addresses = found.addresses("spec.clusterIPs", texts)
    if not addresses:
        return None, found.problems()
    return DnsService(found.name, Form.CLUSTER_IP, addresses, ports), found.problems()


def _convert_external_name(spec: ServiceSpec, found: Findings) -> DnsService | None:
    try:
        if not (spec.external_name or "").strip("."):
            raise ValueError("is missing")  # noqa: TRY301  # told like any other reason
        target = parse_name(spec.external_name or "")
    except ValueError as error:
        found.add_problem("spec.externalName", str(error))
        return None
    return DnsService(found.name, Form.EXTERNAL, target=target)


def convert_slice(source: EndpointSlice) -> tuple[DnsSlice | None, tuple[Problem, ...]]:
    """Convert an EndpointSlice; None without a Service or an IP family."""
    meta = source.metadata or SliceMeta()
    service = (meta.labels and meta.labels.service) or ""
    found = _new_findings("EndpointSlice", meta)
    size = _FAMILIES.get(source.address_type or "")
    if size is None or not is_label(service) or not found.named(namespaced=True):
        return None, found.problems()
    name = ObjectName(found.name.namespace, service)
    ports = tuple(_convert_ports(source.ports or (), "ports", found))
    return DnsSlice(
        found.name, name, ports, tuple(_convert_endpoints_of_slice(source.endpoints or (), size, found))
    ), found.problems()


def _convert_endpoints_of_slice(sources: Iterable[WireEndpoint], size: int, found: Findings) -> Iterator[DnsEndpoint]:
    for index, source in enumerate(sources):
        path = f"endpoints[{index}]"
        text = source.addresses[0] if source.addresses else None
        # Unset counts as ready: hand-written slices without conditions are used.
        ready = source.conditions is None or source.conditions.ready is not False
        endpoint = _convert_endpoint(
            (f"{path}.addresses[0]", text), (f"{path}.hostname", source.hostname), found, ready=ready
        )
        if endpoint is not None and len(endpoint.address) == size:
            yield endpoint


def _convert_endpoint(
    address: tuple[str, str | None], hostname: tuple[str, str | None], found: Findings, *, ready: bool
) -> DnsEndpoint | None:
    """Read an endpoint from two fields, each with its path; an invalid hostname is ignored."""
    value, name = found.address(*address, local_use=False), hostname[1] or ""
    if name and not is_label(name):
        found.add_problem(hostname[0], f"{name[:80]!r} is not a DNS label of at most 63 characters")
        name = ""
    return None if value is None else DnsEndpoint(value, name, ready)


def convert_endpoints(source: Endpoints) -> tuple[tuple[DnsSlice, ...], tuple[Problem, ...]]:
    """Convert v1 Endpoints: one slice for each subset, both families together.

    The slices' names have colons, so that no EndpointSlice can have the same name.
    """
    found = _new_findings("Endpoints", source.metadata or _NO_META)
    if not found.named(namespaced=True):
        return (), found.problems()
    slices = []
    for index, subset in enumerate(source.subsets or ()):
        path = f"subsets[{index}]"
        ports = tuple(_convert_ports(subset.ports or (), f"{path}.ports", found))
        name = ObjectName(found.name.namespace, f"{found.name.name}:{index}")
        slices.append(DnsSlice(name, found.name, ports, tuple(_convert_subset(subset, path, found))))
    return tuple(slices), found.problems()


def _convert_subset(subset: Subset, path: str, found: Findings) -> Iterator[DnsEndpoint]:
    for ready, listed in ((True, "addresses"), (False, "notReadyAddresses")):
        for index, source in enumerate((subset.addresses if ready else subset.not_ready_addresses) or ()):
            where = f"{path}.{listed}[{index}]"
            endpoint = _convert_endpoint(
                (f"{where}.ip", source.ip), (f"{where}.hostname", source.hostname), found, ready=ready
            )
            if endpoint is not None:
                yield endpoint


def _convert_ports(
    sources: Iterable[WireServicePort | WireEndpointPort], field: str, found: Findings
) -> Iterator[DnsPort]:
    """Yield the ports with a name: DNS has no records for others."""
    for index, source in enumerate(sources):
        path = f"{field}[{index}]"
        if not source.name:
            continue
        name, number = found.port_name(f"{path}.name", source.name), found.port(f"{path}.port", source.port)
        protocol = found.protocol(f"{path}.protocol", source.protocol)
        if name and number is not None and protocol is not None:
            yield DnsPort(name, protocol, number)


def _new_findings(kind: str, meta: Meta) -> Findings:
    return Findings(kind, ObjectName(meta.namespace or "", meta.name or ""))


DnsResource: TypeAlias = Resource[DnsKind, DnsObject]

SERVICES: Final[DnsResource] = Resource(DnsKind.SERVICE, "/api/v1", "services", WireService, convert_service)
# All slices: hand-written ones lack the label of headless Services.
SLICES: Final[DnsResource] = Resource(
    DnsKind.SLICE, "/apis/discovery.k8s.io/v1", "endpointslices", EndpointSlice, convert_slice
)
RESOURCES: Final = (SERVICES, SLICES)


def _read_endpoints(document: object) -> tuple[tuple[DnsObject, ...], tuple[Problem, ...]]:
    return convert_endpoints(msgspec.convert(document, Endpoints))


_ENDPOINTS: Final[ManifestKind[DnsKind, DnsObject]] = ManifestKind(
    DnsKind.SLICE, "Endpoints", ("v1",), _read_endpoints
)
MANIFESTS: Final = ManifestReader(kind_in_manifests(SERVICES), kind_in_manifests(SLICES), _ENDPOINTS)
"""Reads manifests for DNS."""
