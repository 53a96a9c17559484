"""The fields of an object as a set of paths, which server-side apply works on. Pure.

A path is a tuple of elements as `fieldsV1` writes them: `f:NAME` a field or a key of a map, `k:{...}` an element of a
list by its keys, `v:...` a value of a set. Atomic and empty lists and objects are members themselves. An element of a
list is a member besides its fields, because it can exist without them.
"""

import json
from collections.abc import Iterable, Iterator
from typing import Any, Final, TypeAlias

from vipwire_up.api.objects.schema import Field, Shape, Type

Path: TypeAlias = tuple[str, ...]
Paths: TypeAlias = frozenset[Path]

_UNOWNED_META: Final = (
    "name", "namespace", "uid", "resourceVersion", "generation", "creationTimestamp", "selfLink", "managedFields",
    "deletionTimestamp", "deletionGracePeriodSeconds",
)  # fmt: skip
UNOWNED: Final[frozenset[Path]] = frozenset(
    {("f:apiVersion",), ("f:kind",)} | {("f:metadata", f"f:{name}") for name in _UNOWNED_META}
)
"""Paths that the server keeps and no manager owns."""


def members(value: Any, kind: Type, *, whole: bool = False) -> dict[Path, Any]:
    """Return the paths of an object that managers can own, with their values (None for elements of lists).

    `whole` includes maps and lists that are not empty: an update that creates one owns it.
    """
    found: dict[Path, Any] = {}
    for name, part in value.items():
        known = kind.fields.get(name)
        if known is not None and (f"f:{name}",) not in UNOWNED:
            found.update(_members(part, known, (f"f:{name}",), whole))
    return {path: part for path, part in found.items() if path[:2] not in UNOWNED and path != ("f:metadata",)}


def _members(value: Any, known: Field, path: Path, whole: bool) -> Iterator[tuple[Path, Any]]:  # noqa: FBT001 - as its callers'
    kind = known.type
    if known.default == value == {} and kind.shape is Shape.OBJECT:
        return  # every object of the kind has this part
    if known.atomic or not value or kind.shape in (Shape.ANY, Shape.SCALAR):
        yield path, value
        return
    if whole and kind.element:
        yield path, None
    if isinstance(value, dict):
        for name, part in value.items():
            inner = Field(name, kind.element) if kind.element else kind.fields.get(name)
            if inner is not None:
                yield from _members(part, inner, (*path, f"f:{name}"), whole)
    elif known.is_set:
        yield from (((*path, f"v:{compact(part)}"), None) for part in value)
    elif known.keys and kind.element is not None:
        for part in value:
            key = (*path, f"k:{compact(element_key(part, known))}")
            yield from _element_members(part, kind.element, key, whole)
    else:
        yield path, value


def _element_members(value: Any, kind: Type, path: Path, whole: bool) -> Iterator[tuple[Path, Any]]:  # noqa: FBT001
    yield path, None
    for name, part in value.items():
        if name in kind.fields:
            yield from _members(part, kind.fields[name], (*path, f"f:{name}"), whole)


def element_key(value: Any, known: Field) -> dict[str, Any]:
    """Return the keys of an element of a list that is a map, defaults included."""
    fields = known.type.element.fields if known.type.element else {}
    return {key: value.get(key, fields[key].default if key in fields else None) for key in sorted(known.keys)}


def to_fields(paths: Iterable[Path]) -> dict[str, Any]:
    """Encode paths as fieldsV1."""
    tree: dict[str, Any] = {}
    listed = set(paths)
    for path in sorted(listed):
        node = tree
        for step in path:
            node = node.setdefault(step, {})
    for path in listed:
        node = tree
        for step in path:
            node = node[step]
        if node:
            node["."] = {}
    return _sorted(tree)


def from_fields(tree: Any, path: Path = ()) -> Iterator[Path]:
    """Decode fieldsV1."""
    if not isinstance(tree, dict) or not tree:
        if path:
            yield path
        return
    for step, below in tree.items():
        if step == ".":
            yield path
        else:
            yield from from_fields(below, (*path, step))


def spell(path: Path) -> str:
    """Format a path as Kubernetes does in messages: .spec.ports[port=80,protocol="TCP"].name."""
    text = ""
    for step in path:
        kind, _, name = step.partition(":")
        if kind == "f":
            text += f".{name}"
        elif kind == "k":
            text += f"[{','.join(f'{key}={json.dumps(value)}' for key, value in json.loads(name).items())}]"
        else:
            text += f"[={name}]"
    return text


def _sorted(tree: dict[str, Any]) -> dict[str, Any]:
    return {key: _sorted(tree[key]) for key in sorted(tree)}


def compact(value: Any) -> str:
    """Encode a value as in elements of paths."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)
