"""The command line of the commands that show: the flags of `vipwire proxy`, and each command's own options.

The flags have the same form and meaning as the proxy's, so that users can paste the proxy's flags behind any command.
The environment variable `VIPWIRE_FLAGS` holds flags for those not given.
"""

import difflib
import os
from collections.abc import Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any, Final

import click

from vipwire.config.configuration import Config
from vipwire.config.flag_help import build_click_options, format_usage
from vipwire.config.flags import ENVIRONMENT, FLAGS, Given, build_config, parse_environment_flags, parse_flags
from vipwire.config.kinds import ValueKind
from vipwire.config.schema import Setting
from vipwire.errors import ConfigError
from vipwire.proxy_daemon.start.record import read_record
from vipwire.terminal.output import FAILED, MISUSED, plain_errors, print_warning

_SHOWN: Final = (
    "manifests",
    "kubeconfig",
    "master",
    "config",
    "hostname-override",
    "cluster-cidr",
    "detect-local-mode",
    "nodeport-addresses",
    "masquerade-all",
    "bind-address",
    "proxy-mode",
)
"""The flags that `--help` explains; the command accepts all others of `vipwire proxy` too."""

_SOURCES: Final = frozenset({"manifests", "kubeconfig", "master"})
_DATA_DIR: Final = "Ask the `vipwire up` that has this data directory, as for `vipwire expose`."
_REFUSED: Final = frozenset(
    {"cleanup", "cleanup-all", "cleanup-iptables", "init-only", "takeover", "write-config-to"}
)


class LookCommand(click.Command):
    """A click command that also accepts the proxy's flags, and passes their configuration as `config`."""

    trouble = FAILED
    """The exit status of an error."""

    def __init__(self, *args: Any, **extra: Any) -> None:
        super().__init__(*args, **extra)
        self.params.append(click.Option(["--data-dir"], type=click.Path(path_type=Path), help=_DATA_DIR))

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Separate the proxy's flags from this command's own options and arguments."""
        if ctx.resilient_parsing:  # a shell completes an unfinished line
            taken = {name for parameter in self.params for name in parameter.opts}
            self.params += [option for option in build_click_options() if not taken & set(option.opts)]
            return super().parse_args(ctx, args)
        own = {name for parameter in self.get_params(ctx) for name in (*parameter.opts, *parameter.secondary_opts)}
        try:
            flags, rest = _split_flags(args, own)
            given = {**parse_environment_flags(), **parse_flags(flags)}
        except ConfigError as error:
            raise click.UsageError(str(error), ctx) from error
        try:
            left = super().parse_args(ctx, rest)
        except click.NoSuchOption as error:
            near = difflib.get_close_matches(error.option_name, [f"--{name}" for name in FLAGS] + sorted(own), n=1)
            raise click.NoSuchOption(error.option_name, possibilities=near, ctx=ctx) from error
        if (data_dir := ctx.params.pop("data_dir", None)) is not None:
            given = {**given, "kubeconfig": str(data_dir / "admin.kubeconfig")}
        with plain_errors(MISUSED):
            ctx.params["config"] = _build_config({**find_running_flags(given), **given})
        return left

    def invoke(self, ctx: click.Context) -> Any:
        with plain_errors(self.trouble):
            return super().invoke(ctx)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        super().format_options(ctx, formatter)
        with formatter.section("Source of objects (flags of `vipwire proxy`, with the same values)"):
            formatter.write_dl([(format_usage(FLAGS[name]), FLAGS[name].help) for name in _SHOWN])
        with formatter.indentation():
            formatter.write_text(
                "An absent flag takes its value from the proxy on this node, or from the last one. Without "
                f"--manifests the command reads from the API server, like the proxy. Without --kubeconfig and "
                f"--master it uses the first of these: $KUBECONFIG or ~/.kube/config, as kubectl does; the Pod's "
                f"service account; a `vipwire up` on this machine. The command also accepts the other flags of "
                f"`vipwire proxy`. Flags in the variable {ENVIRONMENT} come before the proxy's."
            )


def find_running_flags(given: Given) -> Given:
    """Return the flags of this machine's running or last proxy, as defaults for flags not given.

    A given configuration file replaces all of them; a given object source replaces the proxy's whole source.
    """
    _, record = read_record(given.get("state-dir") or Config().state_dir)
    if record is None or "config" in given:
        return {}
    with suppress(ConfigError):  # the record of another version, with unknown flags
        found = parse_flags(record.flags)
        if _SOURCES & given.keys():
            found = {name: value for name, value in found.items() if name not in _SOURCES}
        return {name: value for name, value in found.items() if _is_useful(name, value)}
    return {}


def _is_useful(name: str, value: Any) -> bool:
    """Report whether a proxy's flag is useful here: files of a container may not exist on its node."""
    paths = value if name == "manifests" else (value,) if name == "kubeconfig" else ()
    return all(os.access(path, os.R_OK) for path in paths)


class CompareCommand(LookCommand):
    """A command that exits with 1 if it found something and with 2 on errors, as diff(1) does."""

    trouble = MISUSED


def _split_flags(args: Sequence[str], own: set[str]) -> tuple[list[str], list[str]]:
    """Split arguments into the proxy's flags and the rest. An option of the command wins over a flag of that name."""
    flags: list[str] = []
    rest: list[str] = []
    words = iter(args)
    for word in words:
        flag = None if word in ("-", "--") or word.partition("=")[0] in own else _find_flag(word)
        if word == "--":
            return flags, [*rest, word, *words]
        if flag is None:
            # kubectl accepts `-o=json`, click `-o json`.
            short = len(word) > 3 and word[0] == "-" and word[1] not in "-=" and word[2] == "="
            rest.extend([word[:2], word[3:]] if short else [word])
            continue
        if flag.name in _REFUSED:
            raise ConfigError(f"--{flag.name} has no meaning for a command that only reads")
        flags.append(word)
        if "=" not in word and flag.kind is not ValueKind.BOOL:
            flags.extend(islice(words, 1))
    return flags, rest


def _find_flag(word: str) -> Setting | None:
    if not word.startswith("--"):
        return None
    flag = FLAGS.get(word[2:].partition("=")[0].replace("_", "-"))
    return None if flag is not None and flag.name in ("help", "version") else flag


def _build_config(given: Any) -> Config:
    config, warnings = build_config(given)
    for warning in warnings:
        print_warning(warning)
    return config


def scope_services(service: str, namespace: str, *, everywhere: bool) -> str:
    """Write the requested Services as `find_services` reads them. Raise UsageError for -n beside -A or NS/NAME."""
    if namespace and everywhere:
        raise click.UsageError("-n and -A contradict each other")
    if namespace and "/" in service:
        raise click.UsageError(f"{service!r} has a namespace of its own: leave out -n")
    return f"{namespace}/{service}" if namespace else service


NAMESPACE = click.option("--namespace", "-n", default="", metavar="NS", help="Only the Services of this namespace.")
EVERYWHERE = click.option("--all-namespaces", "-A", "everywhere", is_flag=True, help="All namespaces, the default.")
WATCH = click.option("--watch", "-w", is_flag=True, help="Show changes until Ctrl-C.")
INTERVAL = click.option(
    "--interval",
    type=click.FloatRange(max=86400.0),
    default=2.0,
    show_default=True,
    help="With --watch: seconds between two readings.",
)
SERVICES_OUTPUT = click.option(
    "--output",
    "-o",
    type=click.Choice(["table", "wide", "json", "yaml", "name"]),
    default="table",
    show_default=True,
    help="Output format: tables for people, json or yaml for programs, or only the Services' names.",
)
NAMED_OUTPUT = click.option(
    "--output",
    "-o",
    type=click.Choice(["table", "wide", "json", "yaml", "name"]),
    default="table",
    show_default=True,
    help="Output format: tables for people, json or yaml for programs, or only names: of endpoints that can answer "
    "(explain), get connections (trace) or are drained (drain), of busy Services (top), of objects that would "
    "change (diff), of failed checks (check).",
)
