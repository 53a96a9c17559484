"""kube-proxy's configuration file: KubeProxyConfiguration v1alpha1 as YAML or JSON, read and written.

Reading is as forgiving as kube-proxy's: an unknown or repeated field is a warning, a wrong type an error. Writing
gives what reading takes: `read_config(dump_config(config))` is the same configuration.
"""

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from vipwire.config.configuration import API_VERSION, KIND, Config, complete
from vipwire.config.duration import format_duration
from vipwire.config.schema import ValueKind, file_fields, setting_of
from vipwire.errors import ConfigError

if TYPE_CHECKING:
    import yaml

    from vipwire.config.decode import Decoder


class Loaded(NamedTuple):
    """A configuration and what has to be said about where it came from, one line per warning."""

    config: Config
    warnings: tuple[str, ...]


def load_config(path: str) -> Loaded:
    """Read the configuration file at `path`. Raise ConfigError, one line per error, that names file and field."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else f"not UTF-8: {error}"
        raise ConfigError(f"{path}: cannot read the configuration file: {reason}") from error
    return read_config(text, path)


def read_config(text: str, file: str = "<config>") -> Loaded:
    """Read a configuration from text; `file` is only named in messages."""
    from vipwire.config.decode import Decoder  # noqa: PLC0415  # with YAML, which a start without a file does not need

    root = _compose(text, file)
    decoder = Decoder(file)
    _check_type(decoder, root)
    config = decoder.section(root, Config, ignore=frozenset({"apiVersion", "kind"}))
    if decoder.errors:
        raise ConfigError("\n".join(decoder.errors))
    config = dataclasses.replace(config, config_file=file, explicit=frozenset(decoder.explicit))
    return Loaded(complete(config), tuple(dict.fromkeys(decoder.warnings)))


def _compose(text: str, file: str) -> "yaml.Node":
    import yaml  # noqa: PLC0415  # see read_config

    if text.lstrip().startswith("{"):
        # JSON may be indented by tabs, which YAML refuses; a bare tab cannot stand inside a JSON string.
        text = text.replace("\t", " ")
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise ConfigError(f"{file}:{line}: is neither YAML nor JSON: {error.problem or error.context}") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"{file}: is neither YAML nor JSON: {' '.join(str(error).split())}") from error
    except RecursionError as error:
        raise ConfigError(f"{file}: is nested too deeply") from error
    if not isinstance(root, yaml.MappingNode):
        raise ConfigError(f"{file}: must be one {KIND} object with apiVersion: {API_VERSION}")
    return root


def _check_type(decoder: "Decoder", root: "yaml.Node") -> None:
    for name, allowed in (("apiVersion", API_VERSION), ("kind", KIND)):
        found = decoder.scalar(root, name)
        if found != allowed:
            reason = f"{found!r} is not supported, " if found else "is missing, "
            decoder.errors.append(f"{decoder.file}: {name}: {reason}must be {allowed}")
    if decoder.errors:
        raise ConfigError("\n".join(decoder.errors))


def config_document(config: Config) -> dict[str, Any]:
    """Return the configuration as the mapping that kube-proxy's file is, with apiVersion and kind first."""
    return {"apiVersion": API_VERSION, "kind": KIND, **_section(config)}


def dump_config(config: Config) -> str:
    """Write the configuration as YAML, keys in alphabetical order as kube-proxy writes them."""
    import yaml  # noqa: PLC0415  # see read_config

    return yaml.safe_dump(config_document(config), sort_keys=True, default_flow_style=False, width=1000)


def _section(section: Any) -> dict[str, Any]:
    return {
        setting_of(field).name: written(getattr(section, field.name), setting_of(field).kind)
        for field in file_fields(type(section))
        if setting_of(field).written or getattr(section, field.name) != _default(field)
    }


def _default(field: "dataclasses.Field[Any]") -> Any:
    return field.default if field.default_factory is dataclasses.MISSING else field.default_factory()


def written(value: Any, kind: ValueKind) -> Any:
    """Format a value as it stands in the file."""
    write = _WRITERS.get(kind)
    return write(value) if write else value


_WRITERS: Final[Mapping[ValueKind, Callable[[Any], Any]]] = {
    ValueKind.SECTION: _section,
    ValueKind.DURATION: format_duration,
    ValueKind.STRINGS: lambda value: list(value) or None,
    ValueKind.GATES: dict,
    ValueKind.VMODULE: lambda value: [{"filePattern": v.file_pattern, "verbosity": v.verbosity} for v in value],
    ValueKind.FLOAT: lambda value: int(value) if value.is_integer() else value,
}
