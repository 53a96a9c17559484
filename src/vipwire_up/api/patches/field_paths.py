"""The fields of an object as a set of paths, which server-side apply works on. Pure.

A path is a tuple of elements as `fieldsV1` writes them: `f:NAME` a field or a key of a map, `k:{...}` an element of a
list by its keys, `v:...` a value of a set. Atomic and empty lists and objects are members themselves. An element of a
list is a member besides its fields, because it can exist without them.
"""

import json
from collections.abc import Iterable, Iterator
from typing import Any, Final, TypeAlias

from vipwire_up.api.objects.object import encode
from vipwire_up.api.objects.schema import Field, Shape, Type

Path: TypeAlias = tuple[str, ...]
Paths: TypeAlias = frozenset[Path]
Tree: TypeAlias = dict[str, "Tree"]
"""Paths by their elements; one that ends has {}."""

_UNOWNED_META: Final = (
    "name", "namespace", "uid", "resourceVersion", "generation", "creationTimestamp", "selfLink", "managedFields",
    "deletionTimestamp", "deletionGracePeriodSeconds",
)  # fmt: skip
UNOWNED: Final[frozenset[Path]] = frozenset(
    {("f:apiVersion",), ("f:kind",)} | {("f:metadata", f"f:{name}") for name in _UNOWNED_META}
)
"""Paths that the server keeps and no manager owns."""


def paths_of_members(value: Any, kind: Type, *, whole: bool = False) -> dict[Path, Any]:
    """Return the paths of an object that managers can own, with their values (None for elements of lists).

    `whole` includes maps and lists that are not empty: an update that creates one owns it.
    """
    found: dict[Path, Any] = {}
    for name, part in value.items():
        known = kind.fields.get(name)
        if known is not None and (f"f:{name}",) not in UNOWNED:
            _find_members(found, part, known, (f"f:{name}",), whole)
    return {path: part for path, part in found.items() if path[:2] not in UNOWNED and path != ("f:metadata",)}


def _find_members(found: dict[Path, Any], value: Any, known: Field, path: Path, whole: bool) -> None:  # noqa: FBT001 - as its callers'
    kind = known.type
    if known.default == value == {} and kind.shape is Shape.OBJECT:
        return  # every object of the kind has this part
    if known.atomic or not value or kind.shape in (Shape.ANY, Shape.SCALAR):
        found[path] = value
        return
    if whole and kind.element:
        found[path] = None
    if isinstance(value, dict):
        each = Field("", kind.element) if kind.element else None
        for name, part in value.items():
            inner = each or kind.fields.get(name)
            if inner is not None:
                _find_members(found, part, inner, (*path, f"f:{name}"), whole)
    elif known.is_set:
        found.update(((*path, f"v:{encode_compact(part)}"), None) for part in value)
    elif known.keys and kind.element is not None:
        for part in value:
            _find_in_element(
                found, part, kind.element, (*path, f"k:{encode_compact(element_key(part, known))}"), whole
            )
    else:
        found[path] = value


def _find_in_element(found: dict[Path, Any], value: Any, kind: Type, path: Path, whole: bool) -> None:  # noqa: FBT001
    found[path] = None
    for name, part in value.items():
        if name in kind.fields:
            _find_members(found, part, kind.fields[name], (*path, f"f:{name}"), whole)


def element_key(value: Any, known: Field) -> dict[str, Any]:
    """Return the keys of an element of a list that is a map, defaults included."""
    fields = known.type.element.fields if known.type.element else {}
    return {key: value.get(key, fields[key].default if key in fields else None) for key in sorted(known.keys)}


def paths_to_fields(paths: Iterable[Path]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for path in sorted(set(paths)):  # a path comes right before those that begin with it
        node = found
        for index, step in enumerate(path):
            if step in node:
                node = node[step]
                continue
            if index and not node:
                node["."] = {}
            for below in path[index:]:
                node[below] = node = {}
            break
    return found


def paths_from_fields(tree: Any, path: Path = ()) -> Iterator[Path]:
    if not isinstance(tree, dict) or not tree:
        if path:
            yield path
        return
    for step, below in tree.items():
        if step == ".":
            yield path
        else:
            yield from paths_from_fields(below, (*path, step))


def list_prefixes(paths: Iterable[Path]) -> set[Path]:
    return {path[:length] for path in paths for length in range(1, len(path) + 1)}


def build_path_tree(paths: Iterable[Path]) -> Tree:
    """Build the tree of the paths' elements; leave out each path below another path."""
    found: Tree = {}
    listed = set(paths)
    for path in listed:
        if all(path[:length] not in listed for length in range(1, len(path))):
            node = found
            for step in path:
                node = node.setdefault(step, {})
    return found


def format_path(path: Path) -> str:
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


def encode_compact(value: Any) -> str:
    return encode(value).decode()
