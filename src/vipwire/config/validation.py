"""Validates a configuration by all rules of kube-proxy 1.36, and reports all errors at once.

Each row of the configuration has the rule of its own value; this module has the rules between several. As in
kube-proxy, a mode's section is only checked if the mode is selected. Paths are those of the file. Source:
pkg/proxy/apis/config/validation.
"""

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from vipwire.config.configuration import KIND, ROWS, Config, LocalMode, split_cidrs
from vipwire.config.kinds import ValueKind, format_duration
from vipwire.config.modes import find_registered, list_mode_names
from vipwire.config.schema import PRIMARY, Setting, check_cidr
from vipwire.model.net import Prefix

_OF_MODES: Final = ("iptables", "nftables", "ipvs")
"""Sections that only some modes read."""


class FieldError(NamedTuple):
    """One invalid field: its path in the file, its value and the allowed values."""

    path: str
    value: object
    message: str

    def __str__(self) -> str:
        value = f'"{self.value}"' if isinstance(self.value, str) else self.value
        return f"{KIND}.{self.path}: Invalid value: {value}: {self.message}"


def validate(config: Config) -> tuple[FieldError, ...]:
    """Check every rule; empty if valid."""
    sections = _list_relevant_sections(config)
    errors = [
        error
        for row in ROWS.values()
        if _is_relevant(row, sections)
        for error in _check_setting(row, row.value(config))
    ]
    for section in sections:
        errors += _check_periods(section, getattr(config, section))
    if "nftables" in sections:
        errors += _check_offloading(config)
    for rule in (_check_host_name, _check_node_ports, _check_detect_local, _check_vmodule):
        errors += rule(config)
    return tuple(errors)


def _list_relevant_sections(config: Config) -> tuple[str, ...]:
    """Return the sections of the selected mode; a blank mode reads `iptables`, too."""
    selected = find_registered(config.proxy_mode).settings.periods if config.proxy_mode in list_mode_names() else ""
    return tuple(name for name in _OF_MODES if name == selected or (name == "iptables" and not config.mode))


def _is_relevant(row: Setting, sections: tuple[str, ...]) -> bool:
    section = row.path.partition(".")[0]
    # ipvs mode masquerades by the bit of `iptables`, too.
    return section in sections or section not in _OF_MODES or row.path == "iptables.masqueradeBit"


def _check_setting(row: Setting, value: Any) -> Iterator[FieldError]:
    items = ((f"{row.path}[{i}]", item) for i, item in enumerate(value)) if row.kind is ValueKind.STRINGS else None
    for path, each in items or ((row.path, value),):
        for message in row.check(each) if row.check else ():
            yield FieldError(path, each if isinstance(each, int | str) else row.kind.text(each), message)


def _check_periods(section: str, periods: Any) -> Iterator[FieldError]:
    if periods.min_sync_period > periods.sync_period > 0:
        least = format_duration(periods.min_sync_period)
        message = f"must be greater than or equal to {section}.minSyncPeriod, which is {least}"
        yield FieldError(f"{section}.syncPeriod", format_duration(periods.sync_period), message)


def _check_offloading(config: Config) -> Iterator[FieldError]:
    packets = config.nftables.offload_packet_threshold
    if packets > 0 and config.counters.traffic:
        message = "must be 0 with counters.traffic: rules cannot count offloaded packets"
        yield FieldError("nftables.offloadPacketThreshold", packets, message)


def _check_host_name(config: Config) -> Iterator[FieldError]:
    if "hostnameOverride" in config.explicit and not config.hostname_override:
        yield FieldError("hostnameOverride", "", "must not consist of blanks only")


def _check_node_ports(config: Config) -> Iterator[FieldError]:
    for index, text in enumerate(config.node_port_addresses):
        if text == PRIMARY and len(config.node_port_addresses) > 1:
            yield FieldError(f"nodePortAddresses[{index}]", text, "cannot be used together with CIDRs or twice")


def _check_detect_local(config: Config) -> Iterator[FieldError]:
    mode, names = config.detect_local_mode, config.detect_local
    if mode == LocalMode.BRIDGE_INTERFACE.value and not names.bridge_interface:
        yield FieldError("detectLocal.bridgeInterface", "", f"must not be empty with detectLocalMode {mode}")
    elif mode == LocalMode.INTERFACE_NAME_PREFIX.value and not names.interface_name_prefix:
        yield FieldError("detectLocal.interfaceNamePrefix", "", f"must not be empty with detectLocalMode {mode}")
    elif mode in (LocalMode.CLUSTER_CIDR.value, ""):
        yield from _check_cluster_cidr(config.cluster_cidr)


def _check_cluster_cidr(text: str) -> Iterator[FieldError]:
    parts = split_cidrs(text)
    errors = [FieldError("clusterCIDR", part, message) for part in parts for message in check_cidr(part)]
    yield from errors
    pair = "must be a single CIDR or a dual-stack pair of CIDRs (such as 10.100.0.0/16,fde4:8dba:82e1::/48)"
    one_family = not errors and len(parts) == 2 and len({Prefix.parse(part).family for part in parts}) == 1
    if len(parts) > 2 or one_family:
        yield FieldError("clusterCIDR", text, pair)


def _check_vmodule(config: Config) -> Iterator[FieldError]:
    items = config.logging.vmodule
    if items and config.logging.format != "text":
        yield FieldError("logging.vmodule", len(items), "is only supported with the text format")
    for index, item in enumerate(items):
        path = f"logging.vmodule[{index}]"
        if not item.file_pattern or any(letter in item.file_pattern for letter in ",="):
            message = "must not be empty or contain a comma or an equals sign"
            yield FieldError(f"{path}.filePattern", item.file_pattern, message)
        if item.verbosity < 0:
            yield FieldError(f"{path}.verbosity", item.verbosity, "must not be negative")
