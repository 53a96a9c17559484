"""The proxy's flags as options of click's, made from their table: for completion and for other commands."""

from functools import cache
from typing import Any

import click

from vipwire.config.configuration import LocalMode
from vipwire.config.flags.table import FLAGS, Flag, Group
from vipwire.config.modes import mode_names
from vipwire.config.schema import ValueKind

_FILES = frozenset({"config", "kubeconfig", "write-config-to", "manifests"})
_CHOICES = {
    "proxy-mode": mode_names(),
    "detect-local-mode": tuple(mode.value for mode in LocalMode),
    "logging-format": ("text", "json"),
}


@cache
def flag_options() -> tuple[click.Option, ...]:
    """Describe the proxy's flags as options of click's, those of old versions left out."""
    return tuple(_option(flag) for flag in FLAGS.values() if flag.group is not Group.OLD)


def _option(flag: Flag) -> click.Option:
    name = f"flag_{flag.name.replace('-', '_')}"
    # As in --help: `-v`, not `--v`.
    words = (f"-{flag.short}",) if flag.short == flag.name else (f"--{flag.name}",)
    short = (f"-{flag.short}",) if flag.short and flag.short != flag.name else ()
    if flag.kind is ValueKind.BOOL:
        return click.Option([*words, *short, name], is_flag=True, help=flag.help)
    return click.Option([*words, *short, name], type=_type(flag.name), multiple=flag.repeats, help=flag.help)


def _type(name: str) -> click.ParamType[Any]:
    if name in _FILES:
        return click.Path()
    return click.Choice(_CHOICES[name]) if name in _CHOICES else click.STRING
