"""The kinds that DNS watches, and the sources of them: an API server, manifests, and the objects' bytes in a store.

List, watch and files are `kube`'s: those carry kinds and objects without looking into them. Their types name the
service proxy's kinds, so ours are cast at this one place, on the way in; `dns.zone` takes them back.
"""

import random
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, cast

import msgspec

from vipwire.dns import convert, wire
from vipwire.dns.objects import Kind
from vipwire.kube.access.access import Access
from vipwire.kube.client import ApiSource
from vipwire.kube.manifests.documents import Entry, Manifest, gather
from vipwire.kube.manifests.source import ManifestSource
from vipwire.kube.resource import BROKEN, Reader, Resource, document_name, explain
from vipwire.kube.watch import ResourceWatch
from vipwire.model.names import ObjectName
from vipwire.model.problem import Problem
from vipwire.state import event


def _resource(kind: Kind, path: str, plural: str, type_: Any, converter: Any) -> Resource:
    return Resource(cast("event.Kind", kind), path, plural, type_, converter)


SERVICES = _resource(Kind.SERVICE, "/api/v1", "services", wire.Service, convert.convert_service)
# All slices, not only those with the label of headless Services: those that people write do not have it.
SLICES = _resource(
    Kind.SLICE, "/apis/discovery.k8s.io/v1", "endpointslices", wire.EndpointSlice, convert.convert_slice
)
_OF_KIND = {("Service", "v1"): SERVICES, ("EndpointSlice", "discovery.k8s.io/v1"): SLICES}


class DnsSource(ApiSource):
    """Lists and watches at an API server what DNS reads."""

    def __init__(self, access: Access) -> None:
        super().__init__(access, "", clock=time.monotonic, chance=random.random)
        self._watches = (ResourceWatch(SERVICES), ResourceWatch(SLICES))


def manifest_source(paths: Iterable[Path]) -> ManifestSource:
    """Make the source that reads files and folders."""
    return ManifestSource(paths, read=read_manifest, kinds=cast("Iterable[event.Kind]", Kind))


def read_manifest(text: str, file: str) -> Manifest:
    """Read a file's text; raise DecodeError with the line and column when it does not parse."""
    return gather(text, file, _entry)


def _entry(item: dict[str, object]) -> Entry | None:
    kind, meta = (str(item["kind"]), str(item["apiVersion"])), item.get("metadata")
    resource = SLICES if kind == ("Endpoints", "v1") else _OF_KIND.get(kind)
    if resource is None:
        return None
    if isinstance(meta, dict) and not meta.get("namespace"):
        item = {**item, "metadata": {**meta, "namespace": "default"}}
    name = document_name(item)
    objects: tuple[event.Object, ...] = ()
    try:
        if kind[0] == "Endpoints":
            slices, problems = convert.convert_endpoints(msgspec.convert(item, wire.Endpoints))
            objects = cast("tuple[event.Object, ...]", slices)
        else:
            made, problems = resource.convert(msgspec.convert(item, resource.type))
            objects = () if made is None else (made,)
    except BROKEN as error:
        problems = (Problem(kind[0], name, *explain(error)),)
    return Entry(resource.kind, name, objects, problems)


class BytesReader:
    """Makes events of objects' JSON, for whoever has a store of it, such as `vipwire up`."""

    def __init__(self, resource: Resource) -> None:
        self._resource, self._reader = resource, Reader(resource)

    def listed(self, values: Iterable[bytes]) -> event.Listed:
        """Make the event that tells all objects of the kind."""
        readings = [self._reader.read(value, f"items[{index}]") for index, value in enumerate(values)]
        objects = tuple(reading.object for reading in readings if reading.object is not None)
        problems = tuple(problem for reading in readings for problem in reading.problems)
        return event.Listed(self._resource.kind, objects, problems)

    def changed(self, value: bytes) -> event.Event:
        """Make the event that tells of a new or changed object."""
        reading = self._reader.read(value, "change")
        if reading.object is not None:
            return event.Upserted(reading.object, reading.problems)
        return event.Deleted(self._resource.kind, reading.name or ObjectName("", ""), reading.problems)

    def deleted(self, namespace: str, name: str) -> event.Deleted:
        """Make the event that tells of an object that is gone."""
        return event.Deleted(self._resource.kind, ObjectName(namespace, name))
