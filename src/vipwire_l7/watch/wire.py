"""The wire structs of Ingresses, with only the fields that vipwire reads. As in `kube.wire`, any field may be null.

Structs that other parts read too are in that module.
"""

from typing import TypeAlias

from msgspec import Struct, field

from vipwire.kube.wire import Conditions, WireEndpointPort, WireHints
from vipwire.kube.wire import Meta as NameMeta

Texts: TypeAlias = dict[str, str] | None


class Meta(NameMeta, gc=False, rename="camel"):
    creation_timestamp: str | None = None
    labels: Texts = None
    annotations: Texts = None


class PortRef(Struct, gc=False):
    name: str | None = None
    number: int | None = None


class ServiceBackend(Struct, gc=False):
    name: str | None = None
    port: PortRef | None = None


class LocalRef(Struct, gc=False):
    kind: str | None = None
    name: str | None = None


class Backend(Struct, gc=False):
    service: ServiceBackend | None = None
    resource: LocalRef | None = None


class Path(Struct, gc=False, rename="camel"):
    path: str | None = None
    path_type: str | None = None
    backend: Backend | None = None


class Http(Struct, gc=False):
    paths: tuple[Path, ...] | None = None


class Rule(Struct, gc=False):
    host: str | None = None
    http: Http | None = None


class IngressTls(Struct, gc=False, rename="camel"):
    hosts: tuple[str, ...] | None = None
    secret_name: str | None = None


class IngressSpec(Struct, gc=False, rename="camel"):
    ingress_class_name: str | None = None
    default_backend: Backend | None = None
    rules: tuple[Rule, ...] | None = None
    tls: tuple[IngressTls, ...] | None = None


class LoadBalancerIngress(Struct, gc=False):
    ip: str | None = None
    hostname: str | None = None


class LoadBalancer(Struct, gc=False):
    ingress: tuple[LoadBalancerIngress, ...] | None = None


class IngressStatus(Struct, gc=False, rename="camel"):
    """An Ingress's `status`; also that of a Service, as far as vipwire reads it."""

    load_balancer: LoadBalancer | None = None


class Ingress(Struct, gc=False):
    metadata: Meta | None = None
    spec: IngressSpec | None = None
    status: IngressStatus | None = None


class ClassSpec(Struct, gc=False):
    controller: str | None = None


class IngressClass(Struct, gc=False):
    metadata: Meta | None = None
    spec: ClassSpec | None = None


class ServicePort(Struct, gc=False, rename="camel"):
    name: str | None = None
    port: int | None = None
    protocol: str | None = None
    app_protocol: str | None = None
    target_port: int | str | None = None


class ServiceSpec(Struct, gc=False, rename="camel"):
    external_ips: tuple[str, ...] | None = field(default=None, name="externalIPs")

    type: str | None = None
    ports: tuple[ServicePort, ...] | None = None
    external_name: str | None = None
    ip_families: tuple[str, ...] | None = None
    cluster_ip: str | None = field(default=None, name="clusterIP")
    cluster_ips: tuple[str, ...] | None = field(default=None, name="clusterIPs")


class WireService(Struct, gc=False):
    metadata: Meta | None = None
    spec: ServiceSpec | None = None
    status: IngressStatus | None = None


class TargetRef(Struct, gc=False):
    name: str | None = None


class WireEndpoint(Struct, gc=False, rename="camel"):
    addresses: tuple[str, ...] | None = None
    conditions: Conditions | None = None
    target_ref: TargetRef | None = None
    hints: WireHints | None = None
    node_name: str | None = None


class Slice(Struct, gc=False, rename="camel"):
    metadata: Meta | None = None
    address_type: str | None = None
    endpoints: tuple[WireEndpoint, ...] | None = None
    ports: tuple[WireEndpointPort, ...] | None = None


class Secret(Struct, gc=False, rename="camel"):
    """core/v1 Secret; `data` is base64, `stringData` is plain text for manifests."""

    metadata: Meta | None = None
    type: str | None = None
    data: dict[str, str | None] | None = None
    string_data: Texts = field(default=None, name="stringData")


NO_META = Meta()
