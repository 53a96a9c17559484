"""The wire structs of the Gateway API, with only the fields that vipwire reads.

They are values (frozen, comparable), so planning uses them directly. Custom resources have no nulls: an API server
drops or refuses them, so only optional scalars may be None.
"""

from typing import Any

from msgspec import field
from msgspec.structs import force_setattr

from vipwire.kube.wire import Meta
from vipwire_l7.gateway.watch.rule_wire import GrpcRule, HttpRule, ObjectRef, RouteRule, Wire
from vipwire_l7.watch.compact import share_equal

GROUP = "gateway.networking.k8s.io"
CERTIFICATES_GROUP = "certificates.k8s.io"
POLICY_GROUP = "vipwire.io"
"""The API group of vipwire's own kinds."""


class ObjectMeta(Meta, gc=False, rename="camel"):
    creation_timestamp: str | None = None
    generation: int | None = None
    labels: dict[str, str] | None = None


class ParentRef(Wire, frozen=True):
    name: str
    group: str = GROUP
    kind: str = "Gateway"
    namespace: str | None = None
    section_name: str | None = None
    port: int | None = None


class RouteSpec(Wire, frozen=True):
    """The `spec` of TCPRoutes and UDPRoutes; the other routes have these fields too."""

    parent_refs: tuple[ParentRef, ...] = ()
    rules: tuple[RouteRule, ...] = ()

    def __post_init__(self) -> None:
        if len(self.parent_refs) == 1:
            force_setattr(self, "parent_refs", share_equal(self.parent_refs))


class NamedRouteSpec(RouteSpec, frozen=True):
    """The `spec` of a TLSRoute, and of other routes with hostnames."""

    hostnames: tuple[str, ...] = ()


class HttpRouteSpec(NamedRouteSpec, frozen=True):
    rules: tuple[HttpRule, ...] = (HttpRule(),)


class GrpcRouteSpec(NamedRouteSpec, frozen=True):
    rules: tuple[GrpcRule, ...] = ()


class SelectorRequirement(Wire, frozen=True):
    key: str
    operator: str
    values: tuple[str, ...] = ()


class Selector(Wire, frozen=True):
    """A label selector."""

    match_labels: dict[str, str] = {}  # noqa: RUF012  # msgspec copies it
    match_expressions: tuple[SelectorRequirement, ...] = ()


class FromNamespaces(Wire, frozen=True):
    from_: str | None = field(default=None, name="from")
    selector: Selector | None = None


class RouteKind(Wire, frozen=True):
    kind: str
    group: str = GROUP


class AllowedRoutes(Wire, frozen=True):
    namespaces: FromNamespaces = FromNamespaces("Same")
    kinds: tuple[RouteKind, ...] = ()


class ListenerTls(Wire, frozen=True):
    mode: str = "Terminate"
    certificate_refs: tuple[ObjectRef, ...] = ()


class GatewayListener(Wire, frozen=True):
    name: str
    protocol: str
    port: int | None = None
    hostname: str | None = None
    tls: ListenerTls | None = None
    allowed_routes: AllowedRoutes = AllowedRoutes()


class GatewayAddress(Wire, frozen=True):
    type: str = "IPAddress"
    value: str | None = None


class AllowedListeners(Wire, frozen=True):
    namespaces: FromNamespaces = FromNamespaces("None")


class ClientValidation(Wire, frozen=True):
    ca_certificate_refs: tuple[ObjectRef, ...] = field(default=(), name="caCertificateRefs")
    cluster_trust_bundle_ref: ObjectRef | None = None
    mode: str = "AllowValidOnly"


class PortTls(Wire, frozen=True):
    """`tls` of a port: the validation of client certificates."""

    validation: ClientValidation | None = None


class TlsOfPort(Wire, frozen=True):
    port: int
    tls: PortTls = PortTls()


class FrontendTls(Wire, frozen=True):
    default: PortTls = PortTls()
    per_port: tuple[TlsOfPort, ...] = ()


class GatewayBackendTls(Wire, frozen=True):
    client_certificate_ref: ObjectRef | None = None


class GatewayTls(Wire, frozen=True):
    frontend: FrontendTls = FrontendTls()
    backend: GatewayBackendTls = GatewayBackendTls()


class Infrastructure(Wire, frozen=True):
    """`infrastructure`. Labels and annotations apply to the Services of Gateways, not to HAProxy."""

    parameters_ref: ObjectRef | None = None
    labels: dict[str, str] = {}  # noqa: RUF012  # msgspec gives each struct its own
    annotations: dict[str, str] = {}  # noqa: RUF012


class GatewaySpec(Wire, frozen=True):
    gateway_class_name: str = ""
    listeners: tuple[GatewayListener, ...] = ()
    addresses: tuple[GatewayAddress, ...] = ()
    allowed_listeners: AllowedListeners = AllowedListeners()
    tls: GatewayTls = GatewayTls()
    infrastructure: Infrastructure = Infrastructure()


class ListenerSetSpec(Wire, frozen=True):
    parent_ref: ParentRef
    listeners: tuple[GatewayListener, ...] = ()


class GatewayClassSpec(Wire, frozen=True):
    controller_name: str = ""
    parameters_ref: ObjectRef | None = None


class GrantFrom(Wire, frozen=True):
    kind: str
    namespace: str
    group: str = ""


class GrantTo(Wire, frozen=True):
    kind: str
    group: str = ""
    name: str | None = None


class GrantSpec(Wire, frozen=True):
    from_: tuple[GrantFrom, ...] = field(default=(), name="from")
    to: tuple[GrantTo, ...] = ()


class PolicyTargetRef(Wire, frozen=True):
    name: str
    kind: str
    group: str = ""
    section_name: str | None = None


class AltName(Wire, frozen=True):
    type: str
    hostname: str | None = None


class TlsValidation(Wire, frozen=True):
    hostname: str = ""
    ca_certificate_refs: tuple[ObjectRef, ...] = field(default=(), name="caCertificateRefs")
    cluster_trust_bundle_ref: ObjectRef | None = None
    well_known: str | None = field(default=None, name="wellKnownCACertificates")
    subject_alt_names: tuple[AltName, ...] = ()


class BackendTlsSpec(Wire, frozen=True):
    target_refs: tuple[PolicyTargetRef, ...] = ()
    validation: TlsValidation = TlsValidation()


class Object(Wire, frozen=True):
    """Any object. `kinds` adds the `spec` of most kinds."""

    metadata: ObjectMeta | None = None
    status: Any = None


class ListenerSet(Object, frozen=True, kw_only=True):
    spec: ListenerSetSpec


class PolicyObject(Object, frozen=True):
    """TrafficPolicy and BackendPolicy. `spec` is not decoded: the planner must report an invalid field."""

    spec: Any = None


class ConfigMap(Object, frozen=True):
    """ConfigMap, for CA certificates."""

    data: dict[str, str] = {}  # noqa: RUF012  # msgspec copies it


class TrustBundle(Wire, frozen=True):
    trust_bundle: str = ""
