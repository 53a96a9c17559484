"""The document of OpenAPI 2 in protobuf, which kubectl asks for: numbers of its fields, and a writer of the format.

The messages are those of gnostic's openapiv2/OpenAPIv2.proto. A message is described as JSON name -> (number, what),
where what is `s` for text, another message's name, `[]` repeated, `{}` a map as repeated pairs. Extensions (x-...)
are repeated pairs of a name and an Any, whose second field holds YAML; JSON is YAML too.

kubectl asks for the media type with an `@`, which is none by RFC 2045: Go cannot parse it in an answer, so that the
answer has a dot there, as kube-apiserver's has.
"""

from collections.abc import Mapping
from functools import cache
from typing import Any, Final

from vipwire_up.api.objects.object import encode
from vipwire_up.api.openapi.documents import document_v2

MEDIA_TYPE: Final = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf"

_MESSAGES: Final[dict[str, dict[str, tuple[int, str]]]] = {
    "Document": {
        "swagger": (1, "s"),
        "info": (2, "Info"),
        "paths": (8, "Paths"),
        "definitions": (9, "{}Schema"),
    },
    "Info": {"title": (1, "s"), "version": (2, "s")},
    "PathItem": {
        "get": (2, "Operation"),
        "put": (3, "Operation"),
        "post": (4, "Operation"),
        "delete": (5, "Operation"),
        "patch": (8, "Operation"),
        "x-": (10, ""),
    },
    "Operation": {
        "description": (3, "s"),
        "operationId": (5, "s"),
        "produces": (6, "[]s"),
        "consumes": (7, "[]s"),
        "parameters": (8, "[]Parameter"),
        "responses": (9, "Responses"),
        "x-": (13, ""),
    },
    "Query": {"in": (2, "s"), "description": (3, "s"), "name": (4, "s"), "type": (6, "s"), "x-": (23, "")},
    "Response": {"description": (1, "s")},
    "Schema": {
        "$ref": (1, "s"),
        "format": (2, "s"),
        "description": (4, "s"),
        "default": (5, "Any"),
        "required": (19, "[]s"),
        "enum": (20, "[]Any"),
        "additionalProperties": (21, "Additional"),
        "type": (22, "TypeItem"),
        "items": (23, "Items"),
        "properties": (25, "{}Schema"),
        "x-": (31, ""),
    },
}


@cache
def document_proto() -> bytes:
    """Write the whole document."""
    return _message("Document", document_v2())


def _message(name: str, value: Mapping[str, Any]) -> bytes:
    fields = _MESSAGES[name]
    parts = []
    for key, part in value.items():
        if key in fields:
            number, what = fields[key]
            parts.append(_field(number, what, part))
        elif key.startswith("x-") and "x-" in fields:
            parts.append(_bytes(fields["x-"][0], _pair(key, _any(part))))
    return b"".join(parts)


def _field(number: int, what: str, value: Any) -> bytes:
    if what.startswith("[]"):
        return b"".join(_field(number, what[2:], part) for part in value)
    if what.startswith("{}"):
        pairs = (_bytes(1, _pair(key, _value(what[2:], part))) for key, part in value.items())
        return _bytes(number, b"".join(pairs))
    return _bytes(number, _value(what, value))


def _value(what: str, value: Any) -> bytes:  # noqa: PLR0911  # one return for each message that is no plain one
    match what:
        case "s":
            return str(value).encode()
        case "Any":
            return _any(value)
        case "Additional" | "Items":  # a oneof whose first choice is a schema; a list of one schema
            return _bytes(1, _message("Schema", value))
        case "TypeItem":
            return _bytes(1, value.encode())
        case "Paths":
            return b"".join(_bytes(2, _pair(key, _message("PathItem", part))) for key, part in value.items())
        case "Responses":  # pairs of a code and a oneof, whose first choice is a response
            codes = ((key, _bytes(1, _message("Response", part))) for key, part in value.items())
            return b"".join(_bytes(1, _pair(key, part)) for key, part in codes)
        case "Parameter":  # a parameter, not of the body, in the query: oneofs within each other
            return _bytes(1, _bytes(2, _bytes(3, _message("Query", value))))
    return _message(what, value)


def _pair(name: str, value: bytes) -> bytes:
    return _bytes(1, name.encode()) + _bytes(2, value)


def _any(value: Any) -> bytes:
    return _bytes(2, encode(value) + b"\n")


def _bytes(number: int, value: bytes) -> bytes:
    """Write a field of the wire type 2: a tag, a length, and so many bytes."""
    return _varint(number << 3 | 2) + _varint(len(value)) + value


def _varint(number: int) -> bytes:
    result = bytearray()
    while number > 0x7F:
        result.append(number & 0x7F | 0x80)
        number >>= 7
    result.append(number)
    return bytes(result)
