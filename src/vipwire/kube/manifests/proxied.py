"""The kinds that a service proxy reads from files: those of an API server, and Endpoints."""

from typing import Final

import msgspec

from vipwire.kube import wire
from vipwire.kube.convert import convert_endpoints
from vipwire.kube.manifests.documents import ManifestKind, ManifestReader, kind_in_manifests
from vipwire.kube.proxied import ENDPOINT_SLICES, NODES, SERVICE_CIDRS, SERVICES
from vipwire.model.problem import Problem
from vipwire.state.event import Kind, Object


def _read_endpoints(document: object) -> tuple[tuple[Object, ...], tuple[Problem, ...]]:
    return convert_endpoints(msgspec.convert(document, wire.Endpoints))


IN_MANIFESTS: Final[tuple[ManifestKind[Kind, Object], ...]] = (
    kind_in_manifests(SERVICES),
    kind_in_manifests(ENDPOINT_SLICES),
    kind_in_manifests(NODES, namespaced=False),
    kind_in_manifests(SERVICE_CIDRS, "networking.k8s.io/v1beta1", namespaced=False),
    ManifestKind(Kind.ENDPOINT_SLICE, "Endpoints", ("v1",), _read_endpoints),
)
MANIFESTS: Final = ManifestReader(*IN_MANIFESTS)
"""Reads files for the proxy."""
