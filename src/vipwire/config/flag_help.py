"""The text of `vipwire proxy --help`, and the proxy's flags as click options for all other commands."""

import textwrap
from collections.abc import Iterator
from functools import cache
from typing import Any, Final

import click

from vipwire.config.flags import FLAGS, format_flag
from vipwire.config.kinds import ValueKind
from vipwire.config.schema import Group, OneOf, Setting

_WIDTH: Final = 100


def build_help_text() -> str:
    """Describe every flag. Flags of old versions are listed by name and replacement only."""
    return "\n".join(f"{group.value}:\n{_format_group(group)}" for group in Group)


def _format_group(group: Group) -> str:
    flags = [flag for flag in FLAGS.values() if flag.group is group]
    lines = (
        _describe_old_flags(flags) if group is Group.OLD else (line for flag in flags for line in _format_flag(flag))
    )
    return "\n".join(lines) + "\n"


def format_usage(flag: Setting) -> str:
    name = f"-{flag.short}" if flag.short == flag.name else f"--{flag.name}"
    short = f"-{flag.short}, " if flag.short and flag.short != flag.name else ""
    return f"{short}{name} {flag.kind.usage}".rstrip()


def _format_flag(flag: Setting) -> Iterator[str]:
    default = format_flag(flag)
    shown = f" (default {default})" if default not in ("", "false") else ""
    yield f"  {format_usage(flag)}{shown}"
    yield from textwrap.wrap(flag.help, _WIDTH, initial_indent=" " * 6, subsequent_indent=" " * 6)


def _describe_old_flags(flags: list[Setting]) -> Iterator[str]:
    reasons: dict[str, list[str]] = {}
    for flag in flags:
        reasons.setdefault(flag.warning, []).append(f"--{flag.name}")
    for reason, names in reasons.items():
        text = f"{', '.join(names)}: {reason}"
        yield from textwrap.wrap(
            text, _WIDTH, initial_indent="  ", subsequent_indent="      ", break_on_hyphens=False
        )


@cache
def build_click_options() -> tuple[click.Option, ...]:
    """Return the proxy's flags as click options, without those of old versions."""
    return tuple(_build_click_option(flag) for flag in FLAGS.values() if flag.group is not Group.OLD)


def _build_click_option(flag: Setting) -> click.Option:
    name = f"flag_{flag.name.replace('-', '_')}"
    # As in --help: `-v`, not `--v`.
    words = (f"-{flag.short}",) if flag.short == flag.name else (f"--{flag.name}",)
    short = (f"-{flag.short}",) if flag.short and flag.short != flag.name else ()
    if flag.kind is ValueKind.BOOL:
        return click.Option([*words, *short, name], is_flag=True, help=flag.help)
    return click.Option([*words, *short, name], type=_choose_option_type(flag), multiple=flag.repeats, help=flag.help)


def _choose_option_type(flag: Setting) -> click.ParamType[Any]:
    if flag.path_of_file:
        return click.Path()
    return click.Choice(flag.check.words()) if isinstance(flag.check, OneOf) else click.STRING
