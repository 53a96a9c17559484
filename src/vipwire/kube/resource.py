"""What is watched: for each kind its path, its selectors, and how its bytes become values.

The selectors are kube-proxy's, so that the API server does not send what nobody here would use. Servers before 1.31
know no field selector `spec.clusterIP` and refuse it with 400; then it is left out and headless Services, which come
along, are sorted out by the conversion.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import msgspec

from vipwire.kube import wire
from vipwire.kube.convert import convert_cidr, convert_endpoints, convert_node, convert_service, convert_slice
from vipwire.model.names import ObjectName
from vipwire.model.problem import Problem
from vipwire.state.event import Kind, Object

SERVICE_PROXY_NAME = "service.kubernetes.io/service-proxy-name"
HEADLESS = "service.kubernetes.io/headless"

BROKEN = (msgspec.MsgspecError, RecursionError, ValueError)
"""What decoding foreign bytes raises: bad JSON, a wrong type, nesting without end, text that is not UTF-8."""

Convert: TypeAlias = Callable[[Any], tuple[Object | None, tuple[Problem, ...]]]


@dataclass(frozen=True, slots=True)
class Resource:
    """One kind of object at an API server.

    `optional_field_selector` is dropped when a server refuses it. `optional` kinds may be unknown to the server or
    forbidden by an older RBAC role: they then count as empty.
    """

    kind: Kind
    path: str
    plural: str
    type: type[wire.WireService | wire.EndpointSlice | wire.Node | wire.ServiceCIDR]
    convert: Convert
    label_selector: str = ""
    field_selector: str = ""
    optional_field_selector: str = ""
    optional: bool = False

    @property
    def url(self) -> str:
        """The path of the collection, over all namespaces."""
        return f"{self.path}/{self.plural}"


SERVICES = Resource(
    kind=Kind.SERVICE,
    path="/api/v1",
    plural="services",
    type=wire.WireService,
    convert=convert_service,
    label_selector=f"!{SERVICE_PROXY_NAME}",
    optional_field_selector="spec.clusterIP!=None",
)
ENDPOINT_SLICES = Resource(
    kind=Kind.ENDPOINT_SLICE,
    path="/apis/discovery.k8s.io/v1",
    plural="endpointslices",
    type=wire.EndpointSlice,
    convert=convert_slice,
    label_selector=f"!{HEADLESS},!{SERVICE_PROXY_NAME}",
)
SERVICE_CIDRS = Resource(
    kind=Kind.SERVICE_CIDR,
    path="/apis/networking.k8s.io/v1",
    plural="servicecidrs",
    type=wire.ServiceCIDR,
    convert=convert_cidr,
    optional=True,
)
NODES = Resource(
    kind=Kind.NODE,
    path="/api/v1",
    plural="nodes",
    type=wire.Node,
    convert=convert_node,
)


def own_node(name: str) -> Resource:
    """Make the resource that is one Node only."""
    return Resource(
        kind=Kind.NODE,
        path=NODES.path,
        plural=NODES.plural,
        type=wire.Node,
        convert=convert_node,
        field_selector=f"metadata.name={name}",
    )


RESOURCES = {resource.kind: resource for resource in (SERVICES, ENDPOINT_SLICES, NODES, SERVICE_CIDRS)}


@dataclass(frozen=True, slots=True)
class Reading:
    """What one object's bytes said.

    `object` is None when it is not one to proxy, `name` when it could not be read.
    """

    name: ObjectName | None
    object: Object | None
    version: str = ""
    problems: tuple[Problem, ...] = ()


class Reader:
    """Decodes and converts the objects of one kind. Keeps the decoder, which is costly to make."""

    def __init__(self, resource: Resource) -> None:
        self.resource = resource
        self._decoder = msgspec.json.Decoder(resource.type)
        self._header = msgspec.json.Decoder(wire.Header)

    def read(self, raw: bytes | msgspec.Raw, place: str) -> Reading:
        """Read one object; `place` names it in a problem when its own name cannot be read (`items[7]`)."""
        try:
            source = self._decoder.decode(raw)
        except BROKEN as error:
            return self._broken(raw, place, error)
        meta = source.metadata
        converted, problems = self.resource.convert(source)
        if meta is None:
            return Reading(None, None, problems=problems)
        return Reading(_name(converted, meta), converted, meta.resource_version or "", problems)

    def _broken(self, raw: bytes | msgspec.Raw, place: str, error: Exception) -> Reading:
        field, message = explain(error)
        kind = self.resource.kind.value
        try:
            meta = self._header.decode(raw).metadata
        except BROKEN:
            meta = None
        if meta is None or not meta.name:
            return Reading(None, None, problems=(Problem(kind, ObjectName("", place), field, message),))
        name = ObjectName(meta.namespace or "", meta.name)
        return Reading(name, None, meta.resource_version or "", (Problem(kind, name, field, message),))


def read_document(kind: str, document: object) -> tuple[tuple[Object, ...], tuple[Problem, ...]]:
    """Read one object of a manifest, already parsed: a kind of `Kind`, or `Endpoints`, which become slices."""
    try:
        if kind == "Endpoints":
            return convert_endpoints(msgspec.convert(document, wire.Endpoints))
        resource = RESOURCES[Kind(kind)]
        converted, problems = resource.convert(msgspec.convert(document, resource.type))
    except BROKEN as error:
        field, message = explain(error)
        return (), (Problem(kind, document_name(document), field, message),)
    return () if converted is None else (converted,), problems


def document_name(document: object) -> ObjectName:
    """Read the name of a parsed object, as far as it has one."""
    meta = document.get("metadata") if isinstance(document, dict) else None
    if not isinstance(meta, dict):
        return ObjectName("", "")
    return ObjectName(printable(meta.get("namespace")), printable(meta.get("name")))


def printable(value: object) -> str:
    """Make a text of anything that a file holds; YAML's escapes can name characters that no encoding has."""
    return str(value or "").encode(errors="replace").decode()


def explain(error: Exception) -> tuple[str, str]:
    """Split a decoder's error into the field's path, as Kubernetes writes it, and what is wrong there."""
    message, _, path = str(error).partition(" - at `$")
    return path.rstrip("`").removeprefix("."), message


def name_of(value: Object) -> ObjectName:
    """Tell the name by which an object is known in events."""
    return value.name if isinstance(value.name, ObjectName) else ObjectName("", value.name)


def _name(converted: Object | None, meta: wire.Meta) -> ObjectName | None:
    if converted is not None:
        return name_of(converted)
    return ObjectName(meta.namespace or "", meta.name) if meta.name else None
