"""The schema of objects: types with fields, read from short text tables, one line a field.

    ServicePort | One port of a Service.
      name string | Names the port.
      port int32 required range=1..65535 | Where clients connect to.
      targetPort intstr | ...

A line without indent begins a type; `kind NAME` one that has apiVersion, kind and metadata. A field's line holds its
name, its type, marks, and after a bar its description. Types are `string int32 int64 bool time microtime quantity
intstr bytes any`, a type's name, and `[]T`, `{}T` (a map from strings) of those. Marks:

    #7                  its number in protobuf (k8s.io/api); #2.7 inside a message that JSON leaves out
    required            must be set               key=a,b   a list that is a map by these fields of its elements
    default=V           value if not set          set       a list without duplicates
    one=A,B             allowed values            atomic    a list or object that is owned and replaced as one
    range=1..65535      allowed numbers           merge=f   strategic merge joins elements by field f (`-`: values)
    like=NAME           a pattern of PATTERNS that the text must match
    max=N               allowed length of text    retain    strategic merge patch knows $retainKeys here
    pointer             a pointer in Go: the empty string is a value, and not "not set"
    named               if missing, the error names the field once more, as Kubernetes' does

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
        "header": r"[A-Za-z0-9!#$%&'*+\-.^_`|~]+",
        "text": r"[^\r\n]+",
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
    one_of: tuple[str, ...] = ()
    range: tuple[int, int] | None = None
    longest: int = 0
    pattern: re.Pattern[str] | None = None
    keys: tuple[str, ...] = ()
    is_set: bool = False
    atomic: bool = False
    merge_key: str = ""
    retain_keys: bool = False
    is_pointer: bool = False
    is_named: bool = False

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
        current = head.split()[-1]
        types[current] = Type(Shape.OBJECT, f"{prefix}.{current}", description.strip())
        if head.startswith("kind ") and meta is not None:
            types[current].fields.update(_header(meta))
    for owner, line in lines:
        found = _read_field(line, {**known, **types}, custom=custom)
        types[owner].fields[found.name] = found
    return types


def _header(meta: Type) -> dict[str, Field]:
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
    low, _, high = values.get("range", "").partition("..")
    kind = _read_type(type_name, types)
    default = values.get("default")
    return Field(
        name,
        kind,
        description.strip(),
        number=next((mark[1:] for mark in marks if mark.startswith("#")), ""),
        required="required" in values,
        default=_read_default(default, kind) if default is not None else None,
        one_of=tuple(values["one"].split(",")) if "one" in values else (),
        range=(int(low), int(high)) if low else None,
        longest=int(values.get("max", 0)),
        pattern=PATTERNS[values["like"]] if "like" in values else None,
        keys=tuple(values["key"].split(",")) if "key" in values else (),
        is_set="set" in values,
        atomic="atomic" in values,
        merge_key=values.get("merge", ""),
        retain_keys="retain" in values,
        is_pointer=custom or "pointer" in values,
        is_named="named" in values,
    )


def _read_type(name: str, types: Mapping[str, Type]) -> Type:
    if name.startswith("[]"):
        return Type(Shape.LIST, element=_read_type(name[2:], types))
    if name.startswith("{}"):
        return Type(Shape.MAP, element=_read_type(name[2:], types))
    return _SCALAR_TYPES.get(name) or types[name]


def _read_default(text: str, kind: Type) -> Any:
    if kind.name in ("int32", "int64"):
        return int(text)
    if kind.name == "bool":
        return text == "true"
    return {} if text == "{}" else text
