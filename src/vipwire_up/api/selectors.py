"""Label and field selectors: their text, and whether an object matches.

app=web,tier!=db,env in (a,b),stage notin (x),canary,!old,n>2     labels
metadata.name=web,spec.type!=ClusterIP                           fields, those that a kind declares
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol

import msgspec

from vipwire_up.api.objects.errors import bad_request
from vipwire_up.api.objects.names import check_label_value, check_qualified_name
from vipwire_up.api.objects.resource import Object, Resource
from vipwire_up.store.record import Key, Record

_SET: Final = re.compile(r"\s*([^\s,=!()]+)\s+(in|notin)\s*\(([^()]*)\)\s*")
_EQUAL: Final = re.compile(r"\s*([^\s,=!()]+)\s*(==|=|!=)\s*([^\s,=!()]*)\s*")
_COMPARED: Final = re.compile(r"\s*([^\s,=!()<>]+)\s*([<>])\s*([^\s,=!()<>]*)\s*")
_INTEGER: Final = re.compile(r"[+-]?\d{1,18}", re.ASCII)
_EXISTS: Final = re.compile(r"\s*(!?)\s*([^\s,=!()]+)\s*")
_FIELD: Final = re.compile(r"([^=!]+)(==|=|!=)(.*)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Requirement:
    """A condition on one label: its value is in `values`, or not; None in `values` means a missing label."""

    key: str
    values: frozenset[str | None]
    inverted: bool = False

    def matches(self, text: str | None) -> bool:
        """Report whether a value matches. A missing label differs from every value."""
        return (text in self.values) != self.inverted


@dataclass(frozen=True, slots=True)
class Comparison:
    """A condition on one label: its value is an integer greater, or less, than another."""

    key: str
    bound: int
    greater: bool

    def matches(self, text: str | None) -> bool:
        """Report whether a value matches. A label that is missing or not a number does not match."""
        if not _INTEGER.fullmatch(text or ""):
            return False
        return int(text or "") > self.bound if self.greater else int(text or "") < self.bound


class LabelConditions:
    """The conditions of a label selector. The cost for an object grows with its labels, not with the conditions."""

    def __init__(self, conditions: Iterable[Requirement | Comparison]) -> None:
        allowed: dict[str, frozenset[str | None]] = {}
        refused: dict[str, set[str | None]] = {}
        bounds: dict[tuple[str, bool], Comparison] = {}
        for each in conditions:
            if isinstance(each, Comparison):
                key = each.key, each.greater
                bounds[key] = max(
                    each, bounds.get(key, each), key=lambda one: one.bound if one.greater else -one.bound
                )
            elif each.inverted:
                refused.setdefault(each.key, set()).update(each.values)
            else:
                allowed[each.key] = allowed.get(each.key, each.values) & each.values
        self._by_key: dict[str, list[Requirement | Comparison]] = {}
        joined: tuple[Requirement | Comparison, ...] = (
            *(Requirement(key, values) for key, values in allowed.items()),
            *(Requirement(key, frozenset(values), inverted=True) for key, values in refused.items()),
            *bounds.values(),
        )
        for made in joined:
            self._by_key.setdefault(made.key, []).append(made)
        # The labels that an object must have.
        self._needed = {key for key, found in self._by_key.items() if not all(each.matches(None) for each in found)}

    def match(self, labels: Mapping[str, str]) -> bool:
        return self._needed <= labels.keys() and all(
            each.matches(text) for key, text in labels.items() for each in self._by_key.get(key, ())
        )


class _Meta(msgspec.Struct):
    labels: dict[str, str] | None = None


class _Labelled(msgspec.Struct):
    metadata: _Meta


_LABELS: Final = msgspec.json.Decoder(_Labelled)


@dataclass(frozen=True, slots=True)
class FieldCondition:
    """The conditions on one field: `values` has those that it must equal, `refused` those that it must not."""

    read: Callable[[Object], str]
    values: set[str] = field(default_factory=set)
    refused: set[str] = field(default_factory=set)

    def matches(self, value: Object) -> bool:
        text = self.read(value)
        return self.values <= {text} and text not in self.refused


class KeySet(Protocol):
    """A set of objects, by their keys in the store."""

    def __contains__(self, key: Key, /) -> bool: ...


@dataclass(frozen=True, slots=True)
class Selector:
    """The selection of a list or watch. Cursors hold its text, so that all pages have the same selection.

    `allowed` has the keys that the caller may read; None is all.
    """

    namespace: str = ""
    name: str = ""
    labels: LabelConditions | None = None
    fields: tuple[FieldCondition, ...] = ()
    allowed: KeySet | None = None

    @property
    def everything(self) -> bool:
        return not (self.namespace or self.name or self.labels or self.fields or self.allowed is not None)

    @property
    def decodes(self) -> bool:
        """Whether a match depends on more than an object's name."""
        return bool(self.labels or self.fields)

    def may_show(self, key: Key) -> bool:
        return self.allowed is None or key in self.allowed

    def matches(self, record: Record) -> bool:
        """Report whether an object matches. Decodes the record only for conditions that need that."""
        if (self.namespace and record.key.namespace != self.namespace) or (
            self.name and record.key.name != self.name
        ):
            return False
        if not self.may_show(record.key):
            return False
        try:
            return self._matches_conditions(record.value)
        except (AttributeError, LookupError, TypeError, ValueError, msgspec.MsgspecError):
            return False  # a damaged record matches no condition

    def _matches_conditions(self, value: bytes) -> bool:
        if self.labels:
            labels = _LABELS.decode(value).metadata.labels or {}
            if not self.labels.match(labels):
                return False
        if self.fields:
            found = msgspec.json.decode(value)
            return all(each.matches(found) for each in self.fields)
        return True


def parse_labels(text: str) -> LabelConditions | None:
    found, position = list[Requirement | Comparison](), 0
    while position < len(text):
        if match := _SET.match(text, position):
            values = frozenset(part.strip() for part in match[3].split(","))
            found.append(_build_requirement(match[1], values, inverted=match[2] == "notin"))
        elif match := _EQUAL.match(text, position):
            found.append(_build_requirement(match[1], frozenset({match[3]}), inverted=match[2] == "!="))
        elif match := _COMPARED.match(text, position):
            found.append(_build_comparison(match[1], match[2], match[3]))
        elif match := _EXISTS.match(text, position):
            found.append(_build_requirement(match[2], frozenset({None}), inverted=not match[1]))
        else:
            raise _unreadable_error(text)
        position = match.end()
        if position < len(text):
            if text[position] != "," or position + 1 == len(text):
                raise _unreadable_error(text)
            position += 1
    return LabelConditions(found) if found else None


def _build_requirement(key: str, values: Iterable[str | None], *, inverted: bool) -> Requirement:
    if problem := check_qualified_name(key) or "; ".join(
        filter(None, (check_label_value(value or "") for value in values))
    ):
        raise bad_request(f'unable to parse requirement: "{key}": {problem}')
    return Requirement(key, frozenset(values), inverted)


def _build_comparison(key: str, sign: str, text: str) -> Comparison:
    if problem := check_qualified_name(key) or (
        "" if _INTEGER.fullmatch(text) else "for 'Gt', 'Lt' operators, the value must be an integer"
    ):
        raise bad_request(f'unable to parse requirement: "{key}": {problem}')
    return Comparison(key, int(text), sign == ">")


def _unreadable_error(text: str) -> Exception:
    return bad_request(f"unable to parse selector {text!r}: a part of it is not a requirement")


def parse_selector(
    resource: Resource, namespace: str, labels: str, fields: str, allowed: KeySet | None = None
) -> Selector:
    """Parse the selector of a request; raise ApiError 400 if it is invalid or unsupported."""
    conditions: dict[str, FieldCondition] = {}
    name = ""
    for part in filter(None, fields.split(",")):
        match = _FIELD.fullmatch(part.strip())
        if match is None:
            raise bad_request(f"invalid selector: '{fields}'; can't understand '{part}'")
        key, inverted, wanted = match[1].strip(), match[2] == "!=", match[3].strip()
        if key == "metadata.name" and not inverted and not name:
            name = wanted
            continue
        condition = conditions.setdefault(key, FieldCondition(_field_reader(resource, key)))
        (condition.refused if inverted else condition.values).add(wanted)
    return Selector(namespace, name, parse_labels(labels), tuple(conditions.values()), allowed)


def _field_reader(resource: Resource, key: str) -> Callable[[Object], str]:
    if key in ("metadata.name", "metadata.namespace"):
        part = key.partition(".")[2]
        return lambda value: str(value["metadata"].get(part) or "")
    if key in resource.fields:
        return resource.fields[key]
    raise bad_request(f"field label not supported: {key}")  # kubectl adds the kind
