"""Write docs/configuration.md from the table of flags: `make docs`. A test holds the file to what this writes."""

from collections.abc import Iterator
from pathlib import Path

from vipwire.app.config_schema import ValueKind
from vipwire.app.flags import default_text
from vipwire.app.flags_table import FLAGS, Flag, Group

PATH = Path(__file__).parent.parent / "docs" / "configuration.md"

_INTRODUCTION = """\
# Configuration

Every flag of `vipwire proxy`, as `vipwire proxy --help` prints it, with the field of `KubeProxyConfiguration`
(`kubeproxy.config.k8s.io/v1alpha1`) that it sets. Written by `make docs` from `src/vipwire/app/flags_table.py`.

* Flags are in Go's style: `--flag=value` or `--flag value`; booleans `--flag` or `--flag=false`.
* With `--config` most flags are ignored, with a warning, as in kube-proxy. Those marked * count beside a file.
* `vipwire proxy --write-config-to=FILE` writes the file that results from all flags, and exits.
* Where one flag sets two fields, the modes `iptables` and `nftables` each have one of their own in a file.
* Modes that are not in this version have their flags already: they are read and checked, and do nothing.
* A changed configuration file ends the process with status 1, for whatever runs it to start it anew; the rules stay.
"""
_KINDS = {
    ValueKind.BOOL: "true or false",
    ValueKind.INT: "number",
    ValueKind.FLOAT: "number",
    ValueKind.DURATION: "duration",
    ValueKind.STRINGS: "list",
    ValueKind.GATES: "Name=bool,...",
    ValueKind.VMODULE: "file=N,...",
    ValueKind.QUANTITY: "quantity",
    ValueKind.STRING: "string",
}
_NOT_IN_FILES = frozenset(
    ("master", "manifests", "proxy_mode_fallback", "init_only", "cleanup", "write_config_to", "config_file")
)


def document() -> str:
    """Write the whole page."""
    return "\n".join([_INTRODUCTION, *(line for group in Group for line in _group(group))])


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


def _row(flag: Flag) -> str:
    default = default_text(flag)
    fields = [f"`{path}`" for path in flag.paths if path not in _NOT_IN_FILES]
    cells = (_name(flag), _KINDS[flag.kind], f"`{default}`" if default else "", ", ".join(fields), flag.help)
    return f"| {' | '.join(cells)} |".replace("|  |", "| |").replace("|  |", "| |")


def _name(flag: Flag) -> str:
    short = f"`-{flag.short}`" if flag.short else ""
    long = "" if flag.short == flag.name else f"`--{flag.name}`"
    return ", ".join(filter(None, (short, long))) + (" *" if flag.with_config else "")


if __name__ == "__main__":
    PATH.write_text(document(), encoding="utf-8")
