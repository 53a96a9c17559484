"""From YAML nodes to the frozen sections of the configuration, driven by the settings' descriptions.

The nodes are walked instead of constructed objects because nodes know their line and still show duplicate keys. What
is merely unknown or given twice is a warning, because kube-proxy's own reader falls back to lenient decoding there;
a value of the wrong type is an error, and all errors of a file are collected.
"""

import re
from typing import TYPE_CHECKING, Any, Final

from yaml import MappingNode, Node, ScalarNode, SequenceNode
from yaml.constructor import SafeConstructor

from vipwire.config.duration import parse_duration
from vipwire.config.schema import Setting, ValueKind, file_fields, setting_of
from vipwire.config.sections import ModuleVerbosity

if TYPE_CHECKING:
    import dataclasses
    from collections.abc import Callable

_TAG: Final = "tag:yaml.org,2002:"
_QUANTITY = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([numkMGTPE]|[KMGTPE]i|[eE][+-]?[0-9]+)?")
_INT32: Final = range(-(2**31), 2**31)


class _InvalidValueError(Exception):
    """A value of the wrong kind; becomes one line of the decoder's errors."""

    def __init__(self, node: Node, path: str, text: str) -> None:
        super().__init__(text)
        self.node = node
        self.path = path


class Decoder:
    """Decodes one file and collects what is wrong with it.

    `errors` and `warnings` are lines that start with `file:line:`; `explicit` the paths that chose a value.
    """

    def __init__(self, file: str) -> None:
        self.file = file
        self.errors: list[str] = []
        self.warnings: list[str] = []
        self.explicit: set[str] = set()

    def section(self, node: Node, kind: type[Any], path: str = "", ignore: frozenset[str] = frozenset()) -> Any:
        """Decode a section from a mapping node; `ignore` names keys that somebody else reads."""
        known = {setting_of(field).name: field for field in file_fields(kind)}
        values: dict[str, Any] = {}
        for name, (key, value) in self._entries(node, path).items():
            field = known.get(name)
            if field is not None:
                self._field(field, value, _join(path, name), values)
            elif name not in ignore:
                self._warn(key, f"{_join(path, name)}: unknown field, ignored{_suggestion(name, known)}")
        return kind(**values)

    def scalar(self, node: Node, name: str) -> str:
        """Read a top-level scalar such as `kind` as it is written; empty when it is missing."""
        entry = self._entries(node, "").get(name)
        return str(entry[1].value) if entry and isinstance(entry[1], ScalarNode) else ""

    def _field(self, field: "dataclasses.Field[Any]", node: Node, path: str, values: dict[str, Any]) -> None:
        described = setting_of(field)
        if _is(node, "null"):
            return
        try:
            if described.kind is ValueKind.SECTION:
                values[field.name] = self.section(node, field.metadata["type"], path)
                return
            value = (
                self._gates(node, path) if described.kind is ValueKind.GATES else _KINDS[described.kind](node, path)
            )
        except _InvalidValueError as error:
            self.errors.append(f"{self.file}:{error.node.start_mark.line + 1}: {error.path}: {error}")
            return
        if not _means_default(value, described):
            self.explicit.add(path)
            values[field.name] = value

    def _entries(self, node: Node, path: str) -> dict[str, tuple[Node, Node]]:
        entries: dict[str, tuple[Node, Node]] = {}
        for key, value in _pairs(node, path):
            name = str(key.value)
            if name in entries:
                self._warn(key, f"{_join(path, name)}: given twice, the last one counts")
            entries[name] = (key, value)
        return entries

    def _gates(self, node: Node, path: str) -> tuple[tuple[str, bool], ...]:
        entries = self._entries(node, path).items()
        return tuple(sorted((name, _bool(value, f"{path}.{name}")) for name, (_, value) in entries))

    def _warn(self, node: Node, text: str) -> None:
        self.warnings.append(f"{self.file}:{node.start_mark.line + 1}: {text}")


def _pairs(node: Node, path: str) -> list[tuple[Node, Node]]:
    if not isinstance(node, MappingNode):
        raise _wrong_kind(node, path, ValueKind.SECTION)
    SafeConstructor().flatten_mapping(node)
    return list(node.value)


def _string(node: Node, path: str) -> str:
    if isinstance(node, ScalarNode) and not _is(node, "str"):
        raise _InvalidValueError(node, path, f"must be a string, not {node.value}: write it in quotes")
    return str(_scalar(node, path, ValueKind.STRING, "str").value)


def _bool(node: Node, path: str) -> bool:
    return bool(SafeConstructor().construct_yaml_bool(_scalar(node, path, ValueKind.BOOL, "bool")))


def _int(node: Node, path: str) -> int:
    scalar = _scalar(node, path, ValueKind.INT, "int")
    try:
        value = int(SafeConstructor().construct_yaml_int(scalar))
    except ValueError:  # more than 4,300 digits
        value = -(1 << 63)
    if value not in _INT32:
        raise _InvalidValueError(node, path, f"{scalar.value[:80]} does not fit into 32 bits")
    return value


def _float(node: Node, path: str) -> float:
    scalar = _scalar(node, path, ValueKind.FLOAT, "int", "float")
    return float(SafeConstructor().construct_yaml_float(scalar))


def _duration(node: Node, path: str) -> float:
    scalar = _scalar(node, path, ValueKind.DURATION, "str", "int")
    if _is(scalar, "int") and scalar.value != "0":
        raise _wrong_kind(node, path, ValueKind.DURATION)
    try:
        return parse_duration(scalar.value)
    except ValueError as error:
        raise _InvalidValueError(node, path, str(error)) from error


def _strings(node: Node, path: str) -> tuple[str, ...]:
    if not isinstance(node, SequenceNode):
        raise _wrong_kind(node, path, ValueKind.STRINGS)
    return tuple(_string(item, f"{path}[{index}]") for index, item in enumerate(node.value))


def _quantity(node: Node, path: str) -> str:
    scalar = _scalar(node, path, ValueKind.QUANTITY, "str", "int", "float")
    if not _QUANTITY.fullmatch(scalar.value):
        raise _wrong_kind(node, path, ValueKind.QUANTITY)
    return str(scalar.value)


def _vmodule(node: Node, path: str) -> tuple[ModuleVerbosity, ...]:
    if not isinstance(node, SequenceNode):
        raise _wrong_kind(node, path, ValueKind.VMODULE)
    return tuple(_module_verbosity(item, f"{path}[{index}]") for index, item in enumerate(node.value))


def _module_verbosity(node: Node, path: str) -> ModuleVerbosity:
    entries = {str(key.value): value for key, value in _pairs(node, path)}
    if set(entries) != {"filePattern", "verbosity"}:
        raise _wrong_kind(node, path, ValueKind.VMODULE)
    pattern = _string(entries["filePattern"], f"{path}.filePattern")
    return ModuleVerbosity(pattern, _int(entries["verbosity"], f"{path}.verbosity"))


_KINDS: "Final[dict[ValueKind, Callable[[Node, str], Any]]]" = {
    ValueKind.STRING: _string,
    ValueKind.BOOL: _bool,
    ValueKind.INT: _int,
    ValueKind.FLOAT: _float,
    ValueKind.DURATION: _duration,
    ValueKind.STRINGS: _strings,
    ValueKind.QUANTITY: _quantity,
    ValueKind.VMODULE: _vmodule,
}


def _scalar(node: Node, path: str, kind: ValueKind, *tags: str) -> ScalarNode:
    if isinstance(node, ScalarNode) and any(_is(node, tag) for tag in tags):
        return node
    raise _wrong_kind(node, path, kind)


def _wrong_kind(node: Node, path: str, kind: ValueKind) -> _InvalidValueError:
    found = repr(node.value) if isinstance(node, ScalarNode) else "a list or a mapping"
    return _InvalidValueError(node, path, f"must be {kind.value}, not {found}")


def _is(node: Node, tag: str) -> bool:
    return bool(node.tag == _TAG + tag)


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _suggestion(name: str, known: dict[str, Any]) -> str:
    lowered = {other.lower(): other for other in known}
    import difflib  # noqa: PLC0415  # only for a mistake

    close = difflib.get_close_matches(name.lower(), lowered, n=1)
    return f" (did you mean {lowered[close[0]]}?)" if close else ""


def _means_default(value: object, described: Setting) -> bool:
    """Report whether Go's zero value stands here, which in a field without a pointer means the default."""
    return not described.pointer and value in ("", 0, ())
