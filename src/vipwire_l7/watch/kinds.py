"""The kinds that an Ingress controller reads from an API server or from manifests. Pure.

All Services count, also headless ones and Services of other proxies: HAProxy needs endpoints, not the VIP.
"""

from typing import Final, TypeAlias

from vipwire.kube.manifests.documents import ManifestReader, kind_in_manifests
from vipwire.kube.resource import Resource
from vipwire_l7.watch import convert, wire
from vipwire_l7.watch.objects import IngressKind, IngressObject

IngressResource: TypeAlias = Resource[IngressKind, IngressObject]

_NETWORKING, _DISCOVERY = "/apis/networking.k8s.io/v1", "/apis/discovery.k8s.io/v1"
_CLASSES: Final[IngressResource] = Resource(
    IngressKind.INGRESS_CLASS, _NETWORKING, "ingressclasses", wire.IngressClass, convert.convert_class, optional=True
)
_INGRESSES: Final[IngressResource] = Resource(
    IngressKind.INGRESS, _NETWORKING, "ingresses", wire.Ingress, convert.convert_ingress
)
_SERVICES: Final[IngressResource] = Resource(
    IngressKind.SERVICE, "/api/v1", "services", wire.WireService, convert.convert_service
)
_SLICES: Final[IngressResource] = Resource(
    IngressKind.SLICE, _DISCOVERY, "endpointslices", wire.Slice, convert.convert_slice
)
_SECRETS: Final[IngressResource] = Resource(
    IngressKind.SECRET,
    "/api/v1",
    "secrets",
    wire.Secret,
    convert.convert_secret,
    # Service account tokens and Helm's releases are most of a cluster's Secrets, and vipwire needs none of them.
    field_selector="type!=kubernetes.io/service-account-token,type!=helm.sh/release.v1",
)
RESOURCES: Final = {each.kind: each for each in (_CLASSES, _INGRESSES, _SERVICES, _SLICES, _SECRETS)}
MANIFESTS: Final = ManifestReader(
    *(kind_in_manifests(each, namespaced=each is not _CLASSES) for each in RESOURCES.values())
)
"""Reads files for an Ingress controller."""
