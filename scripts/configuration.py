"""Writes docs/configuration.md from the table of flags: `make docs`. A test compares the file."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from vipwire.config.configuration import ROWS, Config
from vipwire.config.file import build_config_document
from vipwire.config.flags import FLAGS, format_flag
from vipwire.config.schema import Applied, Group, Setting

PATH = Path(__file__).parent.parent / "docs" / "configuration.md"

_INTRODUCTION = """\
# Configuration

Every flag of `vipwire proxy`, and the field of `KubeProxyConfiguration` (`kubeproxy.config.k8s.io/v1alpha1`) that
it sets. `make docs` writes this page.

* Flags are in Go's style: `--flag=value` or `--flag value`; booleans `--flag` or `--flag=false`. `--help` names the
  kind of each value.
* With `--config` vipwire ignores most flags and warns, as kube-proxy does. Flags marked * count beside a file.
* `vipwire proxy --write-config-to=FILE` writes the file that results from all flags, and exits.
* A change of a field in the file counts [at once](#changes-of-the-file), after a restart (†), or never (‡).
* kube-proxy's fields have kube-proxy's meaning, in a sentence each in `vipwire proxy --help`;
  [differences](migrate-from-kube-proxy.md#what-stays-what-differs).
"""
_CHANGES = """\
## Changes of the file

`vipwire proxy` follows the file of `--config`, also a ConfigMap's, and reads it at SIGHUP. The log names the changed
fields; connections go on. `vipwire_config_fields_awaiting_restart` counts fields that wait for a restart (†). Another
`mode` [restarts vipwire](modes/changing.md#in-the-configuration-file). Flags need a restart.

An invalid file changes nothing. The log has each error with file, field and allowed values, and
`vipwire_config_last_reload_successful` is 0 until the file is valid again.

Fields that no flag sets, or with another default than the flag's:

| field | default |
|---|---|
"""
_MARKS = {Applied.LIVE: "", Applied.RESTART: "†", Applied.NEVER: "‡"}


def document() -> str:
    return "\n".join([_INTRODUCTION, *_tables(), _CHANGES]) + "".join(f"{line}\n" for line in _changes())


def _tables() -> Iterator[str]:
    """Yield kube-proxy's flags with their fields, vipwire's own with their meaning, and those without effect."""
    flags = [flag for group in Group for flag in FLAGS.values() if flag.group is group is not Group.OLD]
    fields = set(_paths(build_config_document(Config())))
    theirs = [flag for flag in flags if not fields.isdisjoint(flag.paths)]
    yield from ("## Fields of kube-proxy\n", "| flag, default | in the file |", "|---|---|")
    yield from (_line(*_cells(flag)) for flag in theirs)
    yield from ("\n## Other flags\n", "| flag, default | in the file | meaning |", "|---|---|---|")
    yield from (_line(*_cells(flag), flag.help) for flag in flags if flag not in theirs)
    yield from (f"\n## {Group.OLD.value}\n", "| flags of kube-proxy | in vipwire |", "|---|---|")
    named: dict[str, list[str]] = {}
    for flag in FLAGS.values():
        if flag.group is Group.OLD:
            named.setdefault(flag.warning, []).append(f"`--{flag.name}`")
    for warning, names in named.items():
        yield _line(", ".join(names), warning.replace("has ", "have ") if len(names) > 1 else warning)
    yield ""


def _paths(section: Mapping[str, Any], above: str = "") -> Iterator[str]:
    for name, value in section.items():
        yield f"{above}{name}"
        if isinstance(value, dict):
            yield from _paths(value, f"{above}{name}.")


def _changes() -> Iterator[str]:
    told = {
        path: _default(format_flag(flag))
        for flag in FLAGS.values()
        if flag.group is not Group.OLD
        for path in flag.paths
    }
    for row in ROWS.values():
        value = row.kind.plain(row.default)
        default = _default(
            str(value).lower() if isinstance(value, bool) else "" if value in ("", None, {}, []) else str(value)
        )
        if row.in_file and told.get(row.path) != default:
            yield f"| {_field(row)} | {default} |".replace("|  |", "| |")


def _default(text: str) -> str:
    return f"`{text}`" if text else ""


def _cells(flag: Setting) -> tuple[str, str]:
    rows = [ROWS[path] for path in flag.paths if ROWS[path].in_file]
    return f"{_name(flag)} {_default(format_flag(flag))}".rstrip(), ", ".join(map(_field, rows))


def _line(*cells: str) -> str:
    return f"| {' | '.join(cells)} |".replace("|  |", "| |")


def _field(row: Setting) -> str:
    return f"`{row.path}`{_MARKS[row.applied]}"


def _name(flag: Setting) -> str:
    short = f"`-{flag.short}`" if flag.short else ""
    long = "" if flag.short == flag.name else f"`--{flag.name}`"
    return ", ".join(filter(None, (short, long))) + (" *" if flag.with_config else "")


if __name__ == "__main__":
    PATH.write_text(document(), encoding="utf-8")
