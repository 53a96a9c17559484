"""The OpenAPI documents: version 2 for all groups, version 3 for each group and version.

kubectl explains and validates by them, and looks at operations for the parameters fieldValidation and dryRun. It asks
for version 2 in protobuf (gnostic's openapiv2/OpenAPIv2.proto), with an `@` in the media type, which RFC 2045
forbids: Go cannot parse that in an answer, so the answer has a dot there, like kube-apiserver's.
"""

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from typing import Any, Final

from vipwire_up.api.answers.discovery import build_version, list_subresources, resources_by_base_path
from vipwire_up.api.kinds.catalogue import SERVED
from vipwire_up.api.kinds.meta import META
from vipwire_up.api.objects.object import encode
from vipwire_up.api.objects.resource import Resource
from vipwire_up.api.objects.schema import Field, Shape, Type

_FORMATS: Final[dict[str, dict[str, Any]]] = {
    "string": {"type": "string"},
    "int32": {"type": "integer", "format": "int32"},
    "int64": {"type": "integer", "format": "int64"},
    "bool": {"type": "boolean"},
    "time": {"type": "string", "format": "date-time"},
    "microtime": {"type": "string", "format": "date-time"},
    "bytes": {"type": "string", "format": "byte"},
    "any": {"type": "object"},
}
_NAMED: Final = {
    "intstr": "io.k8s.apimachinery.pkg.util.intstr.IntOrString",
    "quantity": "io.k8s.apimachinery.pkg.api.resource.Quantity",
}
_PATCHES: Final = (
    "application/json-patch+json",
    "application/merge-patch+json",
    "application/strategic-merge-patch+json",
    "application/apply-patch+yaml",
)
_LIST_PARAMETERS: Final = (
    "allowWatchBookmarks:boolean", "continue:string", "fieldSelector:string", "labelSelector:string", "limit:integer",
    "resourceVersion:string", "resourceVersionMatch:string", "sendInitialEvents:boolean", "timeoutSeconds:integer",
    "watch:boolean",
)  # fmt: skip
_WRITE_PARAMETERS: Final = ("dryRun:string", "fieldManager:string", "fieldValidation:string")
_DELETE_PARAMETERS: Final = ("dryRun:string", "gracePeriodSeconds:integer", "propagationPolicy:string")
_LIST_META: Final = "io.k8s.apimachinery.pkg.apis.meta.v1.ListMeta"


@cache
def build_document_v2() -> dict[str, Any]:
    info = {"title": "vipwire", "version": build_version()["gitVersion"]}
    return {
        "swagger": "2.0",
        "info": info,
        "paths": dict(_build_paths(SERVED, 2)),
        "definitions": _build_schemas(SERVED, "#/definitions/", 2),
    }


@cache
def build_document_v3(base: str) -> bytes:
    resources = resources_by_base_path()[base]
    return encode(
        {
            "openapi": "3.0.0",
            "info": {"title": "vipwire", "version": build_version()["gitVersion"]},
            "paths": dict(_build_paths(resources, 3)),
            "components": {"schemas": _build_schemas(resources, "#/components/schemas/", 3)},
        }
    )


@cache
def build_index_v3() -> bytes:
    """Build the index of the version 3 documents, with a hash in each URL so that clients can cache them."""
    paths = {}
    for base in resources_by_base_path():
        digest = hashlib.sha256(build_document_v3(base)).hexdigest().upper()
        paths[base.strip("/")] = {"serverRelativeURL": f"/openapi/v3{base}?hash={digest}"}
    return encode({"paths": paths})


def _build_schemas(resources: Iterable[Resource], base: str, document: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    kinds = {resource.type.name: resource for resource in resources}
    for resource in kinds.values():
        _collect_schemas(resource.type, found, base, document)
        found[resource.type.name]["x-kubernetes-group-version-kind"] = [_group_version_kind(resource)]
        found[f"{resource.type.name}List"] = _build_list_schema(resource, base)
    _collect_schemas(META["ObjectMeta"], found, base, document)
    text = {"description": "A quantity, such as 100m or 2Gi.", "type": "string"}
    found[_NAMED["quantity"]] = text
    found[_NAMED["intstr"]] = _build_int_or_string(document)
    number = {"type": "integer", "format": "int64"}
    properties = {"continue": _FORMATS["string"], "remainingItemCount": number, "resourceVersion": _FORMATS["string"]}
    found[_LIST_META] = {"description": "Metadata of every list.", "type": "object", "properties": properties}
    return dict(sorted(found.items()))


def _build_int_or_string(document: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"description": "A number or a name.", "format": "int-or-string"}
    either = [{"type": "integer"}, {"type": "string"}]
    return schema | ({"type": "string"} if document == 2 else {"oneOf": either})


def _collect_schemas(kind: Type, found: dict[str, Any], base: str, document: int) -> None:
    if kind.element is not None:
        _collect_schemas(kind.element, found, base, document)
    if kind.shape is not Shape.OBJECT or kind.name in found:
        return
    schema: dict[str, Any] = {"description": kind.description, "type": "object"}
    found[kind.name] = schema
    if required := [field.name for field in kind.fields.values() if field.required]:
        schema["required"] = required
    schema["properties"] = {
        name: _build_property(field, base, document) for name, field in sorted(kind.fields.items())
    }
    for field in kind.fields.values():
        _collect_schemas(field.type, found, base, document)


def _build_property(field: Field, base: str, document: int) -> dict[str, Any]:
    schema = dict(_build_reference(field.type, base))
    if "$ref" in schema and document == 3:
        schema = {"allOf": [schema]}
    schema["description"] = field.description
    if field.default is not None:
        schema["default"] = field.default
    if field.one_of and field.type.shape is Shape.LIST:
        schema["items"] = schema["items"] | {"enum": list(field.one_of)}
    elif field.one_of:
        schema["enum"] = list(field.one_of)
    if field.type.shape is Shape.LIST:
        schema["x-kubernetes-list-type"] = "map" if field.keys else "set" if field.is_set else "atomic"
        if field.keys:
            schema["x-kubernetes-list-map-keys"] = list(field.keys)
    elif field.atomic:
        schema["x-kubernetes-map-type"] = "atomic"
    if field.merge_key:
        schema["x-kubernetes-patch-strategy"] = "merge,retainKeys" if field.retain_keys else "merge"
        if field.merge_key != "-":
            schema["x-kubernetes-patch-merge-key"] = field.merge_key
    return schema


def _build_reference(kind: Type, base: str) -> dict[str, Any]:
    if kind.shape is Shape.OBJECT:
        return {"$ref": f"{base}{kind.name}"}
    if kind.shape is Shape.LIST and kind.element:
        return {"type": "array", "items": _build_reference(kind.element, base)}
    if kind.shape is Shape.MAP and kind.element:
        return {"type": "object", "additionalProperties": _build_reference(kind.element, base)}
    if kind.name in _NAMED:
        return {"$ref": f"{base}{_NAMED[kind.name]}"}
    return _FORMATS[kind.name]


def _build_list_schema(resource: Resource, base: str) -> dict[str, Any]:
    gvk = _group_version_kind(resource) | {"kind": f"{resource.kind}List"}
    return {
        "description": f"A list of {resource.kind} objects.",
        "type": "object",
        "required": ["items"],
        "properties": {
            "apiVersion": _FORMATS["string"],
            "items": {"type": "array", "items": {"$ref": f"{base}{resource.type.name}"}},
            "kind": _FORMATS["string"],
            "metadata": {"$ref": f"{base}{_LIST_META}"},
        },
        "x-kubernetes-group-version-kind": [gvk],
    }


def _group_version_kind(resource: Resource) -> dict[str, str]:
    return {"group": resource.group, "kind": resource.kind, "version": resource.version}


def _build_paths(resources: Iterable[Resource], document: int) -> Iterator[tuple[str, dict[str, Any]]]:
    for resource in resources:
        many = f"{resource.base}/{resource.plural}"
        if resource.namespaced:
            yield many, _build_path_item(resource, ("list",), document)
            many = f"{resource.base}/namespaces/{{namespace}}/{resource.plural}"
        collection = ("list", "post", *(("deletecollection",) if resource.deletes_many else ()))
        yield many, _build_path_item(resource, collection, document)
        yield f"{many}/{{name}}", _build_path_item(resource, ("get", "put", "patch", "delete"), document)
        for name, _ in list_subresources(resource):
            yield f"{many}/{{name}}/{name}", _build_path_item(resource, ("get", "put", "patch"), document)


def _build_path_item(resource: Resource, actions: Iterable[str], document: int) -> dict[str, Any]:
    methods = {"list": "get", "deletecollection": "delete"}
    return {methods.get(action, action): _build_operation(resource, action, document) for action in actions}


def _build_operation(resource: Resource, action: str, document: int) -> dict[str, Any]:
    names = _parameter_names(action)
    parameters = []
    for name, kind in (entry.split(":") for entry in names):
        typed = {"type": kind} if document == 2 else {"schema": {"type": kind}}
        parameters.append({"name": name, "in": "query", **typed})
    operation: dict[str, Any] = {
        "description": f"{action} {resource.kind}",
        "parameters": parameters,
        "responses": {"200": {"description": "OK"}},
        "x-kubernetes-action": action,
        "x-kubernetes-group-version-kind": _group_version_kind(resource),
    }
    if document == 2:
        operation |= {"produces": ["application/json"], "consumes": list(_PATCHES) if action == "patch" else ["*/*"]}
    elif action in ("post", "put", "patch"):
        media = _PATCHES if action == "patch" else ("*/*",)
        schema = {"schema": {"$ref": f"#/components/schemas/{resource.type.name}"}}
        operation["requestBody"] = {"content": dict.fromkeys(media, schema), "required": True}
    return operation


def _parameter_names(action: str) -> tuple[str, ...]:
    if action == "list":
        return _LIST_PARAMETERS
    if action in ("delete", "deletecollection"):
        return _DELETE_PARAMETERS
    return () if action == "get" else (*_WRITE_PARAMETERS, *(("force:boolean",) if action == "patch" else ()))


PROTOBUF: Final = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf"

_MESSAGES: Final[dict[str, dict[str, tuple[int, str]]]] = {
    name: {key: (int(number), what) for key, number, what in (field.split(":") for field in fields)}
    for name, *fields in map(
        str.split,
        """
Document swagger:1:s info:2:Info paths:8:Paths definitions:9:{}Schema
Info title:1:s version:2:s
PathItem get:2:Operation put:3:Operation post:4:Operation delete:5:Operation patch:8:Operation x-:10:
Operation description:3:s operationId:5:s produces:6:[]s consumes:7:[]s parameters:8:[]Parameter \
responses:9:Responses x-:13:
Query in:2:s description:3:s name:4:s type:6:s x-:23:
Response description:1:s
Schema $ref:1:s format:2:s description:4:s default:5:Any required:19:[]s enum:20:[]Any \
additionalProperties:21:Additional type:22:TypeItem items:23:Items properties:25:{}Schema x-:31:
""".strip().splitlines(),
    )
}
"""Fields by message: the number, and `s` for text, another message, `[]` repeated, `{}` a map as repeated pairs.

Extensions (x-...) are repeated pairs of a name and an Any, whose second field holds YAML; JSON is YAML too.
"""


@cache
def encode_document_proto() -> bytes:
    return _encode_message("Document", build_document_v2())


def _encode_message(name: str, value: Mapping[str, Any]) -> bytes:
    fields = _MESSAGES[name]
    parts = []
    for key, part in value.items():
        if key in fields:
            number, what = fields[key]
            parts.append(_encode_field(number, what, part))
        elif key.startswith("x-") and "x-" in fields:
            parts.append(_encode_bytes(fields["x-"][0], _encode_pair(key, _encode_any(part))))
    return b"".join(parts)


def _encode_field(number: int, what: str, value: Any) -> bytes:
    if what.startswith("[]"):
        return b"".join(_encode_field(number, what[2:], part) for part in value)
    if what.startswith("{}"):
        pairs = (_encode_bytes(1, _encode_pair(key, _encode_value(what[2:], part))) for key, part in value.items())
        return _encode_bytes(number, b"".join(pairs))
    return _encode_bytes(number, _encode_value(what, value))


def _encode_value(what: str, value: Any) -> bytes:  # noqa: PLR0911  # one return for each message that is no plain one
    match what:
        case "s":
            return str(value).encode()
        case "Any":
            return _encode_any(value)
        case "Additional" | "Items":  # a oneof whose first choice is a schema; a list of one schema
            return _encode_bytes(1, _encode_message("Schema", value))
        case "TypeItem":
            return _encode_bytes(1, value.encode())
        case "Paths":
            return b"".join(
                _encode_bytes(2, _encode_pair(key, _encode_message("PathItem", part))) for key, part in value.items()
            )
        case "Responses":  # pairs of a code and a oneof, whose first choice is a response
            codes = ((key, _encode_bytes(1, _encode_message("Response", part))) for key, part in value.items())
            return b"".join(_encode_bytes(1, _encode_pair(key, part)) for key, part in codes)
        case "Parameter":  # a non-body parameter in the query: nested oneofs
            return _encode_bytes(1, _encode_bytes(2, _encode_bytes(3, _encode_message("Query", value))))
    return _encode_message(what, value)


def _encode_pair(name: str, value: bytes) -> bytes:
    return _encode_bytes(1, name.encode()) + _encode_bytes(2, value)


def _encode_any(value: Any) -> bytes:
    return _encode_bytes(2, encode(value) + b"\n")


def _encode_bytes(number: int, value: bytes) -> bytes:
    return _encode_varint(number << 3 | 2) + _encode_varint(len(value)) + value


def _encode_varint(number: int) -> bytes:
    result = bytearray()
    while number > 0x7F:
        result.append(number & 0x7F | 0x80)
        number >>= 7
    result.append(number)
    return bytes(result)
