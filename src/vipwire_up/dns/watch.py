"""The kinds that DNS reads, for the sources of them: an API server, manifests, a store in this process. Pure."""

from typing import Final, TypeAlias

import msgspec

from vipwire.kube.manifests.documents import ManifestKind, ManifestReader, kind_in_manifests
from vipwire.kube.resource import Resource
from vipwire.model.problem import Problem
from vipwire_up.dns import convert, wire
from vipwire_up.dns.objects import DnsKind, DnsObject

DnsResource: TypeAlias = Resource[DnsKind, DnsObject]

SERVICES: Final[DnsResource] = Resource(
    DnsKind.SERVICE, "/api/v1", "services", wire.WireService, convert.convert_service
)
# All slices, not only those with the label of headless Services: those that people write do not have it.
SLICES: Final[DnsResource] = Resource(
    DnsKind.SLICE, "/apis/discovery.k8s.io/v1", "endpointslices", wire.EndpointSlice, convert.convert_slice
)
RESOURCES: Final = (SERVICES, SLICES)


def _read_endpoints(document: object) -> tuple[tuple[DnsObject, ...], tuple[Problem, ...]]:
    return convert.convert_endpoints(msgspec.convert(document, wire.Endpoints))


_ENDPOINTS: Final[ManifestKind[DnsKind, DnsObject]] = ManifestKind(
    DnsKind.SLICE, "Endpoints", ("v1",), _read_endpoints
)
MANIFESTS: Final = ManifestReader(kind_in_manifests(SERVICES), kind_in_manifests(SLICES), _ENDPOINTS)
"""Reads files for DNS."""
