"""The kinds that are watched, and the two sources of them: an API server, and manifests.

List, watch and files are `kube`'s: those carry kinds and objects without looking into them. Their types name the
service proxy's kinds, so ours are cast at this one place, on the way in; `watch.snapshot` takes them back.
Headless Services and other proxies' count here: HAProxy needs the endpoints, not the VIP.
"""

import random
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, cast

import msgspec

from vipwire.ingress.watch import convert, wire
from vipwire.ingress.watch.objects import Kind, Slice
from vipwire.kube.access.access import Access
from vipwire.kube.client import ApiSource
from vipwire.kube.manifests.documents import Entry, Manifest, gather
from vipwire.kube.manifests.source import ManifestSource
from vipwire.kube.resource import BROKEN, Resource, document_name, explain
from vipwire.kube.watch import ResourceWatch
from vipwire.model.problem import Problem
from vipwire.state import event

_NETWORKING, _DISCOVERY = "/apis/networking.k8s.io/v1", "/apis/discovery.k8s.io/v1"


def _resource(kind: Kind, path: str, plural: str, type_: Any, converter: Any, **selectors: Any) -> Resource:
    return Resource(cast("event.Kind", kind), path, plural, type_, converter, **selectors)


RESOURCES = {
    Kind.INGRESS_CLASS: _resource(
        Kind.INGRESS_CLASS, _NETWORKING, "ingressclasses", wire.IngressClass, convert.convert_class, optional=True
    ),
    Kind.INGRESS: _resource(Kind.INGRESS, _NETWORKING, "ingresses", wire.Ingress, convert.convert_ingress),
    Kind.SERVICE: _resource(Kind.SERVICE, "/api/v1", "services", wire.Service, convert.convert_service),
    Kind.SLICE: _resource(Kind.SLICE, _DISCOVERY, "endpointslices", wire.Slice, convert.convert_slice),
    Kind.SECRET: _resource(
        Kind.SECRET,
        "/api/v1",
        "secrets",
        wire.Secret,
        convert.convert_secret,
        # Service account tokens and Helm's releases are most of a cluster's Secrets, and nobody's business here.
        field_selector="type!=kubernetes.io/service-account-token,type!=helm.sh/release.v1",
    ),
}
_API_VERSIONS = {"Ingress": "networking.k8s.io/v1", "IngressClass": "networking.k8s.io/v1"} | {
    "Service": "v1",
    "Secret": "v1",
    "EndpointSlice": "discovery.k8s.io/v1",
}


class IngressSource(ApiSource):
    """Lists and watches at an API server what an Ingress controller reads."""

    def __init__(self, access: Access) -> None:
        super().__init__(access, "", clock=time.monotonic, chance=random.random)
        self._watches = tuple(ResourceWatch(resource) for resource in RESOURCES.values())


def manifest_source(paths: Iterable[Path]) -> ManifestSource:
    """Make the source that reads files and folders."""
    return ManifestSource(paths, read=read_manifest, kinds=cast("Iterable[event.Kind]", Kind))


def read_manifest(text: str, file: str) -> Manifest:
    """Read a file's text; raise DecodeError with the line and column when it does not parse."""
    return gather(text, file, _entry)


def _entry(item: dict[str, object]) -> Entry | None:
    if _API_VERSIONS.get(str(item["kind"])) != item["apiVersion"]:
        return None
    kind, meta = Kind(item["kind"]), item.get("metadata")
    if kind is not Kind.INGRESS_CLASS and isinstance(meta, dict) and not meta.get("namespace"):
        item = {**item, "metadata": {**meta, "namespace": "default"}}
    name, resource = document_name(item), RESOURCES[kind]
    try:
        made, problems = resource.convert(msgspec.convert(item, resource.type))
    except BROKEN as error:
        field, message = explain(error)
        made, problems = None, (Problem(kind.value, name, field, message),)
    named = made.name if isinstance(made, Slice) else name
    objects = () if made is None else (made,)
    return Entry(cast("event.Kind", kind), named, objects, problems)
