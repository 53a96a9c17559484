r"""Writes the manual page of every command into a folder: `python -m scripts.man build/man8`.

The source is that of `--help`. The pages are in section 8 (system administration), in the macros of man(7). Every
hyphen is written as `\-`, because groff prints some others as a typographic hyphen, which no shell accepts.
"""

import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

import click

from vipwire import __version__
from vipwire.cli.main import main
from vipwire.config.flag_help import format_usage
from vipwire.config.flags import FLAGS, format_flag
from vipwire.config.schema import Group, Setting

SECTION: Final = 8
_WITH_FLAGS: Final = {("proxy",): True, ("cleanup",): False}
"""Commands that take only the proxy's flags: True if the page lists them, False if it refers to the other page."""
_STATUS: Final = {
    ("proxy",): "0 after SIGTERM or SIGINT: the rules stay. 1 after an error, which is said in one line on standard "
    "error, and when the configuration file has changed, for whatever runs it to start it anew.",
    ("cleanup",): "0 if nothing of vipwire is left, 1 after an error.",
    ("diff",): (
        "0 if the kernel is as planned, 1 if a sync would change anything, 2 if vipwire cannot read the kernel."
    ),
}
_FILES: Final = (
    ("/var/lib/kube-proxy/config.conf", "KubeProxyConfiguration, where kubeadm's ConfigMap is mounted (--config)."),
    ("/etc/vipwire/services", "Manifests of a machine without a cluster, by convention (--manifests)."),
)


def all_pages(root: click.Command) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield the manual page (man(7)) of `root` and of every command below it, by the command's words."""
    contexts = dict(_walk(_context(root, None), ()))
    for path, context in contexts.items():
        yield path, _page(path, context, tuple(contexts))


def _context(command: click.Command, parent: click.Context | None) -> click.Context:
    """Build the context of a run: without its settings, click prints another --help."""
    return click.Context(command, parent, **command.context_settings)


def _walk(context: click.Context, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], click.Context]]:
    yield path, context
    if isinstance(group := context.command, click.Group):
        for name in group.list_commands(context):
            if (inner := group.get_command(context, name)) is not None and not inner.hidden:
                yield from _walk(_context(inner, context), (*path, name))


def _page(path: tuple[str, ...], context: click.Context, every: Sequence[tuple[str, ...]]) -> str:
    command = context.command
    lines = [
        f'.TH "{_title(path).upper()}" "{SECTION}" "" "vipwire {__version__}" "System administration"',
        ".SH NAME",
        f"{_text(_title(path))} \\- {_text(command.get_short_help_str(200).rstrip('.'))}",
        ".SH SYNOPSIS",
        f".B {_text(' '.join(('vipwire', *path)))}",
        _text(" ".join(["[flags]"] if path in _WITH_FLAGS else command.collect_usage_pieces(context))),
        ".SH DESCRIPTION",
        *_paragraphs(command.help or ""),
        *_options(path, context),
        *_commands(path, context, every),
    ]
    if path in _STATUS:
        lines += [".SH EXIT STATUS", _text(_STATUS[path])]
    if path in (("proxy",), ()):
        lines += [".SH FILES", *_list(_FILES)]
    return "\n".join([*lines, *_see_also(path, every)]) + "\n"


def _options(path: tuple[str, ...], context: click.Context) -> Iterator[str]:
    if path in _WITH_FLAGS:
        yield from _flags() if _WITH_FLAGS[path] else (_text("The flags are those of vipwire proxy."),)
        return
    command = context.command
    records = (each.get_help_record(context) for each in command.get_params(context))
    yield ".SH OPTIONS"
    yield from _list(record for record in records if record is not None)
    if type(command).format_options is not click.Command.format_options and not isinstance(command, click.Group):
        yield ".PP"
        yield _text("The flags of vipwire proxy are taken too; --help names those that matter here.")


def _flags() -> Iterator[str]:
    for group in Group:
        yield f'.SH "{_text(group.value.upper())}"'
        yield from _list((format_usage(flag), _explained(flag)) for flag in FLAGS.values() if flag.group is group)


def _explained(flag: Setting) -> str:
    default = format_flag(flag)
    beside = " Counts beside --config." if flag.with_config and flag.group is not Group.OLD else ""
    return f"{flag.help}{beside}" + (f" Default: {default}." if default not in ("", "false") else "")


def _commands(path: tuple[str, ...], context: click.Context, every: Sequence[tuple[str, ...]]) -> Iterator[str]:
    group = context.command
    if not isinstance(group, click.Group):
        return
    yield ".SH COMMANDS"
    below = [each for each in every if each[:-1] == path and each]
    inner = ((each[-1], group.get_command(context, each[-1])) for each in below)
    yield from _list((name, found.get_short_help_str(200)) for name, found in inner if found is not None)


def _see_also(path: tuple[str, ...], every: Sequence[tuple[str, ...]]) -> Iterator[str]:
    near = [each for each in every if each != path and (each[:-1] == path or each == path[:-1] or len(each) == 1)]
    yield ".SH SEE ALSO"
    for index, each in enumerate(near, 1):
        yield f".BR {_text(_title(each))} ({SECTION})" + ("," if index < len(near) else "")


def _list(rows: Iterable[tuple[str, str]]) -> Iterator[str]:
    for term, text in rows:
        yield ".TP"
        yield f".B {_text(term)}"
        yield _text(text)


def _paragraphs(text: str) -> Iterator[str]:
    for index, paragraph in enumerate(re.split(r"\n\s*\n", text.strip(" \n"))):
        if index:
            yield ".PP"
        if paragraph.startswith("\b"):  # click's mark of lines that are not wrapped
            yield from (".nf", *map(_text, paragraph.strip("\b\n").splitlines()), ".fi")
        else:
            yield _text(paragraph)


def _title(path: tuple[str, ...]) -> str:
    return "-".join(("vipwire", *path))


def _text(text: str) -> str:
    """Escape groff's special characters and non-ASCII ones."""
    flat = " ".join(text.split())
    escaped = flat.replace("\\", "\\e").replace("-", "\\-").replace("`", "\\(ga").replace("'", "\\(aq")
    escaped = "".join(each if each.isascii() else f"\\[u{ord(each):04X}]" for each in escaped)
    return f"\\&{escaped}" if escaped.startswith(".") else escaped


def write_pages(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for path, text in all_pages(main):
        (folder / f"{_title(path)}.{SECTION}").write_text(text, encoding="ascii")


if __name__ == "__main__":
    write_pages(Path(sys.argv[1]))
