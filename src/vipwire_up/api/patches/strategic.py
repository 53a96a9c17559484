"""Strategic merge patch: a merge patch that knows which lists are maps. Pure.

A list whose type has a merge key is joined element by element; the others are replaced. Directives stand in the
patch:

    $patch: replace | delete | merge       on a map, or on an element of a list
    $deleteFromPrimitiveList/NAME: [...]   values to remove from a list of values
    $setElementOrder/NAME: [...]           the order of a joined list
    $retainKeys: [...]                     keys of a map that stay; all others go

(kubernetes/community: contributors/devel/sig-api-machinery/strategic-merge-patch.md)
"""

from collections.abc import Hashable
from typing import Any, Final

from vipwire_up.api.objects.errors import bad_request
from vipwire_up.api.objects.object import encode
from vipwire_up.api.objects.schema import Field, Shape, Type

_DELETE_VALUES: Final = "$deleteFromPrimitiveList/"
_ORDER: Final = "$setElementOrder/"
_PATCH: Final = "$patch"
_RETAIN: Final = "$retainKeys"


def apply_strategic_patch(value: Any, patch: Any, kind: Type) -> Any:
    """Apply a patch to a value of a type; return a new value. Raise ApiError 400."""
    if not isinstance(patch, dict):
        return patch
    directive = patch.get(_PATCH)
    if directive == "delete":
        return {}
    if directive == "replace":
        return {key: part for key, part in patch.items() if key != _PATCH}
    if directive not in (None, "merge"):
        raise bad_request(f"Unknown patch type found: {directive}")
    result = dict(value) if isinstance(value, dict) else {}
    if isinstance(retained := patch.get(_RETAIN), list):
        names = set(map(_hashable_identity, retained))
        result = {key: part for key, part in result.items() if key in names}
    _delete_values(result, patch)
    for key, part in patch.items():
        if key.startswith("$"):
            continue
        if part is None:
            result.pop(key, None)
        else:
            result[key] = _patch_field(result.get(key), part, _field_of(kind, key), patch.get(f"{_ORDER}{key}"))
    _order_other_lists(result, patch, kind)
    return result


def _field_of(kind: Type, key: str) -> Field:
    if kind.shape is Shape.MAP and kind.element is not None:
        return Field(key, kind.element)
    return kind.fields.get(key) or Field(key, Type(Shape.ANY, "any"))


def _patch_field(value: Any, patch: Any, known: Field, order: Any) -> Any:
    if isinstance(patch, dict):
        return apply_strategic_patch(value, patch, known.type)
    if not isinstance(patch, list) or not known.merges or known.type.element is None:
        return patch
    current = value if isinstance(value, list) else []
    if known.merge_key == "-":
        there = set(map(_hashable_identity, current))
        joined = [*current, *(part for part in patch if _hashable_identity(part) not in there)]
        return _sort_by_order(joined, order, lambda part: part)
    return _merge_list(current, patch, known, order)


def _merge_list(current: list[Any], patch: list[Any], known: Field, order: Any) -> list[Any]:
    key, element = known.merge_key, known.type.element
    if any(isinstance(part, dict) and part.get(_PATCH) == "replace" and len(part) == 1 for part in patch):
        return [part for part in patch if not (isinstance(part, dict) and _PATCH in part)]
    result: dict[int, Any] = dict(enumerate(current))
    places: dict[Hashable, list[int]] = {}
    for index, found in result.items():
        if isinstance(found, dict):
            places.setdefault(_hashable_identity(found.get(key)), []).append(index)
    for index, part in enumerate(patch, len(current)):
        if not isinstance(part, dict) or key not in part:
            raise bad_request(f"map: {part!r} does not contain declared merge key: {key}")
        same = places.get(_hashable_identity(part[key]))
        if part.get(_PATCH) == "delete":
            for place in places.pop(_hashable_identity(part[key]), ()):
                del result[place]
        elif same and element is not None:
            result[same[0]] = apply_strategic_patch(result[same[0]], part, element)
        else:
            result[index] = {name: entry for name, entry in part.items() if not name.startswith("$")}
            places.setdefault(_hashable_identity(part[key]), []).append(index)
    return _sort_by_order(list(result.values()), order, lambda part: part.get(key), wanted=lambda part: part.get(key))


def _hashable_identity(value: Any) -> Hashable:
    """Return a value that can be looked up, equal for equal values."""
    return encode(value) if isinstance(value, dict | list) else value


def _sort_by_order(values: list[Any], order: Any, key: Any, wanted: Any = lambda part: part) -> list[Any]:
    """Sort the elements that the order names; the rest keep their place relative to their neighbours."""
    if not isinstance(order, list):
        return values
    places: dict[Hashable, int] = {wanted(part): index for index, part in enumerate(order)}
    named = sorted((part for part in values if key(part) in places), key=lambda part: places[key(part)])
    following = iter(named)
    return [next(following) if key(part) in places else part for part in values]


def _delete_values(result: dict[str, Any], patch: dict[str, Any]) -> None:
    for key, values in patch.items():
        if key.startswith(_DELETE_VALUES):
            name = key.removeprefix(_DELETE_VALUES)
            if isinstance(result.get(name), list) and isinstance(values, list):
                gone = set(map(_hashable_identity, values))
                result[name] = [part for part in result[name] if _hashable_identity(part) not in gone]


def _order_other_lists(result: dict[str, Any], patch: dict[str, Any], kind: Type) -> None:
    """Apply $setElementOrder of lists that the patch does not change otherwise."""
    for key, order in patch.items():
        name = key.removeprefix(_ORDER)
        if key.startswith(_ORDER) and name not in patch and isinstance(result.get(name), list):
            merge_key = _field_of(kind, name).merge_key
            if merge_key == "-":
                result[name] = _sort_by_order(result[name], order, lambda part: part)
            elif merge_key:
                by_key = _read_merge_key(merge_key)
                result[name] = _sort_by_order(result[name], order, by_key, wanted=by_key)


def _read_merge_key(key: str) -> Any:
    return lambda part: part.get(key) if isinstance(part, dict) else part
