"""Describes a field of the configuration: its name in the file, its kind, its zero value, when changes take effect.

That one description drives the reader and the writer of the file (`config_file`), the flags (`flags_table`) and what
a running proxy does about a changed file (`reload`), so that they cannot diverge.

Go's zero values matter for every ConfigMap that kubeadm has written, where unset fields stand as `0s`, `0` or `""`:
in a field that is not a pointer the zero value *means* the default; in a pointer field only `null` does.
"""

import dataclasses
import enum
from collections.abc import Iterator
from typing import Any

import msgspec

from vipwire.model.value import Value, dataclass_field


class ValueKind(enum.Enum):
    """The kind of a value; the enum's value says what is allowed, for error messages."""

    STRING = "a string"
    BOOL = "true or false"
    INT = "a whole number"
    FLOAT = "a number"
    DURATION = "a duration such as 30s, 1m30s, 500ms, 24h0m0s or 0"
    STRINGS = "a list of strings"
    GATES = "a mapping of feature gates to true or false"
    QUANTITY = "a quantity such as 0, 512, 64Ki or 1M"
    VMODULE = "a list of {filePattern, verbosity}"
    SECTION = "a mapping"


class Applied(enum.Enum):
    """When a changed value in the file counts; the value is the word of the documentation."""

    LIVE = "live"
    RESTART = "restart"
    NEVER = "no effect"


class Setting(Value, frozen=True):
    """A field in the file: its name, its kind, and whether Go has a pointer there.

    `written` is false for fields of older versions, which are read but not written. `applied` says when a change
    counts; a field that nobody has thought about needs a restart. `mode` names the one mode that reads it.
    """

    name: str
    kind: ValueKind
    pointer: bool = False
    written: bool = True
    applied: Applied = Applied.RESTART
    mode: str = ""


class _Described(msgspec.StructMeta):
    """Makes a section: what `setting` and `section` have said of its fields stays in their `metadata`."""

    __dataclass_fields__: "dict[str, dataclasses.Field[Any]]"

    def __new__(cls, name: str, bases: tuple[type, ...], namespace: dict[str, Any], **options: Any) -> "_Described":
        said = {key: value for key, value in namespace.items() if isinstance(value, dataclasses.Field)}
        made = super().__new__(cls, name, bases, {**namespace, **{key: _made(said[key]) for key in said}}, **options)
        made.__dataclass_fields__ = {key: dataclass_field(key, said.get(key)) for key in made.__struct_fields__}
        return made


def _made(said: "dataclasses.Field[Any]") -> Any:
    if said.default_factory is dataclasses.MISSING:
        return said.default
    return msgspec.field(default_factory=said.default_factory)


class Section(Value, frozen=True, metaclass=_Described):
    """The base of the configuration's sections: values, whose fields `setting` and `section` declare."""


def setting(
    name: str,
    kind: ValueKind,
    default: object,
    *,
    pointer: bool = False,
    written: bool = True,
    applied: Applied = Applied.RESTART,
    mode: str = "",
) -> Any:
    """Declare a field that stands in the file under `name`."""
    described = Setting(name, kind, pointer, written, applied, mode)
    return dataclasses.field(default=default, metadata={"setting": described})


def section(name: str, kind: type, *, written: bool = True) -> Any:
    """Declare a field that is a mapping of its own in the file; not `written` is one of defaults only."""
    return dataclasses.field(
        default_factory=kind, metadata={"setting": Setting(name, ValueKind.SECTION, written=written), "type": kind}
    )


def setting_of(field: "dataclasses.Field[Any]") -> Setting:
    """Return how a field of a section stands in the file."""
    described: Setting = field.metadata["setting"]
    return described


def file_fields(kind: type) -> tuple["dataclasses.Field[Any]", ...]:
    """List the fields of a section that stand in the file, in its order."""
    return tuple(field for field in dataclasses.fields(kind) if "setting" in field.metadata)


def file_paths(kind: type, prefix: str = "") -> Iterator[tuple[str, "dataclasses.Field[Any]"]]:
    """Yield every field below a section that is no section itself, with its dotted path in the file's names."""
    for field in file_fields(kind):
        path = f"{prefix}{setting_of(field).name}"
        if setting_of(field).kind is ValueKind.SECTION:
            yield from file_paths(field.metadata["type"], f"{path}.")
        else:
            yield path, field
