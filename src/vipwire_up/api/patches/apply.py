"""Server-side apply: merges a manager's configuration into the live object (KEP-555). Pure.

An apply lists all fields that its manager wants. Fields that the manager applied before and now leaves out are
removed, unless another manager owns them. Fields that another manager owns with another value are a conflict, unless
forced. All other writes own the fields that they change.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any, Final

from vipwire.kube.errors import ApiError
from vipwire_up.api.bodies.decode import Findings, decode
from vipwire_up.api.objects.object import value_at
from vipwire_up.api.objects.resource import Object, Resource
from vipwire_up.api.objects.schema import Field, Shape, Type
from vipwire_up.api.patches.field_paths import (
    Path,
    Paths,
    Tree,
    build_path_tree,
    element_key,
    encode_compact,
    format_path,
    list_prefixes,
    paths_from_fields,
    paths_of_members,
    paths_to_fields,
)


@dataclass(frozen=True, slots=True)
class FieldManager:
    """A field manager: a name, the operation, the subresource and the version of a write."""

    manager: str
    operation: str = "Update"
    subresource: str = ""
    version: str = "v1"


@dataclass(frozen=True, slots=True)
class Owned:
    """The fields that a writer owns, and since when."""

    paths: Paths
    time: str


Ownership = dict[FieldManager, Owned]


def read_ownership(entries: Any) -> Ownership:
    found: Ownership = {}
    for entry in entries or ():
        writer = FieldManager(
            entry.get("manager", ""),
            entry.get("operation", ""),
            entry.get("subresource", ""),
            entry.get("apiVersion", ""),
        )
        if writer.operation in ("Apply", "Update"):
            found[writer] = Owned(frozenset(paths_from_fields(entry.get("fieldsV1"))), entry.get("time", ""))
    return found


def write_ownership(ownership: Ownership) -> list[dict[str, Any]]:
    """Build managedFields: applies first, then by time and name, as Kubernetes orders them."""
    ordered = sorted(ownership.items(), key=lambda item: (item[0].operation, item[1].time, item[0].manager))
    return [
        {
            "manager": writer.manager,
            "operation": writer.operation,
            "apiVersion": writer.version,
            "time": owned.time,
            "fieldsType": "FieldsV1",
            "fieldsV1": paths_to_fields(owned.paths),
            **({"subresource": writer.subresource} if writer.subresource else {}),
        }
        for writer, owned in ordered
        if owned.paths
    ]


def assign_changed_fields(
    ownership: Ownership, writer: FieldManager, before: Any, after: Any, kind: Type, now: str
) -> Ownership:
    """Assign the fields that a write changed to its writer; drop removed fields. `before` may be {}.

    Fields that the writer cannot change (such as the status for a write of the object) must be equal in both.
    """
    old, new = paths_of_members(before, kind, whole=True), paths_of_members(after, kind, whole=True)
    changed = frozenset(path for path, value in new.items() if path not in old or old[path] != value)
    gone = frozenset(old.keys() - new.keys())
    result = {}
    for other, owned in ownership.items():
        lost = gone if other == writer else gone | frozenset(path for path in changed if new[path] != old.get(path))
        if rest := owned.paths - lost:
            result[other] = Owned(rest, owned.time)
    if changed:
        mine = ownership.get(writer, Owned(frozenset(), now)).paths & new.keys()
        result[writer] = Owned(mine | changed, now)
    return result


def ownership_before_apply(live: Object, resource: Resource, now: str) -> Ownership:
    """Assign the fields of an object without managers to a manager `before-first-apply`, as Kubernetes does."""
    before = FieldManager("before-first-apply", version=resource.api_version)
    return {before: Owned(frozenset(paths_of_members(live, resource.type)), now)}


def build_managed_fields(
    resource: Resource, old: Object, new: Object, writer: FieldManager, now: str
) -> list[dict[str, Any]]:
    """Return the managedFields of an object that is written. `old` is {} at creation.

    managedFields in the body replace the stored ones; an empty list resets them. The creator does not own the initial
    status of the kind.
    """
    entries = old.get("metadata", {}).get("managedFields") or []
    sent = new["metadata"].get("managedFields")
    if old and sent is not None and sent != entries:
        entries = [entry for entry in sent if entry]
    before = old
    if not old and resource.has_status and not resource.declares_status:
        before = {"status": new.get("status", {})}
    return write_ownership(assign_changed_fields(read_ownership(entries), writer, before, new, resource.type, now))


def apply_configuration(
    live: Any, wanted: Any, kind: Type, writer: FieldManager, ownership: Ownership, *, force: bool | Paths, now: str
) -> tuple[Any, Ownership]:
    """Merge a manager's configuration into the live object. Raise ApiError 409 that lists the conflicts."""
    wants, has = paths_of_members(wanted, kind), paths_of_members(live, kind)
    same_writer = writer.manager, "Apply", writer.subresource
    rivals = {
        other: owned
        for other, owned in ownership.items()
        if (other.manager, other.operation, other.subresource) != same_writer
    }
    contested = {
        other: frozenset(p for p in owned.paths & wants.keys() if p in has and has[p] != wants[p])
        for other, owned in rivals.items()
    }
    contested = {other: paths for other, paths in contested.items() if paths}
    forced = force if isinstance(force, frozenset) else frozenset()
    disputed = {other: paths - forced for other, paths in contested.items() if paths - forced}
    if disputed and force is not True:
        raise _ownership_conflict(disputed)
    others = {
        other: Owned(owned.paths - contested.get(other, frozenset()), owned.time) for other, owned in rivals.items()
    }
    mine = [owned for other, owned in ownership.items() if other not in others]
    before: Paths = frozenset().union(*(owned.paths for owned in mine))
    kept = list_prefixes(chain(wants, *(owned.paths for owned in others.values())))
    merged = _merge_values(live, wanted, Field("", kind))
    merged = _remove_fields(merged, build_path_tree(path for path in before if path not in kept), Field("", kind))
    same = bool(mine) and before == wants.keys() and merged == live
    return merged, others | {writer: Owned(frozenset(wants), mine[0].time if same else now)}


def _ownership_conflict(contested: Mapping[FieldManager, Iterable[Path]]) -> ApiError:
    causes, texts = [], []
    for other, paths in sorted(contested.items(), key=lambda item: item[0].manager):
        fields = sorted(format_path(path) for path in paths)
        sub = f' with subresource "{other.subresource}"' if other.subresource else ""
        who = f'"{other.manager}"{sub} using {other.version}'
        causes += [{"reason": "FieldManagerConflict", "message": f"conflict with {who}", "field": f} for f in fields]
        if len(fields) == 1:
            texts.append(f"conflict with {who}: {fields[0]}")
        else:
            texts.append(f"conflicts with {who}:\n" + "\n".join(f"- {field}" for field in fields))
    count = f"{len(causes)} conflict" + ("s" if len(causes) > 1 else "")
    return ApiError(409, "Conflict", f"Apply failed with {count}: " + "\n".join(texts), {"causes": causes})


def _merge_values(live: Any, wanted: Any, known: Field) -> Any:
    kind = known.type
    if known.atomic or kind.shape is Shape.ANY or type(live) is not type(wanted):
        return wanted
    if isinstance(wanted, dict):
        result = dict(live)
        for name, part in wanted.items():
            inner = Field(name, kind.element) if kind.element else kind.fields.get(name)
            result[name] = _merge_values(live.get(name), part, inner) if inner else part
        return result
    if isinstance(wanted, list) and known.is_set:
        return _merge_elements(live, wanted, encode_compact, lambda _, part: part)
    if isinstance(wanted, list) and known.keys and kind.element:
        element = Field("", kind.element)
        return _merge_elements(
            live,
            wanted,
            lambda part: encode_compact(element_key(part, known)),
            lambda found, part: _merge_values(found, part, element),
        )
    return wanted


def _merge_elements(
    live: list[Any], wanted: list[Any], key_of: Callable[[Any], str], merge: Callable[[Any, Any], Any]
) -> list[Any]:
    """Join lists by keys. Wanted elements come in their order; those of other managers stay before the same ones."""
    keys, order = [*map(key_of, live)], [*map(key_of, wanted)]
    held, asked = dict(zip(reversed(keys), reversed(live), strict=True)), frozenset(order)
    stops = [""]
    for key in reversed(order):
        stops.append(key if key in held else stops[-1])
    result: list[Any] = []
    at = 0
    for key, part in zip(order, wanted, strict=True):
        stop = stops.pop()
        while at < len(live) and keys[at] != stop:
            result += [live[at]] if keys[at] not in asked else []
            at += 1
        at += key == stop
        result.append(merge(held[key], part) if key in held else part)
    return result + [found for key, found in zip(keys[at:], live[at:], strict=True) if key not in asked]


def _remove_fields(value: Any, gone: Tree, known: Field) -> Any:
    """Copy a value without the fields at the ends of a tree of paths, and without maps that become empty."""
    if isinstance(value, dict):
        return dict(_fields_without(value, gone, known.type))
    if isinstance(value, list) and known.type.element:
        return list(_elements_without(value, gone, known, known.type.element))
    return value


def _fields_without(value: dict[str, Any], gone: Tree, kind: Type) -> Iterator[tuple[str, Any]]:
    for name, part in value.items():
        below = gone.get(f"f:{name}")
        inner = Field(name, kind.element) if kind.element else kind.fields.get(name)
        if below is None:
            yield name, part
        elif below and inner:
            left = _remove_fields(part, below, inner)
            if left or left == part:
                yield name, left


def _elements_without(value: list[Any], gone: Tree, known: Field, element: Type) -> Iterator[Any]:
    """Yield the elements that stay, without their fields that go; key fields stay while their element does."""
    keys = {f"f:{key}" for key in known.keys}
    for part in value:
        is_keyed = isinstance(part, dict) and not known.is_set
        below = gone.get(f"k:{encode_compact(element_key(part, known))}" if is_keyed else f"v:{encode_compact(part)}")
        if below is None:
            yield part
        elif below:
            fields = {step: deeper for step, deeper in below.items() if step not in keys}
            yield _remove_fields(part, fields, Field("", element))


ANNOTATION: Final = "kubectl.kubernetes.io/last-applied-configuration"
_KUBECTL: Final = "kubectl"
_MOST: Final = 256 << 10
"""Bytes of all annotations of an object."""


def undisputed_fields(live: Object, resource: Resource, writer: FieldManager) -> Paths:
    """Return the fields that kubectl's apply may take over: those that client-side apply set before.

    To the server, client-side apply is an update by another manager, so a later `--server-side` with another manifest
    would conflict with the user's own fields. So the manager `kubectl` may change fields that still have the value in
    the annotation, and `renewed` updates the annotation, for the way back
    (apimachinery/pkg/util/managedfields/internal, lastappliedmanager.go and lastappliedupdater.go).
    """
    text = _last_applied_annotation(live, writer)
    try:
        said = json.loads(text) if text else {}
        decode(said, resource.type, Findings())  # raises for an invalid annotation, which any client may write
    except (ValueError, RecursionError, ApiError):
        return frozenset()
    has = paths_of_members(live, resource.type)
    return frozenset(
        path for path, value in paths_of_members(said, resource.type).items() if path in has and has[path] == value
    )


def update_last_applied(merged: Object, wanted: Object, writer: FieldManager) -> Object:
    """Update the last-applied annotation, if it exists, to the applied configuration."""
    if not _last_applied_annotation(merged, writer):
        return merged
    meta = wanted["metadata"]
    others = {name: text for name, text in (meta.get("annotations") or {}).items() if name != ANNOTATION}
    said = wanted | {"metadata": meta | {"annotations": others}}
    text = json.dumps(said, sort_keys=True, separators=(",", ":"), ensure_ascii=False) + "\n"  # as kubectl writes it
    kept = merged["metadata"]["annotations"] | {ANNOTATION: text}
    if len(text) > _MOST:
        del kept[ANNOTATION]
    return merged | {"metadata": merged["metadata"] | {"annotations": kept}}


def _last_applied_annotation(value: Object, writer: FieldManager) -> str:
    if writer.manager != _KUBECTL or writer.subresource:
        return ""
    return str((value_at(value, "metadata", "annotations") or {}).get(ANNOTATION, ""))
