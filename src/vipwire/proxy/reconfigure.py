"""Decides what a running proxy takes of a changed configuration: field by field, all or nothing. Pure.

Each field says for itself whether a running proxy takes a change of it (`config_schema.Applied`). What needs a
restart keeps the value that it has; the fields beside it count. Unless the two together would be no valid
configuration: then nothing counts before the restart.
"""

import dataclasses
from typing import Any, NamedTuple

from vipwire.config.configuration import Config
from vipwire.config.schema import Applied, ValueKind, file_fields, file_paths, setting_of
from vipwire.config.validation import validate


class ConfigChange(NamedTuple):
    """The effect of a changed file: the configuration that runs now, its new fields, those that need a restart."""

    config: Config
    live: tuple[str, ...] = ()
    waiting: tuple[str, ...] = ()


def compare_configs(started: Config, running: Config, wanted: Config) -> ConfigChange:
    """Decide what a running proxy takes of a new configuration.

    `started` is what it was told at its start, `running` what it does: another mode, after a fallback, and what
    earlier changes have brought.
    """
    waiting = tuple(path for path in _changed(started, wanted) if _APPLIED[path] is Applied.RESTART)
    mixed = dataclasses.replace(_mix(running, wanted), explicit=wanted.explicit)
    live = tuple(path for path in _changed(running, mixed) if _APPLIED[path] is Applied.LIVE)
    if waiting and validate(mixed):
        return ConfigChange(running, (), tuple(sorted((*live, *waiting))))
    return ConfigChange(mixed, live, waiting)


_APPLIED = {path: setting_of(field).applied for path, field in file_paths(Config)}


def _changed(before: Config, after: Config) -> list[str]:
    return [path for path in _APPLIED if value_at(before, path) != value_at(after, path)]


def value_at(section: Any, path: str) -> Any:
    """Read the field at a path of the file's names."""
    name, _, rest = path.partition(".")
    (field,) = (field for field in file_fields(type(section)) if setting_of(field).name == name)
    value = getattr(section, field.name)
    return value_at(value, rest) if rest else value


def _mix(running: Any, wanted: Any) -> Any:
    """Return `running` with every field of `wanted` that needs no restart."""
    taken = {}
    for field in file_fields(type(running)):
        described = setting_of(field)
        if described.kind is ValueKind.SECTION:
            taken[field.name] = _mix(getattr(running, field.name), getattr(wanted, field.name))
        elif described.applied is not Applied.RESTART:
            taken[field.name] = getattr(wanted, field.name)
    return dataclasses.replace(running, **taken)
