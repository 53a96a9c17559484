"""kube-proxy's configuration file: KubeProxyConfiguration v1alpha1 as YAML or JSON, read and written.

As in kube-proxy, an unknown or repeated field causes a warning, a wrong type an error. `read_config` restores every
configuration that `dump_config` writes.
"""

from pathlib import Path
from typing import Any, NamedTuple

from msgspec.structs import replace

from vipwire.config.configuration import API_VERSION, KIND, Config, fill_dependent_fields
from vipwire.config.kinds import ValueKind
from vipwire.config.schema import Section
from vipwire.errors import ConfigError


class Loaded(NamedTuple):
    """A configuration and its warnings, one line each."""

    config: Config
    warnings: tuple[str, ...]


def load_config(path: str) -> Loaded:
    """Read the configuration file at `path`. Raise ConfigError, one line per error, with file and field."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else f"not UTF-8: {error}"
        raise ConfigError(f"{path}: cannot read the configuration file: {reason}") from error
    return read_config(text, path)


def read_config(text: str, file: str = "<config>") -> Loaded:
    from vipwire.config.decode import Decoder  # noqa: PLC0415  # with YAML, which a start without a file does not need

    if text.lstrip().startswith("{"):
        # JSON may be indented by tabs, which YAML refuses; a bare tab cannot occur inside a JSON string.
        text = text.replace("\t", " ")
    decoder = Decoder(file, text)
    if not isinstance(decoder.document, dict):
        raise ConfigError(f"{file}: must be one {KIND} object with apiVersion: {API_VERSION}")
    _check_type(file, decoder.document)
    config = decoder.section(decoder.document, Config(), ignore=frozenset({"apiVersion", "kind"}))
    if decoder.errors:
        raise ConfigError("\n".join(decoder.errors))
    config = replace(config, config_file=file, explicit=frozenset(decoder.explicit))
    return Loaded(fill_dependent_fields(config), tuple(dict.fromkeys(decoder.warnings)))


def _check_type(file: str, document: dict[str, Any]) -> None:
    errors = []
    for name, allowed in (("apiVersion", API_VERSION), ("kind", KIND)):
        found = document.get(name) or ""
        if found != allowed:
            reason = f"{found!r} is not supported, " if found else "is missing, "
            errors.append(f"{file}: {name}: {reason}must be {allowed}")
    if errors:
        raise ConfigError("\n".join(errors))


def build_config_document(config: Config) -> dict[str, Any]:
    """Return the configuration as the mapping of kube-proxy's file, with apiVersion and kind first."""
    return {"apiVersion": API_VERSION, "kind": KIND, **_build_section_document(config)}


def dump_config(config: Config) -> str:
    """Write the configuration as YAML, keys in alphabetical order as kube-proxy does."""
    import yaml  # noqa: PLC0415  # see read_config

    return yaml.safe_dump(build_config_document(config), sort_keys=True, default_flow_style=False, width=1000)


def _build_section_document(section: Section) -> dict[str, Any]:
    values = ((row, getattr(section, name)) for name, row in type(section).settings.items() if row.in_file)
    return {
        row.path: _build_section_document(value) if row.kind is ValueKind.SECTION else row.kind.plain(value)
        for row, value in values
        if row.written or value != row.default
    }
