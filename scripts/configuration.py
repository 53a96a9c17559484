"""Write docs/configuration.md from the table of flags: `make docs`. A test holds the file to what this writes."""

from collections.abc import Iterator
from pathlib import Path

from vipwire.config.configuration import ROWS
from vipwire.config.flags import FLAGS, flag_text
from vipwire.config.kinds import ValueKind
from vipwire.config.schema import Group, Setting

PATH = Path(__file__).parent.parent / "docs" / "configuration.md"

_INTRODUCTION = """\
# Configuration

This page has every flag of `vipwire proxy`, as `vipwire proxy --help` prints it, and the field of
`KubeProxyConfiguration` (`kubeproxy.config.k8s.io/v1alpha1`) that the flag sets. `make docs` writes it from
the rows in `src/vipwire/config`.

* Flags are in Go's style: `--flag=value` or `--flag value`; booleans `--flag` or `--flag=false`.
* With `--config` vipwire ignores most flags and warns, as kube-proxy does. Flags marked * count beside a file.
* `vipwire proxy --write-config-to=FILE` writes the file that results from all flags, and exits.
* Where one flag sets two fields, the modes `iptables` and `nftables` each have one of their own in a file.
* vipwire reads a changed configuration file at once, and again at SIGHUP: see "When a change counts" at the end.
"""
_CHANGES = """\
## When a change counts

`vipwire proxy` follows the file of `--config`, also where it is mounted from a ConfigMap. It reads the file at SIGHUP
too (`kill -HUP`, `systemctl reload`). kube-proxy exits when its file changes; vipwire goes on. The last column
says what a change of the field does:

* *live*: the new value counts at once, and connections go on. The log names the fields.
* *restart*: the old value counts until vipwire restarts. The log names the fields, and the metric
  `vipwire_config_fields_awaiting_restart` has their number. The live fields of the same file count at once, unless
  they and the old values together are no valid configuration: then all wait.
* *no effect*: vipwire reads and checks the field, and uses it for nothing.

Another `mode` restarts vipwire by itself. If this machine can run that mode, the process replaces itself and hands
over ([modes/changing.md](modes/changing.md)). Everything that waited then counts.

A file that cannot be used changes nothing. The log has each error with file, field and what is allowed, and
`vipwire_config_last_reload_successful` is 0 until the file can be used again.

Flags that count beside a file override it at each reading as at the start. Flags themselves need a restart.

| field | default | a change |
|---|---|---|
"""
_KINDS = {ValueKind.BOOL: "true or false", ValueKind.INT: "number"}
"""Words for kinds that `--help` writes otherwise."""


def document() -> str:
    """Write the whole page."""
    groups = [line for group in Group for line in _group(group)]
    return "\n".join([_INTRODUCTION, *groups, _CHANGES]) + "".join(f"{line}\n" for line in _changes())


def _changes() -> Iterator[str]:
    for row in ROWS.values():
        if row.in_file:
            value = row.kind.plain(row.default)
            text = str(value).lower() if isinstance(value, bool) else str(value)
            default = f"`{text}`" if value not in ("", None, {}, []) else ""
            yield f"| `{row.path}` | {default} | {row.applied.value} |"


def _group(group: Group) -> Iterator[str]:
    flags = [flag for flag in FLAGS.values() if flag.group is group]
    yield f"## {group.value}\n"
    if group is Group.OLD:
        yield "| flag | what became of it |"
        yield "|---|---|"
        yield from (f"| {_name(flag)} | {flag.warning} |" for flag in flags)
    else:
        yield "| flag | value | default | in the file | meaning |"
        yield "|---|---|---|---|---|"
        yield from map(_row, flags)
    yield ""


def _row(flag: Setting) -> str:
    default = flag_text(flag)
    fields = [f"`{path}`" for path in flag.paths if ROWS[path].in_file]
    cells = (
        _name(flag),
        _KINDS.get(flag.kind, flag.kind.usage),
        f"`{default}`" if default else "",
        ", ".join(fields),
        flag.help,
    )
    return f"| {' | '.join(cells)} |".replace("|  |", "| |").replace("|  |", "| |")


def _name(flag: Setting) -> str:
    short = f"`-{flag.short}`" if flag.short else ""
    long = "" if flag.short == flag.name else f"`--{flag.name}`"
    return ", ".join(filter(None, (short, long))) + (" *" if flag.with_config else "")


if __name__ == "__main__":
    PATH.write_text(document(), encoding="utf-8")
