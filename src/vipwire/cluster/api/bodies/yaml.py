"""Bodies in YAML, read event by event: what makes much of little is refused before it is made. Pure.

An alias stands for all of its anchor; aliases of aliases double a document with each line (CVE-2019-11253). Here each
anchor knows how many values it stands for, so that the sum is known before anything is written out. Values are built
with a stack of our own: neither depth nor size of a document is a matter of Python's stack.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import yaml
from yaml.constructor import SafeConstructor

from vipwire.cluster.api.bodies.size import MOST_DEEP, MOST_VALUES, check_size
from vipwire.cluster.api.errors import bad_request
from vipwire.cluster.api.object import parse

_LOADER: Final[Any] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_TAG: Final = "tag:yaml.org,2002:"
_TEXT, _MERGE = f"{_TAG}str", f"{_TAG}merge"
_LONGEST_NUMBER: Final = 100
_CONSTRUCTOR: Final = SafeConstructor()
_READERS: Final = {
    f"{_TAG}int": _CONSTRUCTOR.construct_yaml_int,
    f"{_TAG}float": _CONSTRUCTOR.construct_yaml_float,
    f"{_TAG}bool": _CONSTRUCTOR.construct_yaml_bool,
    f"{_TAG}null": _CONSTRUCTOR.construct_yaml_null,
}
_RESOLVERS: Final = {
    first: [(tag, pattern) for tag, pattern in found if tag in _READERS or tag == _MERGE]
    for first, found in yaml.SafeLoader.yaml_implicit_resolvers.items()
}  # no dates: on the wire, a time is a text


class _Merge:
    """The key `<<`."""


@dataclass(slots=True)
class _Frame:
    """A list or map that is being read: its values, and in a map the key that waits for one."""

    values: Any
    anchor: str | None
    begun: int
    key: Any = None
    has_key: bool = False
    merged: list[dict[str, Any]] = field(default_factory=list)


def read_yaml(body: bytes) -> Any:
    """Read YAML, of which JSON is a part. Raise ApiError 400."""
    return read_yaml_strictly(body)[0]


def read_yaml_strictly(body: bytes) -> tuple[Any, list[str]]:
    """Read YAML; give it with the paths of fields that stand twice. Raise ApiError 400."""
    if body.lstrip()[:1] == b"{":
        return check_size(parse(body)), []
    reading = _Reading()
    try:
        for event in yaml.parse(body, Loader=_LOADER):
            reading.take(event)
    except (yaml.YAMLError, TypeError, ValueError, LookupError, OverflowError, RecursionError) as error:
        raise bad_request(f"error decoding YAML: {error}") from None
    return check_size(reading.result), list(dict.fromkeys(reading.repeated))


class _Reading:
    """A document as far as it is read."""

    def __init__(self) -> None:
        self.result: Any = None
        self.repeated: list[str] = []
        self._frames: list[_Frame] = []
        self._anchors: dict[str, tuple[Any, int]] = {}
        self._size = 0
        self._documents = 0

    def take(self, event: Any) -> None:
        """Return the next event. Raise ValueError."""
        match event:
            case yaml.ScalarEvent():
                value = _scalar(event)
                self._grow(1)
                if event.anchor:
                    self._anchors[event.anchor] = value, 1
                self._put(value)
            case yaml.AliasEvent():
                if event.anchor not in self._anchors:
                    raise ValueError(f"found undefined alias {event.anchor!r}, or one inside of what it stands for")
                value, size = self._anchors[event.anchor]
                self._grow(size)
                self._put(value)
            case yaml.MappingStartEvent() | yaml.SequenceStartEvent():
                self._open(event, {} if isinstance(event, yaml.MappingStartEvent) else [])
            case yaml.MappingEndEvent() | yaml.SequenceEndEvent():
                self._close()
            case yaml.DocumentStartEvent():
                self._documents += 1
                if self._documents > 1:
                    raise ValueError("expected a single document in the stream")

    def _grow(self, by: int) -> None:
        self._size += by
        if self._size > 2 * MOST_VALUES:  # keys are counted, too
            raise ValueError("the document contains excessive aliasing, or too many values")

    def _open(self, event: Any, values: Any) -> None:
        kind = f"{_TAG}{'map' if isinstance(values, dict) else 'seq'}"
        if event.tag not in (None, "!", kind):
            raise ValueError(f"tag {event.tag!r} is not known")
        if len(self._frames) >= MOST_DEEP:
            raise ValueError("exceeded max depth")
        self._frames.append(_Frame(values, event.anchor, self._size))
        self._grow(1)

    def _close(self) -> None:
        frame = self._frames.pop()
        value = frame.values
        for merged in reversed(frame.merged):
            value = merged | value
        if frame.anchor:
            self._anchors[frame.anchor] = value, self._size - frame.begun
        self._put(value)

    def _put(self, value: Any) -> None:
        if not self._frames:
            self.result = value
            return
        frame = self._frames[-1]
        if isinstance(frame.values, list):
            frame.values.append(value)
        elif not frame.has_key:
            frame.key, frame.has_key = value if value is _Merge else _key(value), True
        else:
            self._put_field(frame, value)
            frame.has_key = False

    def _put_field(self, frame: _Frame, value: Any) -> None:
        if frame.key is _Merge:
            frame.merged += _merged(value)
        else:
            if frame.key in frame.values:
                self.repeated.append(".".join((*self._path(), frame.key)).replace(".[", "["))
            frame.values[frame.key] = value

    def _path(self) -> Iterator[str]:
        for frame in self._frames[:-1]:
            if isinstance(frame.values, list):
                yield f"[{len(frame.values)}]"
            else:
                yield str(frame.key)


def _scalar(event: Any) -> Any:
    text, tag = event.value, event.tag
    if tag in (None, "!"):
        tag = _resolved(text) if event.implicit[0] else _TEXT
    if tag == _MERGE:
        return _Merge
    if tag in (_TEXT, f"{_TAG}binary"):
        return text
    if tag not in _READERS:
        raise ValueError(f"tag {tag!r} is not known")
    value = _READERS[tag](yaml.ScalarNode(tag, text))
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{text} is not a number of JSON")
    return value


def _resolved(text: str) -> str:
    if len(text) <= _LONGEST_NUMBER:
        for tag, pattern in _RESOLVERS.get(text[:1], ()):
            if pattern.match(text):
                return str(tag)
    return _TEXT


def _key(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str | int | float):
        return str(value)
    raise ValueError("a key is not text")


def _merged(value: Any) -> list[dict[str, Any]]:
    found = value if isinstance(value, list) else [value]
    if not all(isinstance(part, dict) for part in found):
        raise ValueError("expected a mapping or a list of mappings for merging")
    return found
