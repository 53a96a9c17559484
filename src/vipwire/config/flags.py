"""The flags of `vipwire proxy`: the reading of a command line, and the configuration made from it.

The names are kube-proxy's, of 1.36 and of every earlier version. A flag without a meaning today causes a warning.

Command lines follow Go's pflag: a boolean takes its value only after an equals sign (`--cleanup=false`); every other
flag takes the text after the equals sign or else the next argument, even one that begins with `-`; underscores in
names are dashes; the last value of a repeated flag counts, lists and feature gates add up.

As in kube-proxy, with `--config` the file decides, and only flags that are `with_config` count beside it.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from msgspec.structs import replace

from vipwire.config.configuration import HEALTHZ_PORT, METRICS_PORT, ROWS, Config, append_port, fill_dependent_fields
from vipwire.config.file import Loaded, load_config
from vipwire.config.gates import find_gate_notes
from vipwire.config.kinds import ValueKind
from vipwire.config.schema import Group, Setting, replace_at
from vipwire.config.validation import validate
from vipwire.errors import ConfigError
from vipwire.model.text import find_nearest

_WINDOWS: Final = "only has a meaning on Windows"
_KLOG: Final = "Kubernetes 1.26 moved log files and streams to the container runtime"
_CLOUD: Final = "vipwire uses no credentials of a cloud"
_NUMBER, _SWITCH, _TEXT = 0, False, ""


def _build_port_setting(server: str, port: int) -> Setting:
    text = f"Deprecated: the port of --{server}-bind-address; 0 disables the server."
    warning = f"is deprecated: use --{server}-bind-address"
    return Setting(f"{server}-port", text, port, group=Group.SERVERS, warning=warning)


def _build_old_flag(name: str, default: object, why: str) -> Setting:
    return Setting(name, default=default, warning=f"has no effect: {why}", beside_file=True)


_LONE: Final[tuple[Setting, ...]] = (
    _build_port_setting("healthz", HEALTHZ_PORT),
    _build_port_setting("metrics", METRICS_PORT),
    Setting("help", "Show this text, and exit.", group=Group.PROCESS, short="h", beside_file=True),
    Setting("version", "Show the version, and exit.", group=Group.PROCESS, beside_file=True),
    replace(
        ROWS["cleanup"], name="cleanup-iptables", text="", group=Group.OLD, warning="is the old name of --cleanup"
    ),
    _build_old_flag("cleanup-ipvs", _SWITCH, "--cleanup removes vipwire's IPVS objects only"),
    _build_old_flag("conntrack-max", _NUMBER, "use --conntrack-max-per-core and --conntrack-min"),
    _build_old_flag("google-json-key", _TEXT, _CLOUD),
    _build_old_flag("azure-container-registry-config", _TEXT, _CLOUD),
    _build_old_flag("resource-container", _TEXT, "the container runtime sets the cgroup"),
    _build_old_flag("boot-id-file", _TEXT, "nothing reads it"),
    _build_old_flag("machine-id-file", _TEXT, "nothing reads it"),
    _build_old_flag("windows-service", _SWITCH, _WINDOWS),
    _build_old_flag("network-name", _TEXT, _WINDOWS),
    _build_old_flag("source-vip", _TEXT, _WINDOWS),
    _build_old_flag("enable-dsr", _SWITCH, _WINDOWS),
    _build_old_flag("root-hnsendpoint-name", _TEXT, _WINDOWS),
    _build_old_flag("forward-healthcheck-vip", _SWITCH, _WINDOWS),
    _build_old_flag("logtostderr", _SWITCH, _KLOG),
    _build_old_flag("alsologtostderr", _SWITCH, _KLOG),
    _build_old_flag("stderrthreshold", _TEXT, _KLOG),
    _build_old_flag("log-dir", _TEXT, _KLOG),
    _build_old_flag("log-file", _TEXT, _KLOG),
    _build_old_flag("log-file-max-size", _NUMBER, _KLOG),
    _build_old_flag("log-backtrace-at", _TEXT, _KLOG),
    _build_old_flag("add-dir-header", _SWITCH, _KLOG),
    _build_old_flag("skip-headers", _SWITCH, _KLOG),
    _build_old_flag("skip-log-headers", _SWITCH, _KLOG),
    _build_old_flag("one-output", _SWITCH, _KLOG),
)


def _collect_settings() -> Iterator[Setting]:
    """Yield the flags in the order of `--help`. If several fields have a flag, yields the last one's row."""
    rows = [row for row in (*ROWS.values(), *_LONE) if row.name]
    paths: dict[str, tuple[str, ...]] = {}
    for row in rows:
        paths[row.name] = (*paths.get(row.name, ()), *filter(None, (row.path,)))
    last = {row.name: row for row in rows}
    order = list(Group)
    for row in sorted(last.values(), key=lambda row: (order.index(row.group), not row.first)):
        yield replace(row, paths=paths[row.name])


FLAGS: Final[dict[str, Setting]] = {row.name: row for row in _collect_settings()}
REMOVED: Final = {"userspace-workers": "one process relays the connections of an IP family; leave the flag out"}
"""Flags of earlier versions, and their replacement."""
SHORT: Final[dict[str, Setting]] = {flag.short: flag for flag in FLAGS.values() if flag.short}
FLAG_OF_PATH: Final[dict[str, str]] = {
    path: f"--{flag.name}" for flag in reversed(FLAGS.values()) for path in flag.paths if flag.group is not Group.OLD
}


def format_flag(flag: Setting, config: Config | None = None) -> str:
    """Write a flag's value in a configuration (None: the default) as on a command line."""
    return flag.kind.text(flag.default if config is None or not flag.paths else flag.value(config))


Given = Mapping[str, Any]
ENVIRONMENT: Final = "VIPWIRE_FLAGS"


def parse_flags(arguments: Sequence[str]) -> Given:
    """Parse a command line. Raise ConfigError, one line, with the flag and its allowed values."""
    values: dict[str, Any] = {}
    for flag, text in _split_arguments(arguments):
        try:
            value = _read_value(flag, text)
        except ValueError as error:
            raise ConfigError(f"invalid argument {text!r} for --{flag.name}: {error}") from None
        values[flag.name] = _combine_values(flag, values.get(flag.name), value)
    return values


def parse_environment_flags() -> Given:
    """Parse the flags in the variable `VIPWIRE_FLAGS`, which the command line overrides. Raise ConfigError."""
    if not (text := os.environ.get(ENVIRONMENT, "")):
        return {}
    import shlex  # noqa: PLC0415  # hardly ever set

    try:
        return parse_flags(shlex.split(text))
    except (ConfigError, ValueError) as error:
        raise ConfigError(f"{ENVIRONMENT}: {error}") from None


def _split_arguments(arguments: Sequence[str]) -> Iterator[tuple[Setting, str]]:
    rest = iter(arguments)
    for argument in rest:
        if not argument.startswith("-") or argument in ("-", "--"):
            raise ConfigError(f"vipwire proxy takes no arguments besides flags, got {argument!r}")
        flag, text = _find_flag(argument)
        if text is None and flag.kind is ValueKind.BOOL:
            text = "true"
        if text is None:
            text = next(rest, None)
        if text is None:
            raise ConfigError(f"flag needs an argument: {argument}")
        yield flag, text


def _find_flag(argument: str) -> tuple[Setting, str | None]:
    if not argument.startswith("--"):
        flag = SHORT.get(argument[1])
        if flag is None:
            raise ConfigError(f"unknown flag: {argument} (flags with long names begin with two dashes)")
        return flag, argument[2:].removeprefix("=") or None
    name, equals, text = argument[2:].partition("=")
    flag = FLAGS.get(name.replace("_", "-"))
    if flag is None and (instead := REMOVED.get(name.replace("_", "-"))):
        raise ConfigError(f"--{name} was removed: {instead}")
    if flag is None:
        near = find_nearest(name.replace("_", "-"), FLAGS)
        raise ConfigError(f"unknown flag: --{name}" + (f" (did you mean --{near}?)" if near else ""))
    return flag, text if equals else None


def _read_value(flag: Setting, text: str) -> Any:
    if flag.repeats:
        return (text,)
    return True if (flag.name, text) == ("version", "raw") else flag.kind.read(text)


def _combine_values(flag: Setting, before: Any, value: Any) -> Any:
    if before is None:
        return value
    if flag.kind is ValueKind.GATES:
        return tuple(sorted({**dict(before), **dict(value)}.items()))
    return before + value if flag.kind is ValueKind.STRINGS else value


def build_config(given: Given) -> Loaded:
    """Build the whole, validated configuration from the flags and the file that they may name.

    Raise ConfigError with one line per error, each with the field's path (and, without a file, the flag).
    """
    warnings = [f"--{name} {FLAGS[name].warning}" for name in given if FLAGS[name].warning]
    if given.get("config"):
        config, said = load_config(given["config"])
        ignored = [f"--{name}" for name in given if not FLAGS[name].with_config]
        warnings += said
        if ignored:
            warnings.append(f"ignored, because --config is given: {', '.join(ignored)}")
        given = {name: value for name, value in given.items() if FLAGS[name].with_config}
    else:
        config = Config()
    config = fill_dependent_fields(_apply_port_flags(_apply_flags(config, given), given))
    _raise_invalid(config)
    return Loaded(config, (*warnings, *_collect_notes(config)))


def _apply_flags(config: Config, given: Given) -> Config:
    for name, value in given.items():
        for path in FLAGS[name].paths:
            chosen = value + config.logging.vmodule if path == "logging.vmodule" else value
            changed = replace_at(config, ROWS[path].attribute, chosen)
            config = replace(changed, explicit=config.explicit | {path})
    return config


def _apply_port_flags(config: Config, given: Given) -> Config:
    """Apply the deprecated port flags: 0 disables a server; a port completes an address without one."""
    servers = (
        ("healthz-port", "healthz_bind_address", "healthzBindAddress", HEALTHZ_PORT),
        ("metrics-port", "metrics_bind_address", "metricsBindAddress", METRICS_PORT),
    )
    for flag, field, path, standard in servers:
        port = given.get(flag)
        if port is None:
            continue
        if path not in config.explicit:
            config = fill_dependent_fields(config)
        address = getattr(config, field)
        if path not in config.explicit:
            address = address.removesuffix(f":{standard}").strip("[]")
        changed: Any = append_port(address, port) if port else ""
        config = replace(config, explicit=config.explicit | {path}, **{field: changed})
    return config


def _raise_invalid(config: Config) -> None:
    errors = validate(config)
    if errors and config.config_file:
        raise ConfigError("\n".join(f"{config.config_file}: {error}" for error in errors))
    if errors:
        flags = [FLAG_OF_PATH.get(error.path.partition("[")[0], "") for error in errors]
        lines = [f"{error} ({flag})" if flag else str(error) for error, flag in zip(errors, flags, strict=True)]
        raise ConfigError("\n".join(lines))


def _collect_notes(config: Config) -> Iterator[str]:
    if not config.allowed_node_port_addresses:
        yield "nodePortAddresses is unset: NodePorts answer on all local addresses; consider 'primary'"
    if config.config_file and not config.mode:
        yield "mode is blank: vipwire uses nftables where kube-proxy uses iptables"
    for path, row in ROWS.items():
        if path in config.explicit and row.mode not in ("", config.proxy_mode):
            yield f"{path if config.config_file else FLAG_OF_PATH[path]} only has a meaning in {row.mode} mode"
    yield from find_gate_notes(config.feature_gates)
    if any(path.startswith("winkernel.") for path in config.explicit):
        yield "winkernel only has a meaning on Windows"


def list_explicit_flags(config: Config) -> tuple[str, ...]:
    """Write the flags for every chosen value, by flag or file; they give the same configuration."""
    return tuple(
        f"--{flag.name}={text}"
        for flag in FLAGS.values()
        if flag.group is not Group.OLD and not flag.own and (path := _find_chosen_path(flag, config))
        for text in _format_values(flag, ROWS[path].value(config))
    )


def _find_chosen_path(flag: Setting, config: Config) -> str:
    """Return the chosen field of a flag; of several sections the mode's first."""
    chosen = [path for path in flag.paths if path in config.explicit]
    return next((path for path in chosen if path.startswith(config.proxy_mode)), chosen[-1] if chosen else "")


def _format_values(flag: Setting, value: Any) -> Iterator[str]:
    for text in value if flag.repeats else (flag.kind.text(value),):
        yield os.path.abspath(text) if flag.path_of_file and text else text  # noqa: PTH100 - no file is touched


def list_flag_values(config: Config) -> dict[str, str]:
    """Return every flag and its value in force, as `/flagz` shows them."""
    shown = (flag for flag in FLAGS.values() if flag.paths and flag.group is not Group.OLD)
    return {flag.name: format_flag(flag, config) for flag in shown}
