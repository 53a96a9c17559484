"""The schema of objects: types with fields, read from short text tables, one line a field.

    ServicePort | One port of a Service.
      name string | Names the port.
      port int32 required range=1..65535 | Where clients connect to.
      targetPort intstr | ...

A line without indent begins a type; `kind NAME` one that has apiVersion, kind and metadata; `NAME < BASE` one that
also has the fields of another type. A field's line holds its name, its type, marks, and after a bar its description.
Types are `string int32 int64 bool time microtime quantity intstr bytes any`, a type's name, and `[]T`, `{}T` (a map
from strings) of those. Marks:

    #7                  its number in protobuf (k8s.io/api); #2.7 inside a message that JSON leaves out
    required            must be set               key=a,b   a list that is a map by these fields of its elements
    default=V           value if not set          set       a list without duplicates
    one=A,B             allowed values            atomic    a list or object that is owned and replaced as one
    range=1..65535      allowed numbers           merge=f   strategic merge joins elements by field f (`-`: values)
    min=N max=N         allowed length of text    retain    strategic merge patch knows $retainKeys here
    like=NAME           a pattern of PATTERNS that the text must match
    items=0..16         allowed number of elements, of a list or map
    pointer             a pointer in Go: the empty string is a value, and not "not set"
    named               if missing, the error names the field once more, as Kubernetes' does

Of a list or map, `one`, `range`, `min`, `max` and `like` bound each element.

OpenAPI documents, validation, defaults, strategic merge and server-side apply all use these types. The marks mean the
same as Kubernetes' x-kubernetes-* extensions (its "API conventions" and KEP-555).
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final

_LABEL: Final = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_SUBDOMAIN: Final = rf"{_LABEL}(\.{_LABEL})*"
PATTERNS: Final[dict[str, re.Pattern[str]]] = {
    name: re.compile(f"^({text})$")
    for name, text in {
        "group": f"|{_SUBDOMAIN}",
        "kind": "[a-zA-Z]([-a-zA-Z0-9]*[a-zA-Z0-9])?",
        "namespace": _LABEL,
        "subdomain": _SUBDOMAIN,
        "host": rf"(\*\.)?{_SUBDOMAIN}",
        "controller": rf"{_SUBDOMAIN}/[A-Za-z0-9/\-._~%!$&'()*+,;=:]+",
        "protocol": rf"[a-zA-Z0-9]([-a-zA-Z0-9]*[a-zA-Z0-9])?|{_SUBDOMAIN}/[A-Za-z0-9]+",
        "address": rf"Hostname|IPAddress|NamedAddress|{_SUBDOMAIN}/[A-Za-z0-9/\-._~%!$&'()*+,;=:]+",
        "authorities": rf"System|{_SUBDOMAIN}/([A-Za-z0-9][-A-Za-z0-9_.]{{0,61}})?[A-Za-z0-9]",
        "qualified": rf"({_SUBDOMAIN}/)?(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])",
        "reason": "[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?",
        "label": "(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?",
        "header": r"[A-Za-z0-9!#$%&'*+\-.^_`|~]+",
        "text": r"[^\r\n]+",
        "path": r"(?:[-A-Za-z0-9/._~!$&'()*+,;=:@]|[%][0-9a-fA-F]{2})+",
        "origin": r"\*|https?://(((\*\.)?([a-zA-Z0-9\-]+\.)*[a-zA-Z0-9-]+|\*)(:([0-9]{1,5}))?)",
        "uri": r"(([^:/?#]+):)(//([^/?#]*))([^?#]*)(\?([^#]*))?(#(.*))?",
        "duration": "([0-9]{1,5}(h|m|s|ms)){1,4}",
    }.items()
}
"""The patterns of the Gateway API's custom resource definitions."""


class Shape(Enum):
    """The JSON type of a value."""

    SCALAR = "scalar"
    OBJECT = "object"
    MAP = "map"
    LIST = "list"
    ANY = "any"


SCALARS: Final = ("string", "int32", "int64", "bool", "time", "microtime", "quantity", "intstr", "bytes")


@dataclass(frozen=True, slots=True, eq=False)
class Type:
    """A type: `fields` of an object, `element` of a list or map. `name` is the full name of an object type."""

    shape: Shape
    name: str = ""
    description: str = ""
    element: "Type | None" = None
    fields: dict[str, "Field"] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class Field:
    """A field of an object, with its marks."""

    name: str
    type: Type
    description: str = ""
    number: str = ""
    required: bool = False
    default: Any = None
    one_of: tuple[Any, ...] = ()
    range: tuple[int, int] | None = None
    items: tuple[int, int] | None = None
    shortest: int = 0
    longest: int = 0
    pattern: re.Pattern[str] | None = None
    keys: tuple[str, ...] = ()
    is_set: bool = False
    atomic: bool = False
    merge_key: str = ""
    retain_keys: bool = False
    is_custom: bool = False
    is_pointer: bool = False
    is_named: bool = False
    is_bounded: bool = False

    @property
    def merges(self) -> bool:
        """Whether a strategic merge patch joins this list's elements instead of replacing the list."""
        return bool(self.merge_key)


_SCALAR_TYPES: Final = {name: Type(Shape.SCALAR, name) for name in SCALARS} | {"any": Type(Shape.ANY, "any")}


def read_types(text: str, prefix: str, known: Mapping[str, Type], *, custom: bool = False) -> dict[str, Type]:
    """Parse a table into types by their short names. `known` are types of other tables that it may use.

    In a custom resource the empty string is a value everywhere.
    """
    types: dict[str, Type] = {}
    lines: list[tuple[str, str]] = []
    current, meta = "", known.get("ObjectMeta")
    for line in filter(str.strip, text.splitlines()):
        if line.startswith("  "):
            lines.append((current, line))
            continue
        head, _, description = line.partition("|")
        named, _, base = head.partition("<")
        current = named.split()[-1]
        types[current] = Type(Shape.OBJECT, f"{prefix}.{current}", description.strip())
        if head.startswith("kind ") and meta is not None:
            types[current].fields.update(_metadata_fields(meta))
        if base:
            lines.append((current, base))
    for owner, line in lines:
        if not line.startswith("  "):
            types[owner].fields.update({**known, **types}[line.strip()].fields)
            continue
        found = _read_field(line, {**known, **types}, custom=custom)
        types[owner].fields[found.name] = found
    return types


def _metadata_fields(meta: Type) -> dict[str, Field]:
    text = _SCALAR_TYPES["string"]
    return {
        "apiVersion": Field("apiVersion", text, "API group and version of the object."),
        "kind": Field("kind", text, "Kind of the object."),
        "metadata": Field("metadata", meta, "Name, labels and other metadata of the object.", default={}),
    }


def _read_field(line: str, types: Mapping[str, Type], *, custom: bool) -> Field:
    head, _, description = line.partition(" | ")
    name, type_name, *marks = head.split()
    values = dict(mark.partition("=")[::2] for mark in marks)
    kind = _read_type(type_name, types)
    default = values.get("default")
    one_of = values["one"].split(",") if "one" in values else ()
    return Field(
        name,
        kind,
        description.strip(),
        number=next((mark[1:] for mark in marks if mark.startswith("#")), ""),
        required="required" in values,
        default=_read_default(default, kind) if default is not None else None,
        one_of=tuple(int(each) if kind.name == "int32" else each for each in one_of),
        range=_read_range(values.get("range")),
        items=_read_range(values.get("items")),
        shortest=int(values.get("min", 0)),
        longest=int(values.get("max", 0)),
        pattern=PATTERNS[values["like"]] if "like" in values else None,
        keys=tuple(values["key"].split(",")) if "key" in values else (),
        is_set="set" in values,
        atomic="atomic" in values,
        merge_key=values.get("merge", ""),
        retain_keys="retain" in values,
        is_custom=custom,
        is_pointer=custom or "pointer" in values,
        is_named="named" in values,
        is_bounded=not _BOUNDS.isdisjoint(values) or (custom and not {"key", "set"}.isdisjoint(values)),
    )


def _read_range(text: str | None) -> tuple[int, int] | None:
    if text is None:
        return None
    low, _, high = text.partition("..")
    return int(low), int(high)


def _read_type(name: str, types: Mapping[str, Type]) -> Type:
    if name.startswith("[]"):
        return Type(Shape.LIST, element=_read_type(name[2:], types))
    if name.startswith("{}"):
        return Type(Shape.MAP, element=_read_type(name[2:], types))
    return _SCALAR_TYPES.get(name) or types[name]


_BOUNDS: Final = frozenset(("one", "range", "items", "min", "max", "like"))


def _read_default(text: str, kind: Type) -> Any:
    if kind.name in ("int32", "int64"):
        return int(text)
    if kind.name == "bool":
        return text == "true"
    return {"{}": {}, "[{}]": [{}]}.get(text, text)
