"""Chooses the form of an answer by the Accept header: the object, a table, or metadata only, in JSON or YAML. Pure.

kubectl asks for `application/json;as=Table;v=v1;g=meta.k8s.io`, with plain JSON as a second choice. The API server
does not answer in protobuf; clients that accept protobuf also accept JSON.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from itertools import chain
from typing import Any, Final

import msgspec
import yaml

from vipwire.kube.errors import ApiError
from vipwire_up.api.objects.columns import AGE, NAME, UNKNOWN
from vipwire_up.api.objects.object import decode_with_name, encode
from vipwire_up.api.objects.parameters import Parameters
from vipwire_up.api.objects.resource import Column, Object, Resource, convert_to_served
from vipwire_up.store.record import Record

_META_GROUP: Final = "meta.k8s.io"
_PIECE: Final = 64 << 10
_JSON: Final = ("application/json", "*/*", "application/*")
_YAML: Final = "application/yaml"
_DUMPER: Final[Any] = getattr(yaml, "CSafeDumper", yaml.SafeDumper)


class RepresentationKind(Enum):
    """The form in which objects are returned."""

    OBJECT = ""
    TABLE = "Table"
    META = "PartialObjectMetadata"


@dataclass(frozen=True, slots=True)
class Representation:
    """The form of an answer. `include` is the content of a table's rows: Metadata, Object or None."""

    view: RepresentationKind = RepresentationKind.OBJECT
    version: str = "v1"
    include: str = "Metadata"
    is_yaml: bool = False

    @property
    def api_version(self) -> str:
        return f"{_META_GROUP}/{self.version}"

    @property
    def media(self) -> str:
        return _YAML if self.is_yaml else _JSON[0]

    def convert(self, value: bytes) -> bytes:
        """Convert JSON to this form's media type."""
        return _dump_yaml(msgspec.json.decode(value)) if self.is_yaml else value


def choose_form(accept: str, query: Parameters, *, watch: bool = False) -> Representation:
    """Choose the first supported media type, of a watch only JSON; raise ApiError 406."""
    for choice in (accept or "*/*").split(","):
        media, *parameters = (part.strip() for part in choice.split(";"))
        if media not in _JSON and (watch or media != _YAML):
            continue
        is_yaml = media == _YAML
        values = dict(parameter.partition("=")[::2] for parameter in parameters)
        wanted = values.get("as", "").removesuffix("List")
        if not wanted:
            return Representation(is_yaml=is_yaml)
        if wanted in ("Table", "PartialObjectMetadata") and values.get("v") in ("v1", "v1beta1"):
            include = query.choice("includeObject", ("None", "Metadata", "Object"), "TableOptions")
            return Representation(RepresentationKind(wanted), values["v"], include or "Metadata", is_yaml)
    only = f"only the following media types are accepted: {_JSON[0]}{'' if watch else f', {_YAML}'}"
    raise ApiError(406, "NotAcceptable", only)


def choose_status_form(accept: str) -> Representation:
    """Choose the media type of an error: the first supported one, else JSON."""
    accepted = (choice.partition(";")[0].strip() for choice in accept.split(","))
    return Representation(is_yaml=next((media for media in accepted if media in (*_JSON, _YAML)), "") == _YAML)


def encode_record(record: Record, resource: Resource, form: Representation, now: datetime) -> bytes:
    return form.convert(_encode_json(record, resource, form, now))


def _encode_json(record: Record, resource: Resource, form: Representation, now: datetime) -> bytes:
    if form.view is RepresentationKind.TABLE:
        return encode(_build_record_table(record, resource, form, now))
    return _encode_object(record, resource, form)


def _build_record_table(record: Record, resource: Resource, form: Representation, now: datetime) -> dict[str, Any]:
    return _build_table(
        resource, form, [_build_row(record, resource, form, now)], {"resourceVersion": str(record.revision)}
    )


def _encode_object(record: Record, resource: Resource, form: Representation) -> bytes:
    """Encode an object; the bytes of one that is shown as stored are shared by all readers."""
    if form.view is RepresentationKind.META:
        return encode(_build_partial_metadata(decode_with_name(record), form))
    return (
        record.value if resource.stored_as is None else encode(convert_to_served(resource, decode_with_name(record)))
    )


def watch_encoder(
    resource: Resource, form: Representation, clock: Callable[[], datetime]
) -> Callable[[Record], bytes]:
    """Return the encoder of a watch's objects. Only the first table has column definitions, as in kube-apiserver."""
    first = True

    def write(record: Record) -> bytes:
        nonlocal first
        if form.view is not RepresentationKind.TABLE:
            return encode_record(record, resource, form, clock())
        table = _build_record_table(record, resource, form, clock())
        if not first:
            table["columnDefinitions"] = None
        first = False
        return encode(table)

    return write


def encode_list(
    records: Iterable[Record], resource: Resource, form: Representation, meta: Mapping[str, Any], now: datetime
) -> Iterator[bytes]:
    """Encode a list of objects in a form, piece by piece; `meta` is the list's own metadata."""
    if form.view is RepresentationKind.TABLE:
        head = _build_table(resource, form, [], meta)
        del head["rows"]
        name = "rows"

        def write(record: Record) -> bytes:
            return encode(_build_row(record, resource, form, now))

    else:
        kind, version = f"{resource.kind}List", resource.api_version
        name = "items"
        if form.view is RepresentationKind.META:
            kind, version = "PartialObjectMetadataList", form.api_version

        def write(record: Record) -> bytes:
            return _encode_object(record, resource, form)

        head = {"kind": kind, "apiVersion": version, "metadata": meta}
    if form.is_yaml:
        yield from _encode_yaml_list(head, name, map(write, records))
        return
    piece = b'%s,"%s":[' % (encode(head)[:-1], name.encode())
    comma = b""
    for record in records:
        value = write(record)
        if len(value) >= _PIECE:  # the stored bytes, shared by all lists
            yield piece + comma
            yield value
            piece = b""
        else:
            piece += comma + value
        comma = b","
        if len(piece) >= _PIECE:
            yield piece
            piece = b""
    yield piece + b"]}"


def _encode_yaml_list(head: Mapping[str, Any], name: str, values: Iterator[bytes]) -> Iterator[bytes]:
    first = next(values, None)
    if first is None:
        yield _dump_yaml({**head, name: []})
        return
    yield b"%s%s:\n" % (_dump_yaml(dict(head)), name.encode())
    for value in chain((first,), values):
        yield _dump_yaml([msgspec.json.decode(value)])


def _dump_yaml(value: Any) -> bytes:
    text: str = yaml.dump(value, Dumper=_DUMPER, allow_unicode=True)
    return text.encode()


def encode_bookmark(resource: Resource, form: Representation, revision: int, *, initial_end: bool) -> bytes:
    """Encode the object of a BOOKMARK, which has only a resourceVersion."""
    meta: dict[str, Any] = {"resourceVersion": str(revision), "creationTimestamp": None}
    if initial_end:
        meta["annotations"] = {"k8s.io/initial-events-end": "true"}
    if form.view is RepresentationKind.TABLE:
        marked = {"kind": resource.kind, "apiVersion": resource.api_version, "metadata": meta}
        rows = [{"cells": [""] * len(_columns_of(resource)), "object": marked}]
        return encode(_build_table(resource, form, rows, {"resourceVersion": str(revision)}))
    if form.view is RepresentationKind.META:
        return encode({"kind": "PartialObjectMetadata", "apiVersion": form.api_version, "metadata": meta})
    return encode({"kind": resource.kind, "apiVersion": resource.api_version, "metadata": meta})


def _columns_of(resource: Resource) -> tuple[Any, ...]:
    return resource.columns or (NAME, AGE)


def _build_table(
    resource: Resource, form: Representation, rows: list[Any], meta: Mapping[str, Any]
) -> dict[str, Any]:
    columns = [
        {
            "name": column.name,
            "type": column.kind,
            "format": column.format,
            "description": column.description or f"{column.name} of the {resource.kind}.",
            "priority": column.priority,
        }
        for column in _columns_of(resource)
    ]
    return {
        "kind": "Table",
        "apiVersion": form.api_version,
        "metadata": meta,
        "columnDefinitions": columns,
        "rows": rows,
    }


def _build_row(record: Record, resource: Resource, form: Representation, now: datetime) -> dict[str, Any]:
    value = decode_with_name(record)
    cells = [_compute_cell(column, value, now) for column in _columns_of(resource)]
    if form.include == "None":
        return {"cells": cells}
    if form.include == "Object":
        return {"cells": cells, "object": convert_to_served(resource, value)}
    return {"cells": cells, "object": _build_partial_metadata(value, form)}


def _compute_cell(column: Column, value: Object, now: datetime) -> Any:
    """Compute a cell. A value of a wrong type shows as unknown, so that the list still works."""
    try:
        return column.cell(value, now)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
        return UNKNOWN


def _build_partial_metadata(value: Object, form: Representation) -> dict[str, Any]:
    return {"kind": "PartialObjectMetadata", "apiVersion": form.api_version, "metadata": value["metadata"]}
