"""`vipwire proxy --help`: the flags as text, in groups, with kinds and defaults."""

import textwrap
from collections.abc import Iterator
from typing import Final

from vipwire.config.flags.table import FLAGS, flag_text
from vipwire.config.schema import Group, Setting

_WIDTH: Final = 100


def help_text() -> str:
    """Describe every flag. Flags of old versions are listed by name only, with what became of them."""
    return "\n".join(f"{group.value}:\n{_group(group)}" for group in Group)


def _group(group: Group) -> str:
    flags = [flag for flag in FLAGS.values() if flag.group is group]
    lines = _old(flags) if group is Group.OLD else (line for flag in flags for line in _flag(flag))
    return "\n".join(lines) + "\n"


def usage(flag: Setting) -> str:
    """Write a flag as it is typed: its names, and what kind of value it takes."""
    name = f"-{flag.short}" if flag.short == flag.name else f"--{flag.name}"
    short = f"-{flag.short}, " if flag.short and flag.short != flag.name else ""
    return f"{short}{name} {flag.kind.usage}".rstrip()


def _flag(flag: Setting) -> Iterator[str]:
    default = flag_text(flag)
    shown = f" (default {default})" if default not in ("", "false") else ""
    yield f"  {usage(flag)}{shown}"
    yield from textwrap.wrap(flag.help, _WIDTH, initial_indent=" " * 6, subsequent_indent=" " * 6)


def _old(flags: list[Setting]) -> Iterator[str]:
    reasons: dict[str, list[str]] = {}
    for flag in flags:
        reasons.setdefault(flag.warning, []).append(f"--{flag.name}")
    for reason, names in reasons.items():
        text = f"{', '.join(names)}: {reason}"
        yield from textwrap.wrap(
            text, _WIDTH, initial_indent="  ", subsequent_indent="      ", break_on_hyphens=False
        )
