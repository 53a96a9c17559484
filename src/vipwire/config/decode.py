"""Decodes a YAML document into the frozen sections of the configuration, by their rows.

Unknown and repeated fields are warnings, because kube-proxy's reader falls back to lenient decoding there; a value of
the wrong type is an error. All errors of a file are collected.
"""

import re
from typing import Any, Final

from msgspec.structs import replace

from vipwire.config.kinds import ModuleVerbosity, ValueKind, check_int32, parse_duration
from vipwire.config.schema import Section, Setting
from vipwire.config.yaml_values import read_documents
from vipwire.errors import ConfigError, DecodeError
from vipwire.model.text import find_nearest

_MOST_ALIASED: Final = 10_000
_QUANTITY: Final = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([numkMGTPE]|[KMGTPE]i|[eE][+-]?[0-9]+)?")
_TYPES: Final[dict[ValueKind, tuple[type, ...]]] = {
    ValueKind.STRING: (str,),
    ValueKind.BOOL: (bool,),
    ValueKind.INT: (int,),
    ValueKind.FLOAT: (int, float),
    ValueKind.DURATION: (str, int),
    ValueKind.STRINGS: (list,),
    ValueKind.GATES: (dict,),
    ValueKind.QUANTITY: (str, int, float),
    ValueKind.VMODULE: (list,),
    ValueKind.SECTION: (dict,),
}
"""The YAML nodes of each kind of value."""


class _InvalidValueError(Exception):
    """A value of the wrong kind; becomes one line of the decoder's errors."""

    def __init__(self, path: str, text: str) -> None:
        super().__init__(text)
        self.path = path


class Decoder:
    """Decodes one file and collects its errors and warnings.

    `document` is the parsed text. `errors` and `warnings` are lines that start with `file:line:`; `explicit` are the
    paths with values.
    """

    def __init__(self, file: str, text: str) -> None:
        """Raise ConfigError for a text that is not YAML."""
        self.file = file
        self.errors: list[str] = []
        self.explicit: set[str] = set()
        self._lines: dict[str, int] = {}
        repeated: list[str] = []
        try:
            documents = read_documents(text, len(text) + _MOST_ALIASED, repeated, self._lines)
        except DecodeError as error:
            raise ConfigError(f"{file}: is neither YAML nor JSON: {error}") from error
        self.document: Any = documents[0] if len(documents) == 1 else None
        self.warnings = [self._locate_message(path, "given twice, the last one counts") for path in repeated]

    def section(self, values: Any, section: Section, path: str = "", ignore: frozenset[str] = frozenset()) -> Any:
        """Decode a section from a mapping, over its defaults; `ignore` names keys that the caller reads."""
        known = {row.path: row for row in type(section).settings.values() if row.in_file}
        found: dict[str, Any] = {}
        for name, value in values.items():
            at = f"{path}.{name}" if path else name
            if name in known and value is not None:
                self._field(known[name], value, at, found)
            elif name not in known and name not in ignore:
                self.warnings.append(self._locate_message(at, f"unknown field, ignored{_suggest_name(name, known)}"))
        return replace(section, **found)

    def _field(self, row: Setting, value: Any, path: str, found: dict[str, Any]) -> None:
        try:
            decoded = _decode_value(row.kind, value, path)
        except _InvalidValueError as error:
            self.errors.append(self._locate_message(error.path, str(error)))
            return
        if row.kind is ValueKind.SECTION:
            found[row.attribute] = self.section(value, row.default, path)
        elif row.pointer or decoded not in ("", 0, ()):  # otherwise Go's zero value, which means the default
            self.explicit.add(path)
            found[row.attribute] = decoded

    def _locate_message(self, path: str, text: str) -> str:
        at = path
        while at and at not in self._lines:  # the values of an alias have the lines of its anchor
            at = at[: max(at.rfind("."), at.rfind("["), 0)]
        return f"{self.file}:{self._lines.get(at, 1)}: {path}: {text}"


def _decode_value(kind: ValueKind, value: Any, path: str) -> Any:
    """Convert a value of the file to the configuration's type. Raise _InvalidValueError."""
    text = str(value).lower() if isinstance(value, bool) else str(value)
    number = kind is ValueKind.DURATION and isinstance(value, int) and value != 0
    if type(value) not in _TYPES[kind] or number or (kind is ValueKind.QUANTITY and not _QUANTITY.fullmatch(text)):
        found = "a list or a mapping" if isinstance(value, list | dict) else repr(text[:80])
        if kind is ValueKind.STRING and not isinstance(value, list | dict):
            found = f"{text}: write it in quotes"
        raise _InvalidValueError(path, f"must be {kind.allowed}, not {found}")
    decoded = value
    match kind:
        case ValueKind.STRINGS:
            decoded = tuple(
                _decode_value(ValueKind.STRING, item, f"{path}[{index}]") for index, item in enumerate(value)
            )
        case ValueKind.GATES:
            gates = ((name, _decode_value(ValueKind.BOOL, on, f"{path}.{name}")) for name, on in value.items())
            decoded = tuple(sorted(gates))
        case ValueKind.VMODULE:
            decoded = tuple(_decode_module_verbosity(item, f"{path}[{index}]") for index, item in enumerate(value))
        case ValueKind.FLOAT:
            decoded = float(value)
        case ValueKind.QUANTITY:
            decoded = text
        case ValueKind.INT | ValueKind.DURATION:
            try:
                decoded = check_int32(value, text) if kind is ValueKind.INT else parse_duration(text)
            except ValueError as error:
                raise _InvalidValueError(path, str(error)) from error
    return decoded


def _decode_module_verbosity(item: Any, path: str) -> ModuleVerbosity:
    found = _decode_value(ValueKind.SECTION, item, path)
    if found.keys() != {"filePattern", "verbosity"}:
        raise _InvalidValueError(path, f"must be {ValueKind.VMODULE.allowed}, not a list or a mapping")
    return ModuleVerbosity(
        _decode_value(ValueKind.STRING, found["filePattern"], f"{path}.filePattern"),
        _decode_value(ValueKind.INT, found["verbosity"], f"{path}.verbosity"),
    )


def _suggest_name(name: str, known: dict[str, Any]) -> str:
    lowered = {other.lower(): other for other in known}
    near = find_nearest(name.lower(), lowered)
    return f" (did you mean {lowered[near]}?)" if near else ""
