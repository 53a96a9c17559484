"""Describes a resource of any kind: its path, and the conversion of its bytes to values. Pure.

`ApiSource`, the store of `vipwire up` and manifests take any `Resource[K, T]`. The proxy's are in `kube.proxied`,
those of DNS and Ingress in their packages.
"""

from collections.abc import Callable, Iterable
from typing import Any, Generic, Protocol

import msgspec

from vipwire.kube import wire
from vipwire.model.names import ObjectName
from vipwire.model.problem import Problem
from vipwire.model.value import Value
from vipwire.watched_objects.event import Deleted, K, K_co, Listed, Named, T, T_co, Upserted

BROKEN = (msgspec.MsgspecError, RecursionError, ValueError)
"""Errors of decoding foreign bytes: bad JSON, a wrong type, deep nesting, invalid UTF-8."""
_LONGEST_TEXT = 1000


class Decoded(Protocol):
    """A decoded object, as far as this module reads it."""

    @property
    def metadata(self) -> wire.Meta | None: ...


class Resource(Value, Generic[K_co, T_co], frozen=True):
    """One kind of object at an API server; `kind.value` is its name in a manifest.

    `optional_field_selector` is omitted if a server refuses it. `optional` kinds count as empty if the server lacks
    them or an older RBAC role forbids them. With `only`, one object of that name is read.
    """

    kind: K_co
    path: str
    plural: str
    type: type[Decoded]
    convert: Callable[[Any], tuple[T_co | None, tuple[Problem, ...]]]
    label_selector: str = ""
    field_selector: str = ""
    optional_field_selector: str = ""
    optional: bool = False
    only: str = ""

    @property
    def url(self) -> str:
        return f"{self.path}/{self.plural}"

    @property
    def api_version(self) -> str:
        return self.path.removeprefix("/apis/").removeprefix("/api/")

    @property
    def id(self) -> str:
        """The plural with its group, such as `endpointslices.discovery.k8s.io`."""
        group = self.api_version.rpartition("/")[0]
        return f"{self.plural}.{group}" if group else self.plural


class ReadObject(Value, Generic[T_co], frozen=True):
    """The result of reading one object. `object` is None if ignored, `name` is None if unreadable."""

    name: ObjectName | None
    object: T_co | None
    version: str = ""
    problems: tuple[Problem, ...] = ()


class ObjectReader(Generic[K, T]):
    """Decodes and converts the objects of one kind. Keeps the decoder, which is costly to make."""

    def __init__(self, resource: Resource[K, T]) -> None:
        self.resource = resource
        self._decoder = msgspec.json.Decoder(resource.type)
        self._header = msgspec.json.Decoder(wire.WireObject)

    def read(self, raw: bytes | msgspec.Raw, place: str) -> ReadObject[T]:
        """Read one object; `place` (`items[7]`) names it in a problem if its own name cannot be read."""
        try:
            source = self._decoder.decode(raw)
        except BROKEN as error:
            return self._report_unreadable(raw, place, *explain(error))
        meta = source.metadata
        try:
            converted, problems = self.resource.convert(source)
        except Exception as error:  # noqa: BLE001 - an error in one object must not stop the others
            return self._report_unreadable(raw, place, "", describe_unexpected(error))
        if meta is None:
            return ReadObject(None, None, problems=problems)
        return ReadObject(_name(converted, meta), converted, meta.resource_version or "", problems)

    def build_listed_event(self, values: Iterable[tuple[str, bytes]]) -> Listed[K, T]:
        """Build the event with all objects of the kind, from each one's place and bytes."""
        readings = [self.read(value, place) for place, value in values]
        found = tuple(reading.object for reading in readings if reading.object is not None)
        return Listed(self.resource.kind, found, tuple(problem for each in readings for problem in each.problems))

    def build_change_event(self, name: ObjectName, value: bytes) -> Upserted[T] | Deleted[K]:
        """Build the event of a new or changed object: a deletion if the object is to be ignored."""
        reading = self.read(value, name.name)
        if reading.object is not None:
            return Upserted(reading.object, reading.problems)
        return Deleted(self.resource.kind, name, reading.problems)

    def _report_unreadable(self, raw: bytes | msgspec.Raw, place: str, field: str, message: str) -> ReadObject[T]:
        kind = self.resource.kind.value
        try:
            meta = self._header.decode(raw).metadata
        except BROKEN:
            meta = None
        if meta is None or not meta.name:
            return ReadObject(None, None, problems=(Problem(kind, ObjectName("", place), field, message),))
        name = ObjectName(meta.namespace or "", meta.name)
        return ReadObject(name, None, meta.resource_version or "", (Problem(kind, name, field, message),))


def document_name(document: object) -> ObjectName:
    """Read the name of a parsed object, as far as it has one."""
    meta = document.get("metadata") if isinstance(document, dict) else None
    if not isinstance(meta, dict):
        return ObjectName("", "")
    return ObjectName(format_value(meta.get("namespace")), format_value(meta.get("name")))


def format_value(value: object) -> str:
    """Return a text of a file for messages, shortened; escapes can name unencodable characters."""
    return str(value or "")[:_LONGEST_TEXT].encode(errors="replace").decode()


def explain(error: Exception) -> tuple[str, str]:
    """Split a decoder's error into the field's path, as Kubernetes writes it, and the mistake."""
    message, _, path = str(error).partition(" - at `$")
    return path.rstrip("`").removeprefix("."), message


def describe_unexpected(error: Exception) -> str:
    """Report an object whose reading failed by a bug; the object is left out."""
    return f"cannot be read, which is a defect of vipwire: {type(error).__name__}: {str(error)[:200]}"


def without_nulls(value: Any) -> Any:
    """Copy a value without nulls, which count as absent."""
    if isinstance(value, dict):
        return {key: without_nulls(part) for key, part in value.items() if part is not None}
    return [without_nulls(part) for part in value if part is not None] if isinstance(value, list) else value


def name_of(value: Named) -> ObjectName:
    return value.name if isinstance(value.name, ObjectName) else ObjectName("", value.name)


def _name(converted: Named | None, meta: wire.Meta) -> ObjectName | None:
    if converted is not None:
        return name_of(converted)
    return ObjectName(meta.namespace or "", meta.name) if meta.name else None
