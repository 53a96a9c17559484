"""Label and field selectors: their text, and whether an object matches.

app=web,tier!=db,env in (a,b),stage notin (x),canary,!old,n>2     labels
metadata.name=web,spec.type!=ClusterIP                           fields, those that a kind declares
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Protocol

import msgspec

from vipwire_up.api.objects.errors import bad_request
from vipwire_up.api.objects.names import label_value, qualified
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

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Report whether labels match. A missing label differs from every value."""
        return (labels.get(self.key) in self.values) != self.inverted


@dataclass(frozen=True, slots=True)
class Comparison:
    """A condition on one label: its value is an integer greater, or less, than another."""

    key: str
    bound: int
    greater: bool

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Report whether labels match. A label that is missing or not a number does not match."""
        text = labels.get(self.key) or ""
        if not _INTEGER.fullmatch(text):
            return False
        return int(text) > self.bound if self.greater else int(text) < self.bound


class _Meta(msgspec.Struct):
    labels: dict[str, str] | None = None


class _Labelled(msgspec.Struct):
    metadata: _Meta


_LABELS: Final = msgspec.json.Decoder(_Labelled)


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
    labels: tuple[Requirement | Comparison, ...] = ()
    fields: tuple[tuple[Callable[[Object], str], str, bool], ...] = ()
    allowed: KeySet | None = None

    @property
    def everything(self) -> bool:
        return not (self.namespace or self.name or self.labels or self.fields or self.allowed is not None)

    def shows(self, key: Key) -> bool:
        """Report whether the caller may read an object."""
        return self.allowed is None or key in self.allowed

    def matches(self, record: Record) -> bool:
        """Report whether an object matches. Decodes the record only for conditions that need that."""
        if (self.namespace and record.key.namespace != self.namespace) or (
            self.name and record.key.name != self.name
        ):
            return False
        if not self.shows(record.key):
            return False
        try:
            return self._holds(record.value)
        except (AttributeError, LookupError, TypeError, ValueError, msgspec.MsgspecError):
            return False  # a damaged record matches no condition

    def _holds(self, value: bytes) -> bool:
        if self.labels:
            labels = _LABELS.decode(value).metadata.labels or {}
            if not all(requirement.matches(labels) for requirement in self.labels):
                return False
        if self.fields:
            found = msgspec.json.decode(value)
            return all((read(found) == wanted) != inverted for read, wanted, inverted in self.fields)
        return True


def parse_labels(text: str) -> tuple[Requirement | Comparison, ...]:
    """Parse a label selector; raise ApiError 400."""
    found, position = list[Requirement | Comparison](), 0
    while position < len(text):
        if match := _SET.match(text, position):
            values = frozenset(part.strip() for part in match[3].split(","))
            found.append(_requirement(match[1], values, inverted=match[2] == "notin"))
        elif match := _EQUAL.match(text, position):
            found.append(_requirement(match[1], frozenset({match[3]}), inverted=match[2] == "!="))
        elif match := _COMPARED.match(text, position):
            found.append(_comparison(match[1], match[2], match[3]))
        elif match := _EXISTS.match(text, position):
            found.append(_requirement(match[2], frozenset({None}), inverted=not match[1]))
        else:
            raise _unreadable(text)
        position = match.end()
        if position < len(text):
            if text[position] != "," or position + 1 == len(text):
                raise _unreadable(text)
            position += 1
    return tuple(found)


def _requirement(key: str, values: Iterable[str | None], *, inverted: bool) -> Requirement:
    if problem := qualified(key) or "; ".join(filter(None, (label_value(value or "") for value in values))):
        raise bad_request(f'unable to parse requirement: "{key}": {problem}')
    return Requirement(key, frozenset(values), inverted)


def _comparison(key: str, sign: str, text: str) -> Comparison:
    if problem := qualified(key) or (
        "" if _INTEGER.fullmatch(text) else "for 'Gt', 'Lt' operators, the value must be an integer"
    ):
        raise bad_request(f'unable to parse requirement: "{key}": {problem}')
    return Comparison(key, int(text), sign == ">")


def _unreadable(text: str) -> Exception:
    return bad_request(f"unable to parse selector {text!r}: a part of it is not a requirement")


def select(resource: Resource, namespace: str, labels: str, fields: str, allowed: KeySet | None = None) -> Selector:
    """Parse the selector of a request; raise ApiError 400 if it is invalid or unsupported."""
    conditions = []
    name = ""
    for part in filter(None, fields.split(",")):
        match = _FIELD.fullmatch(part.strip())
        if match is None:
            raise bad_request(f"invalid selector: '{fields}'; can't understand '{part}'")
        key, inverted, wanted = match[1].strip(), match[2] == "!=", match[3].strip()
        if key == "metadata.name" and not inverted and not name:
            name = wanted
            continue
        conditions.append((_reader(resource, key), wanted, inverted))
    return Selector(namespace, name, parse_labels(labels), tuple(conditions), allowed)


def _reader(resource: Resource, key: str) -> Callable[[Object], str]:
    if key in ("metadata.name", "metadata.namespace"):
        part = key.partition(".")[2]
        return lambda value: str(value["metadata"].get(part) or "")
    if key in resource.fields:
        return resource.fields[key]
    raise bad_request(f"field label not supported: {key}")  # kubectl adds the kind
