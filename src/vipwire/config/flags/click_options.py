"""The proxy's flags as options of click's: for completion and for other commands."""

from functools import cache
from typing import Any

import click

from vipwire.config.checks import OneOf
from vipwire.config.flags.table import FLAGS
from vipwire.config.kinds import ValueKind
from vipwire.config.schema import Group, Setting


@cache
def flag_options() -> tuple[click.Option, ...]:
    """Describe the proxy's flags as options of click's, those of old versions left out."""
    return tuple(_option(flag) for flag in FLAGS.values() if flag.group is not Group.OLD)


def _option(flag: Setting) -> click.Option:
    name = f"flag_{flag.name.replace('-', '_')}"
    # As in --help: `-v`, not `--v`.
    words = (f"-{flag.short}",) if flag.short == flag.name else (f"--{flag.name}",)
    short = (f"-{flag.short}",) if flag.short and flag.short != flag.name else ()
    if flag.kind is ValueKind.BOOL:
        return click.Option([*words, *short, name], is_flag=True, help=flag.help)
    return click.Option([*words, *short, name], type=_type(flag), multiple=flag.repeats, help=flag.help)


def _type(flag: Setting) -> click.ParamType[Any]:
    if flag.path_of_file:
        return click.Path()
    return click.Choice(flag.check.words()) if isinstance(flag.check, OneOf) else click.STRING
