"""Decides what a running proxy takes of a changed configuration: field by field, all or nothing. Pure.

Each field says for itself whether a running proxy takes a change of it (`Applied`). What needs a
restart keeps the value that it has; the fields beside it count. Unless the two together would be no valid
configuration: then nothing counts before the restart.
"""

from typing import NamedTuple

from msgspec.structs import replace

from vipwire.config.configuration import ROWS, Config
from vipwire.config.schema import Applied, replace_at
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
    waiting = _changed(started, wanted, Applied.RESTART)
    mixed = running
    for row in _IN_FILE:
        if row.applied is not Applied.RESTART:
            mixed = replace_at(mixed, row.attribute, row.value(wanted))
    mixed = replace(mixed, explicit=wanted.explicit)
    live = _changed(running, mixed, Applied.LIVE)
    if waiting and validate(mixed):
        return ConfigChange(running, (), tuple(sorted((*live, *waiting))))
    return ConfigChange(mixed, live, waiting)


_IN_FILE = tuple(row for row in ROWS.values() if row.in_file)


def _changed(before: Config, after: Config, applied: Applied) -> tuple[str, ...]:
    return tuple(row.path for row in _IN_FILE if row.applied is applied and row.value(before) != row.value(after))
