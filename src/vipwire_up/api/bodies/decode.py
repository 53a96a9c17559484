"""Checks a JSON value against a type: unknown fields, wrong types, missing values; fills in defaults.

There are three outcomes, as in Kubernetes: a value of a wrong type makes the body unreadable (400), unknown fields
are dropped and reported as `fieldValidation` asks, and values that are missing or out of range are causes of a 422.
null and the empty string of an enumeration mean "not set".

A value that an update leaves unchanged (`old`) is checked for its type only, so that objects stored under looser
rules can still be changed, like Kubernetes' ratcheting validation.
"""

import base64
import binascii
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from itertools import zip_longest
from typing import Any, Final

from vipwire.model.times import time_or_none
from vipwire_up.api.objects.errors import (
    Cause,
    bad_request,
    duplicate,
    invalid,
    required,
    too_long,
    too_many,
    unsupported,
)
from vipwire_up.api.objects.quantity import PATTERN, read_quantity, write_quantity
from vipwire_up.api.objects.schema import Field, Shape, Type

_TIME: Final = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,9}\d*)?(Z|[+-]\d\d:\d\d)")
_NUMBERS: Final = {"int32": 1 << 31, "int64": 1 << 63}


@dataclass(slots=True)
class Findings:
    """The findings about a body: unknown fields, and errors in known ones."""

    unknown: list[str] = field(default_factory=list)
    causes: list[Cause] = field(default_factory=list)


def decode(value: Any, kind: Type, findings: Findings, path: str = "", old: Any = None) -> Any:
    """Copy a value by its type: without unknown fields and nulls, with defaults. Raise ApiError 400.

    `old` is the stored value in its place, None for nothing.
    """
    if kind.shape is Shape.OBJECT:
        return _decode_object(value, kind, findings, path, old if isinstance(old, dict) else None)
    if kind.shape is Shape.LIST and kind.element is not None:
        if not isinstance(value, list):
            raise _type_mismatch_error(value, path, "a list")
        element = kind.element
        pairs = enumerate(zip_longest(value, old[: len(value)] if isinstance(old, list) else ()))
        return [decode(part, element, findings, f"{path}[{i}]", was) for i, (part, was) in pairs if part is not None]
    if kind.shape is Shape.MAP and kind.element is not None:
        if not isinstance(value, dict):
            raise _type_mismatch_error(value, path, "a map")
        element, before = kind.element, old if isinstance(old, dict) else {}
        return {
            key: decode(part, element, findings, f"{path}[{key}]", before.get(key))
            for key, part in value.items()
            if part is not None
        }
    return value if kind.shape is Shape.ANY else _decode_scalar(value, kind.name, path, old)


def _decode_object(value: Any, kind: Type, findings: Findings, path: str, old: Mapping[str, Any] | None) -> Any:
    if not isinstance(value, dict):
        raise _type_mismatch_error(value, path, kind.name.rpartition(".")[2])
    result, prefix, before = {}, f"{path}." if path else "", old or {}
    for name, part in value.items():
        known = kind.fields.get(name)
        if known is None:
            if name not in before:
                findings.unknown.append(f"{prefix}{name}")
        elif part is not None and not (part == "" and _may_be_empty(known)):
            result[name] = decode(part, known.type, findings, f"{prefix}{name}", before.get(name))
            if not result[name] and known.type.element and not known.required and not known.is_custom:
                del result[name]  # Go's omitempty drops empty lists and maps
                continue
            if known.is_bounded and part != before.get(name):
                _check_field(result[name], known, findings, f"{prefix}{name}")
    for name, known in _required_fields(kind):
        if name not in result:
            _fill_missing_field(result, known, findings, f"{prefix}{name}", needed=old is None or name in before)
    return result


@cache
def _required_fields(kind: Type) -> tuple[tuple[str, Field], ...]:
    return tuple(each for each in kind.fields.items() if each[1].default is not None or each[1].required)


def _may_be_empty(known: Field) -> bool:
    """Report whether the empty string means "not set" for this field."""
    return known.type.name == "string" and not known.is_pointer and bool(known.one_of or known.default)


def _fill_missing_field(result: dict[str, Any], known: Field, findings: Findings, path: str, *, needed: bool) -> None:
    if known.default is not None:
        is_scalar = known.type.shape is Shape.SCALAR
        result[known.name] = known.default if is_scalar else decode(known.default, known.type, findings, path)
    elif known.required and needed and known.range and known.range[0] > 0 and not known.is_custom:
        # Go's zero value is out of range
        _check_field(0, known, findings, path)
    elif known.required and needed:
        findings.causes.append(required(path, f"{known.name} must be specified" if known.is_named else ""))


def _check_field(value: Any, known: Field, findings: Findings, path: str) -> None:
    if known.items and not known.items[0] <= len(value) <= known.items[1]:
        low, high = known.items
        few = invalid(path, len(value), f"should have at least {low} items")
        findings.causes.append(few if len(value) < low else too_many(path, len(value), high))
    if known.type.shape is Shape.LIST:
        if known.is_custom and (known.keys or known.is_set):
            findings.causes.extend(_find_repeated_elements(value, known, path))
        for index, part in enumerate(value):
            _check_value(part, known, findings, f"{path}[{index}]")
    elif known.type.shape is Shape.MAP:
        for key, part in value.items():
            _check_value(part, known, findings, f"{path}[{key}]")
    else:
        _check_value(value, known, findings, path)


def _find_repeated_elements(value: list[Any], known: Field, path: str) -> Iterator[Cause]:
    seen: set[str] = set()
    for index, part in enumerate(value):
        key = {name: part.get(name) for name in known.keys} if known.keys else part
        if (text := json.dumps(key)) in seen:
            yield duplicate(f"{path}[{index}]", key)
        seen.add(text)


def _check_value(value: Any, known: Field, findings: Findings, path: str) -> None:
    if known.one_of and value not in known.one_of:
        findings.causes.append(unsupported(path, value, known.one_of))
    if known.range and isinstance(value, int) and not known.range[0] <= value <= known.range[1]:
        low, high = known.range
        if high >= _NUMBERS["int32"] - 1:
            detail = f"must be greater than or equal to {low}"
        else:
            detail = f"must be between {low} and {high}, inclusive"
        findings.causes.append(invalid(path, value, detail))
    if not isinstance(value, str):
        return
    if len(value) < known.shortest:
        findings.causes.append(invalid(path, value, f"should be at least {known.shortest} chars long"))
    if known.longest and len(value) > known.longest:
        findings.causes.append(too_long(path, known.longest))
    if known.pattern and not known.pattern.fullmatch(value):
        findings.causes.append(invalid(path, value, f"should match '{known.pattern.pattern}'"))


def _decode_scalar(value: Any, name: str, path: str, old: Any) -> Any:
    if name in _NUMBERS:
        if isinstance(value, bool) or not isinstance(value, int) or not -_NUMBERS[name] <= value < _NUMBERS[name]:
            raise _type_mismatch_error(value, path, name)
        return value
    if name == "bool":
        if not isinstance(value, bool):
            raise _type_mismatch_error(value, path, "bool")
        return value
    if name in ("intstr", "quantity") and isinstance(value, int | float) and not isinstance(value, bool):
        return _decode_number(value, name, path)
    if not isinstance(value, str):
        raise _type_mismatch_error(value, path, "string" if name in ("time", "microtime", "bytes") else name)
    if value == old:
        return value
    _check_string_format(value, name, path)
    return write_quantity(value) if name == "quantity" else value


def _decode_number(value: float, name: str, path: str) -> int | str:
    if name == "quantity":
        _check_string_format(str(value), name, path)
        return write_quantity(str(value))
    limit = _NUMBERS["int32"]
    if value != int(value) or not -limit <= value < limit:
        raise _type_mismatch_error(value, path, "int32")
    return int(value)


def _check_string_format(value: str, format_: str, path: str) -> None:
    if format_ in ("time", "microtime"):
        if value and (not _TIME.fullmatch(value) or time_or_none(value) is None):
            raise bad_request(f"{path}: parsing time {json.dumps(value[:64])}: not a time as RFC 3339 has it")
    elif format_ == "quantity" and read_quantity(value) is None:
        raise bad_request(f"{path}: quantities must match the regular expression '{PATTERN.pattern}'")
    elif format_ == "bytes":
        try:
            base64.b64decode(value, validate=True)
        except (binascii.Error, ValueError):
            raise bad_request(f"{path}: illegal base64 data") from None


def _type_mismatch_error(value: Any, path: str, wanted: str) -> Exception:
    found = {bool: "bool", str: "string", list: "array", dict: "object"}.get(type(value), "number")
    return bad_request(f"json: cannot unmarshal {found} into field {path or '.'} of type {wanted}")
