"""The objects that an Ingress controller reads, with their valid parts only.

Field names are Kubernetes' (networking.k8s.io/v1). Open-ended texts of the API are enums here, or empty.
"""

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final, Generic, TypeAlias, TypeVar

import msgspec

from vipwire.model.names import ObjectName
from vipwire.model.net import Address, Family
from vipwire.watched_objects.event import EventOf

NOTHING: Final = MappingProxyType[str, str]({})
"""The annotations and labels of all objects without any, as one object."""
Json: TypeAlias = dict[str, Any]
"""A JSON object of an API server."""


class KeyEnum(enum.Enum):
    """An enum whose members are keys of large tables: the hash of `Enum` is a call of a Python function."""

    __hash__ = object.__hash__


class IngressKind(KeyEnum):
    """The kinds from which vipwire plans HAProxy's configuration; the value is the kind in a manifest.

    `vipwire_l7.gateway` reads the kinds of the Gateway API.
    """

    INGRESS_CLASS = "IngressClass"
    INGRESS = "Ingress"
    SERVICE = "Service"
    SLICE = "EndpointSlice"
    SECRET = "Secret"  # noqa: S105  # the name of a kind
    GATEWAY_CLASS = "GatewayClass"
    GATEWAY = "Gateway"
    LISTENER_SET = "ListenerSet"
    HTTP_ROUTE = "HTTPRoute"
    GRPC_ROUTE = "GRPCRoute"
    TLS_ROUTE = "TLSRoute"
    TCP_ROUTE = "TCPRoute"
    UDP_ROUTE = "UDPRoute"
    REFERENCE_GRANT = "ReferenceGrant"
    BACKEND_TLS_POLICY = "BackendTLSPolicy"
    TRAFFIC_POLICY = "TrafficPolicy"
    BACKEND_POLICY = "BackendPolicy"
    NAMESPACE = "Namespace"
    CONFIG_MAP = "ConfigMap"
    CLUSTER_TRUST_BUNDLE = "ClusterTrustBundle"


INGRESS_KINDS = (
    IngressKind.INGRESS_CLASS,
    IngressKind.INGRESS,
    IngressKind.SERVICE,
    IngressKind.SLICE,
    IngressKind.SECRET,
)
"""The kinds that an Ingress controller reads."""


class PathType(enum.Enum):
    """`pathType`; the value is that of the API."""

    EXACT = "Exact"
    PREFIX = "Prefix"
    IMPLEMENTATION_SPECIFIC = "ImplementationSpecific"


@dataclass(frozen=True, slots=True)
class ServiceRef:
    """A Service's port as a backend. `port` is a name, or a number as the API writes it."""

    service: ObjectName
    port: str | int


@dataclass(frozen=True, slots=True)
class PathRule:
    """One path of one host. `host` is empty for every host, `*.example.com` for a wildcard."""

    host: str
    path: str
    type: PathType
    backend: ServiceRef
    field: str = ""


@dataclass(frozen=True, slots=True)
class Tls:
    """One of `spec.tls`. Without `secret`, the default certificate is served."""

    hosts: tuple[str, ...]
    secret: ObjectName | None
    field: str = ""


@dataclass(frozen=True, slots=True)
class Ingress:
    """An Ingress. `class_name` is from the spec, else from the old annotation, else empty. `created` is RFC 3339."""

    name: ObjectName
    class_name: str = ""
    rules: tuple[PathRule, ...] = ()
    default_backend: ServiceRef | None = None
    tls: tuple[Tls, ...] = ()
    annotations: Mapping[str, str] = field(default_factory=lambda: NOTHING)
    created: str = ""
    uid: str = ""
    addresses: tuple[str, ...] = field(default=(), compare=False)
    """The addresses and host names in `status.loadBalancer`."""
    version: str = field(default="", compare=False)

    @property
    def age(self) -> tuple[str, ObjectName]:
        """The sort key of age, the oldest first; without a date (a manifest) by name."""
        return self.created, self.name


@dataclass(frozen=True, slots=True)
class IngressClass:
    """An IngressClass. `name.namespace` is empty."""

    name: ObjectName
    controller: str = ""
    default: bool = False


@dataclass(frozen=True, slots=True)
class BackendPort:
    """One of a Service's ports."""

    name: str
    number: int
    application: str = ""
    target: int | None = None
    udp: bool = False


@dataclass(frozen=True, slots=True)
class BackendService:
    """A Service. `external` is the `externalName`, else empty. `ports` are TCP ports."""

    name: ObjectName
    ports: tuple[BackendPort, ...] = ()
    external: str = ""
    family: Family | None = None
    annotations: Mapping[str, str] = field(default_factory=lambda: NOTHING)
    published: tuple[str, ...] = ()
    """The addresses outside the cluster: those in `status.loadBalancer`, and external IPs."""
    udp_ports: tuple[BackendPort, ...] = ()
    balanced: tuple[str, ...] = ()
    """The addresses in `status.loadBalancer`, which only controllers write."""
    cluster_ips: tuple[Address, ...] = ()


class Usability(enum.Enum):
    """The state of an endpoint, which decides whether it gets requests."""

    READY = "ready"
    DRAINING = "draining"
    """Terminating and still serving: existing sessions may go on."""
    NOT_READY = "not ready"


@dataclass(frozen=True, slots=True)
class BackendEndpoint:
    """One endpoint of a slice."""

    address: Address
    use: Usability
    pod: str = ""
    zones: tuple[str, ...] = ()
    """`hints.forZones`."""
    node: str = ""


@dataclass(frozen=True, slots=True)
class BackendSlice:
    """An EndpointSlice. `ports` are the TCP ports by name."""

    name: ObjectName
    service: ObjectName
    family: Family
    ports: Mapping[str, int]
    endpoints: tuple[BackendEndpoint, ...]
    udp_ports: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))


@dataclass(frozen=True, slots=True)
class Secret:
    """A Secret. Its `repr` hides the bytes."""

    name: ObjectName
    type: str = ""
    data: Mapping[str, bytes] = field(default_factory=lambda: MappingProxyType({}), repr=False)


_NAMED_BY: Final = {
    "conditions": "type",
    "parents": "controllerName",
    "ancestors": "controllerName",
    "listeners": "name",
    "addresses": "value",
}
"""The lists of a status that vipwire reads, with the field of their entries that must be a text."""


def drop_invalid_parts(found: object) -> Json | None:
    """Remove parts of a status with the wrong type: any writer of a status could otherwise stop vipwire."""
    if not isinstance(found, dict):
        return None
    return {
        key: _keep_valid_entries(value, _NAMED_BY[key]) if key in _NAMED_BY else value for key, value in found.items()
    }


def _keep_valid_entries(found: object, name: str) -> list[Json]:
    entries = (drop_invalid_parts(each) for each in (found if isinstance(found, list) else ()))
    return [each for each in entries if each is not None and isinstance(each.get(name), str)]


SpecT_co = TypeVar("SpecT_co", covariant=True)


@dataclass(frozen=True, slots=True)
class GatewayObject(Generic[SpecT_co]):
    """An object of the Gateway API. `spec` is a struct of `gateway.watch.wire`.

    Two objects are equal for planning if they differ only in version and status.
    """

    kind: IngressKind
    name: ObjectName
    spec: SpecT_co
    created: str = ""
    """RFC 3339."""
    generation: int = 0
    labels: Mapping[str, str] = field(default_factory=lambda: NOTHING)
    """The labels of a Namespace."""
    uid: str = ""
    api_version: str = ""
    version: str = field(default="", compare=False)
    written_status: bytes = field(default=b"null", compare=False)
    """As JSON, which takes a tenth of the memory."""

    @property
    def age(self) -> tuple[str, ObjectName]:
        """The sort key of age, the oldest first; without a date (a manifest) by name."""
        return self.created, self.name

    @property
    def status(self) -> Json | None:
        """The status that the API server has, without invalid parts."""
        return drop_invalid_parts(msgspec.json.decode(self.written_status))


IngressObject: TypeAlias = Ingress | IngressClass | BackendService | BackendSlice | Secret | GatewayObject[object]
IngressEvent: TypeAlias = EventOf[IngressKind, IngressObject]
