"""Decodes Kubernetes' protobuf, which Go clients send for built-in kinds, into the same form as JSON.

    "k8s" 0x00 Unknown{ typeMeta{apiVersion, kind}, raw: the object }   (apimachinery/pkg/runtime/generated.proto)

The tables of types have the field numbers; `2.5` is field 5 of the message in field 2, a message that JSON leaves
out. Go writes zero for many unset proto2 fields: zeros are dropped, unless the field is required or is a pointer in
Go. Answers are JSON, which every client that sends protobuf accepts.
"""

import base64
import json
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from functools import cache
from typing import Any, Final

from vipwire.kube.errors import ApiError
from vipwire_up.api.objects.errors import bad_request
from vipwire_up.api.objects.schema import Field, Shape, Type

MEDIA_TYPE: Final = "application/vnd.kubernetes.protobuf"
_MAGIC: Final = b"k8s\x00"
_MOST_DEEP: Final = 50
_POINTERS: Final = frozenset(
    {
        "allocateLoadBalancerNodePorts", "automountServiceAccountToken", "blockOwnerDeletion", "controller",
        "deletionGracePeriodSeconds", "enableServiceLinks", "gracePeriodSeconds", "hostUsers", "immutable",
        "initialDelaySeconds", "orphanDependents", "priority", "ready", "serving", "setHostnameAsFQDN",
        "shareProcessNamespace", "started", "terminating", "terminationGracePeriodSeconds",
    }
)  # fmt: skip
"""Fields whose zero has a meaning."""


class _MalformedProtobufError(Exception):
    """The bytes are not protobuf, or not of the type."""


def decode_body(body: bytes, types: Mapping[str, Type]) -> Any:
    """Decode an object of one of the types, by their kinds. Raise ApiError 400."""
    try:
        return _unpack_envelope(body, types)
    except (_MalformedProtobufError, UnicodeDecodeError, IndexError, OverflowError) as error:
        raise bad_request(f"the body of the request cannot be read as protobuf: {error}") from None


def _unpack_envelope(body: bytes, types: Mapping[str, Type]) -> dict[str, Any]:
    if not body.startswith(_MAGIC):
        raise _MalformedProtobufError("does not begin with k8s and a zero")
    outer = dict(_split_fields(body[len(_MAGIC) :]))
    meta = {
        number: _require_bytes(part).decode() for number, part in _split_fields(_require_bytes(outer.get(1, b"")))
    }
    kind = meta.get(2, "")
    if kind not in types:
        raise _MalformedProtobufError(f"kind {kind!r} is not served here")
    return {"apiVersion": meta.get(1, ""), "kind": kind} | _decode_message(
        _require_bytes(outer.get(2, b"")), types[kind], 0
    )


@cache
def fields_by_number(kind: Type) -> dict[int, Field | dict[int, Field]]:
    """Return the fields of a type by number; numbers with a dot form a nested table."""
    found: dict[int, Any] = {}
    for field in kind.fields.values():
        if field.number:
            outer, _, inner = field.number.partition(".")
            if inner:
                found.setdefault(int(outer), {})[int(inner)] = field
            else:
                found[int(outer)] = field
    if "metadata" in kind.fields:
        found[1] = kind.fields["metadata"]
    return found


def _decode_message(body: bytes, kind: Type, depth: int) -> dict[str, Any]:
    if depth > _MOST_DEEP:
        raise _MalformedProtobufError("nested too deeply")
    result: dict[str, Any] = {}
    numbers = fields_by_number(kind)
    for number, part in _split_fields(body):
        known = numbers.get(number)
        if isinstance(known, dict):
            for inner, value in _split_fields(_require_bytes(part)):
                if inner in known:
                    _decode_field(result, known[inner], value, depth)
        elif known is not None:
            _decode_field(result, known, part, depth)
    return result


def _decode_field(result: dict[str, Any], field: Field, part: int | bytes, depth: int) -> None:
    kind = field.type
    if kind.shape is Shape.LIST and kind.element is not None:
        result.setdefault(field.name, []).append(_decode_value(part, kind.element, field.name, depth))
    elif kind.shape is Shape.MAP and kind.element is not None:
        pair = dict(_split_fields(_require_bytes(part)))
        name = _require_bytes(pair.get(1, b"")).decode()
        result.setdefault(field.name, {})[name] = _decode_value(pair.get(2, b""), kind.element, field.name, depth)
    else:
        value = _decode_value(part, kind, field.name, depth)
        if value not in ("", 0, None) or field.required or (field.name in _POINTERS and value is not None):
            result[field.name] = value


def _decode_value(part: int | bytes, kind: Type, name: str, depth: int) -> Any:  # noqa: PLR0911  # one for each form
    if kind.shape is Shape.OBJECT:
        return _decode_message(_require_bytes(part), kind, depth + 1)
    if kind.shape is Shape.ANY:
        return _decode_opaque_message(_require_bytes(part), name)
    match kind.name:
        case "bool":
            return bool(_require_number(part))
        case "int32" | "int64":
            return _convert_to_signed(_require_number(part))
        case "bytes":
            return base64.b64encode(_require_bytes(part)).decode()
        case "time" | "microtime":
            return _decode_time(_require_bytes(part), micro=kind.name == "microtime")
        case "quantity":
            return _require_bytes(dict(_split_fields(_require_bytes(part))).get(1, b"")).decode()
        case "intstr":
            found = dict(_split_fields(_require_bytes(part)))
            return (
                _require_bytes(found.get(3, b"")).decode()
                if found.get(1)
                else _convert_to_signed(_require_number(found.get(2, 0)))
            )
    return _require_bytes(part).decode()


def _decode_opaque_message(body: bytes, name: str) -> Any:
    """Decode values that this server does not look into: fieldsV1, which holds JSON, and empty messages."""
    if name == "fieldsV1":
        try:
            return json.loads(_require_bytes(dict(_split_fields(body)).get(1, b"{}")))
        except ValueError:
            raise _MalformedProtobufError("fieldsV1 holds no JSON") from None
    if body:
        raise ApiError(415, "UnsupportedMediaType", f"field {name} is not read from protobuf here; send JSON")
    return {}


def _decode_time(body: bytes, *, micro: bool) -> str | None:
    found = dict(_split_fields(body))
    seconds, nanos = _convert_to_signed(_require_number(found.get(1, 0))), _require_number(found.get(2, 0))
    if not found:
        return None
    try:
        moment = datetime.fromtimestamp(seconds, UTC)
    except (OverflowError, OSError, ValueError):
        raise _MalformedProtobufError("a time is out of range") from None
    fraction = f".{nanos // 1000:06d}" if micro else ""
    return f"{moment:%Y-%m-%dT%H:%M:%S}{fraction}Z"


def _split_fields(body: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Split a message into field numbers and values: an int for a varint, else bytes."""
    at = 0
    while at < len(body):
        tag, at = _read_varint(body, at)
        match tag & 7:
            case 0:
                number, at = _read_varint(body, at)
                yield tag >> 3, number
            case 2:
                size, at = _read_varint(body, at)
                if at + size > len(body):
                    raise _MalformedProtobufError("ends early")
                yield tag >> 3, body[at : at + size]
                at += size
            case 1 | 5:
                at += 8 if tag & 7 == 1 else 4  # no field here is a float
            case kind:
                raise _MalformedProtobufError(f"wire type {kind}")


def _read_varint(body: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        if at >= len(body) or shift > 63:
            raise _MalformedProtobufError("ends early")
        byte = body[at]
        number |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return number, at


def _require_bytes(part: int | bytes) -> bytes:
    if isinstance(part, int):
        raise _MalformedProtobufError("a number where text is expected")
    return part


def _require_number(part: int | bytes) -> int:
    if isinstance(part, bytes):
        raise _MalformedProtobufError("text where a number is expected")
    return part


def _convert_to_signed(number: int) -> int:
    return number - (1 << 64) if number >= 1 << 63 else number
