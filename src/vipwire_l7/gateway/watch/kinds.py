"""The kinds that `vipwire gateway` reads from an API server or from manifests. Pure.

The standard and the experimental channel serve some kinds at different versions. `choose_versions` takes the version
that the server has. Manifests may have any of them.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Final, TypeAlias, cast

import msgspec
from msgspec import Struct

from vipwire.kube.finding import Findings
from vipwire.kube.manifests.documents import ManifestReader, kind_in_manifests
from vipwire.kube.resource import Resource
from vipwire.model.names import ObjectName
from vipwire.model.problem import Problem
from vipwire_l7.gateway.watch import wire
from vipwire_l7.watch import kinds as ingress_kinds
from vipwire_l7.watch.compact import share_equal
from vipwire_l7.watch.kinds import IngressResource
from vipwire_l7.watch.objects import NOTHING, GatewayObject, IngressKind, IngressObject

_BASE: Final = f"/apis/{wire.GROUP}"
_POLICIES: Final = f"/apis/{wire.POLICY_GROUP}/v1"
_BUNDLES: Final = f"/apis/{wire.CERTIFICATES_GROUP}/v1"
_CLUSTER_WIDE: Final = (
    IngressKind.GATEWAY_CLASS,
    IngressKind.NAMESPACE,
    IngressKind.INGRESS_CLASS,
    IngressKind.CLUSTER_TRUST_BUNDLE,
)
VERSIONS: Final[Mapping[str, Sequence[str]]] = {
    wire.GROUP: ("v1", "v1beta1", "v1alpha3", "v1alpha2"),
    wire.CERTIFICATES_GROUP: ("v1", "v1beta1", "v1alpha1"),
}
"""The versions that vipwire reads, for groups with several, the best first."""
_SHORT: Final = 1024
"""The longest status of which equal ones are stored once: those of many routes differ in their times alone."""
Reader: TypeAlias = Callable[[wire.Object], tuple[GatewayObject[object] | None, tuple[Problem, ...]]]


def _make_reader(kind: IngressKind, version: str) -> Reader:
    has_signer = kind is IngressKind.CLUSTER_TRUST_BUNDLE

    def convert(source: wire.Object) -> tuple[GatewayObject[object] | None, tuple[Problem, ...]]:
        meta = source.metadata or wire.ObjectMeta()
        name = ObjectName(meta.namespace or "", meta.name or "")
        # The name of a signer's bundle has colons, which other names must not have.
        found = Findings(kind.value, ObjectName(name.namespace, name.name.replace(":", ".")) if has_signer else name)
        if not found.named(namespaced=kind not in _CLUSTER_WIDE):
            return None, found.problems()
        status = msgspec.json.encode(source.status)
        is_namespace = kind is IngressKind.NAMESPACE
        made = GatewayObject(
            kind,
            name,
            source.data if isinstance(source, wire.ConfigMap) else getattr(source, "spec", None),
            share_equal(meta.creation_timestamp or ""),
            meta.generation or 0,
            MappingProxyType(meta.labels) if is_namespace and meta.labels else NOTHING,
            meta.uid or "",
            version,
            meta.resource_version or "",
            share_equal(status) if len(status) <= _SHORT else status,
        )
        return made, found.problems()

    return convert


def _make_resource(kind: IngressKind, plural: str, of: type[Struct], path: str = f"{_BASE}/v1") -> IngressResource:
    """Describe a kind. `of` is the struct of its objects, or of their `spec`."""
    if not issubclass(of, wire.Object):
        made = msgspec.defstruct(kind.value, [("spec", of, of())], bases=(wire.Object,), frozen=True)
        of = cast("type[wire.Object]", made)
    reader = _make_reader(kind, path.removeprefix("/apis/").removeprefix("/api/"))
    return Resource(kind, path, plural, of, reader, optional=path.startswith("/apis/"))


_OWN: Final = (
    _make_resource(IngressKind.GATEWAY_CLASS, "gatewayclasses", wire.GatewayClassSpec),
    _make_resource(IngressKind.GATEWAY, "gateways", wire.GatewaySpec),
    _make_resource(IngressKind.LISTENER_SET, "listenersets", wire.ListenerSet),
    _make_resource(IngressKind.HTTP_ROUTE, "httproutes", wire.HttpRouteSpec),
    _make_resource(IngressKind.GRPC_ROUTE, "grpcroutes", wire.GrpcRouteSpec),
    _make_resource(IngressKind.TLS_ROUTE, "tlsroutes", wire.NamedRouteSpec),
    _make_resource(IngressKind.TCP_ROUTE, "tcproutes", wire.RouteSpec),
    _make_resource(IngressKind.UDP_ROUTE, "udproutes", wire.RouteSpec),
    _make_resource(IngressKind.REFERENCE_GRANT, "referencegrants", wire.GrantSpec),
    _make_resource(IngressKind.BACKEND_TLS_POLICY, "backendtlspolicies", wire.BackendTlsSpec),
    _make_resource(IngressKind.TRAFFIC_POLICY, "trafficpolicies", wire.PolicyObject, _POLICIES),
    _make_resource(IngressKind.BACKEND_POLICY, "backendpolicies", wire.PolicyObject, _POLICIES),
    _make_resource(IngressKind.NAMESPACE, "namespaces", wire.Object, "/api/v1"),
    _make_resource(IngressKind.CONFIG_MAP, "configmaps", wire.ConfigMap, "/api/v1"),
    _make_resource(IngressKind.CLUSTER_TRUST_BUNDLE, "clustertrustbundles", wire.TrustBundle, _BUNDLES),
)
_SHARED: Final = (IngressKind.SERVICE, IngressKind.SLICE, IngressKind.SECRET)
RESOURCES: Final[Mapping[IngressKind, IngressResource]] = {each.kind: each for each in _OWN} | {
    kind: ingress_kinds.RESOURCES[kind] for kind in _SHARED
}
"""The resources by kind, at the versions that `vipwire up` serves."""
WITH_INGRESS: Final[Mapping[IngressKind, IngressResource]] = {**RESOURCES, **ingress_kinds.RESOURCES}
"""The same with Ingresses and IngressClasses, for a process that serves both."""


def make_manifest_reader(
    resources: Mapping[IngressKind, IngressResource],
) -> ManifestReader[IngressKind, IngressObject]:
    return ManifestReader(
        *(
            kind_in_manifests(each, *_list_other_versions(each), namespaced=each.kind not in _CLUSTER_WIDE)
            for each in resources.values()
        )
    )


def _list_other_versions(resource: IngressResource) -> tuple[str, ...]:
    group = _get_group(resource)
    found = (f"{group}/{each}" for each in VERSIONS.get(group, ()))
    return tuple(each for each in found if each != resource.api_version)


def _get_group(resource: IngressResource) -> str:
    return resource.path.removeprefix("/apis/").partition("/")[0]


def choose_versions(
    resources: Mapping[IngressKind, IngressResource], served: Mapping[str, Collection[str]]
) -> dict[IngressKind, IngressResource]:
    """Choose each kind's best version that a server has; `served` has the plurals by API version."""

    def best(resource: IngressResource) -> IngressResource:
        group = _get_group(resource)
        asked = (f"{group}/{each}" for each in VERSIONS.get(group, ()))
        version = next((each for each in asked if resource.plural in served.get(each, ())), "")
        return replace(resource, path=f"/apis/{version}") if version else resource

    return {kind: best(each) for kind, each in resources.items()}
