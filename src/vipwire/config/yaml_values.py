"""Reads YAML as JSON values, event by event: no text exhausts the stack, memory or processor. Pure.

libyaml composes nested nodes by recursion in C, so that a file of brackets crashes the process: this module uses only
its events, and counts the depth. An alias stands for all of its anchor; aliases of aliases double a document with
each line (CVE-2019-11253): each anchor knows its number of values, and the sum is limited.
"""

import math
import re
from dataclasses import dataclass, field
from typing import Any, Final

import yaml
from yaml.constructor import SafeConstructor
from yaml.reader import ReaderError

from vipwire.errors import DecodeError

MOST_DEEP: Final = 100
_MOST_DIRECTIVES: Final = 100
"""libyaml compares each %TAG directive with all earlier ones, and holds the interpreter's lock meanwhile."""
_DIRECTIVE: Final = re.compile(r"(?:^|[\n\r\x85\xa8\xa9\u2028\u2029])%TAG")
_LONGEST_NUMBER: Final = 100
_MOST_ALIASED: Final = 10_000
_LOADER: Final[Any] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_TAG: Final = "tag:yaml.org,2002:"
_TEXT, _MERGE = f"{_TAG}str", f"{_TAG}merge"
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
}  # no dates: the API writes a time as text


class _Merge:
    """The key `<<`."""


@dataclass(slots=True)
class _Frame:
    """An open list or map: its values, and in a map the key that waits for one."""

    values: Any
    anchor: str | None
    begun: int
    key: Any = None
    has_key: bool = False
    merged: list[dict[str, Any]] = field(default_factory=list)


def read_documents(
    text: str | bytes, most: int, repeated: list[str] | None = None, lines: dict[str, int] | None = None
) -> list[Any]:
    """Read all documents. Raise DecodeError, with line and column if known.

    They may hold `most` values, with aliases expanded. A repeated key of a mapping is an error, unless `repeated`
    collects its path. `lines` collects the line of each key and list item, by its path.
    """
    if _count_directives(text) > _MOST_DIRECTIVES:
        raise DecodeError(f"YAML: more than {_MOST_DIRECTIVES} %TAG directives")
    reading, event = _Reading(most, repeated, lines), None
    try:
        for event in yaml.parse(text, Loader=_LOADER):
            reading.handle_event(event)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise DecodeError(f"{_format_mark(mark)}: {error.problem or error.context}") from error
    except ReaderError as error:
        raise DecodeError(f"{_format_position(text, error.position)}: {error.reason}") from error
    except Exception as error:
        raise DecodeError(
            f"{_format_mark(event.start_mark if event else None)}: {' '.join(str(error).split())}"
        ) from error
    return reading.documents


def _count_directives(text: str | bytes) -> int:
    if isinstance(text, bytes):  # perhaps UTF-16, which libyaml reads, too
        text = text.replace(b"\0", b"").decode("latin-1")
    return len(_DIRECTIVE.findall(text)) if "%TAG" in text else 0


def _format_mark(mark: Any) -> str:
    return f"line {mark.line + 1}, column {mark.column + 1}" if mark else "YAML"


def _format_position(text: str | bytes, offset: int) -> str:
    before = (text.encode(errors="replace") if isinstance(text, str) else text)[:offset].decode(errors="replace")
    return find_place_in_error(before)


def find_place_in_error(text: str) -> str:
    """Write the line and column at the end of a text."""
    return f"line {text.count(chr(10)) + 1}, column {len(text) - text.rfind(chr(10))}"


class _Reading:
    def __init__(self, most: int, repeated: list[str] | None, lines: dict[str, int] | None) -> None:
        self.documents: list[Any] = []
        self._most, self._repeated, self._lines = most, repeated, lines
        self._frames: list[_Frame] = []
        self._anchors: dict[str, tuple[Any, int]] = {}
        self._size = self._line = 0

    def handle_event(self, event: Any) -> None:
        self._line = event.start_mark.line + 1
        if self._frames and isinstance(self._frames[-1].values, list):
            self._record_line()
        match event:
            case yaml.ScalarEvent():
                value = _read_scalar(event)
                self._count_values(1)
                if event.anchor:
                    self._anchors[event.anchor] = value, 1
                self._put_value(value)
            case yaml.AliasEvent():
                if event.anchor not in self._anchors:
                    raise ValueError(f"found an undefined alias {event.anchor!r}, or an alias inside its own value")
                value, size = self._anchors[event.anchor]
                self._count_values(size)
                self._put_value(value)
            case yaml.MappingStartEvent() | yaml.SequenceStartEvent():
                self._open_collection(event, {} if isinstance(event, yaml.MappingStartEvent) else [])
            case yaml.MappingEndEvent() | yaml.SequenceEndEvent():
                self._close_collection()
            case yaml.DocumentStartEvent():
                self._anchors.clear()

    def _count_values(self, by: int) -> None:
        self._size += by
        if self._size > self._most:
            raise ValueError("excessive aliasing, or too many values")

    def _open_collection(self, event: Any, values: Any) -> None:
        kind = f"{_TAG}{'map' if isinstance(values, dict) else 'seq'}"
        if event.tag not in (None, "!", kind):
            raise ValueError(f"tag {event.tag!r} is not known")
        if len(self._frames) >= MOST_DEEP:
            raise ValueError("exceeded max depth")
        if self._frames and self._awaits_key(self._frames[-1]):
            raise ValueError("a key is a mapping or a list, not text (is it a template?)")
        self._frames.append(_Frame(values, event.anchor, self._size))
        self._count_values(1)

    def _close_collection(self) -> None:
        frame = self._frames.pop()
        value = frame.values
        for merged in reversed(frame.merged):
            value = merged | value
        if frame.anchor:
            self._anchors[frame.anchor] = value, self._size - frame.begun
        self._put_value(value)

    def _awaits_key(self, frame: _Frame) -> bool:
        return isinstance(frame.values, dict) and not frame.has_key

    def _put_value(self, value: Any) -> None:
        frame = self._frames[-1] if self._frames else None
        if frame is not None and self._awaits_key(frame):
            self._put_key(frame, value)
            return
        value = "<<" if value is _Merge else value
        if frame is None:
            self.documents.append(value)
        elif isinstance(frame.values, list):
            frame.values.append(value)
        else:
            if frame.key is _Merge:
                frame.merged += _merge_keys(value)
            else:
                frame.values[frame.key] = value
            frame.has_key = False

    def _put_key(self, frame: _Frame, value: Any) -> None:
        frame.key, frame.has_key = value if value is _Merge else _read_key(value), True
        if frame.key in frame.values:
            if self._repeated is None:
                raise ValueError(f"duplicate key {frame.key!r}")
            self._repeated.append(self._format_current_path())
        self._record_line()

    def _record_line(self) -> None:
        if self._lines is not None:
            self._lines[self._format_current_path()] = self._line

    def _format_current_path(self) -> str:
        """Write the path of the current value: `a.b[2].c`."""
        steps = (f"[{len(each.values)}]" if isinstance(each.values, list) else str(each.key) for each in self._frames)
        return ".".join(steps).replace(".[", "[")


def _read_scalar(event: Any) -> Any:
    text, tag = event.value, event.tag
    if tag in (None, "!"):
        tag = _resolve_type(text) if event.implicit[0] else _TEXT
    if tag == _MERGE:
        return _Merge
    if tag in (_TEXT, f"{_TAG}binary"):
        return text
    if tag not in _READERS:
        raise ValueError(f"tag {tag!r} is not known")
    if len(text) > _LONGEST_NUMBER:
        raise ValueError("a number is too long")
    try:
        value = _READERS[tag](yaml.ScalarNode(tag, text))
    except Exception:  # noqa: BLE001 - PyYAML lets through what each conversion raises
        raise ValueError(f"{text!r} is not a value of the tag {tag!r}") from None
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{text} is not a JSON number")
    return value


def _resolve_type(text: str) -> str:
    if len(text) <= _LONGEST_NUMBER:
        for tag, pattern in _RESOLVERS.get(text[:1], ()):
            if pattern.match(text):
                return str(tag)
    return _TEXT


def _read_key(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str | int | float):
        return str(value)
    raise ValueError("a key is not text")


def _merge_keys(value: Any) -> list[dict[str, Any]]:
    found = value if isinstance(value, list) else [value]
    if not all(isinstance(part, dict) for part in found):
        raise ValueError("expected a mapping or a list of mappings for merging")
    return found


def load_yaml(text: str | bytes) -> Any:
    """Read one document, None if there is none. Of a repeated key the last value counts. Raise DecodeError."""
    documents = read_documents(text, len(text) + _MOST_ALIASED, [])
    if len(documents) > 1:
        raise DecodeError(f"{len(documents)} documents, not one")
    return next(iter(documents), None)
