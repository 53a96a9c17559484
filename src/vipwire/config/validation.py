"""Validates a configuration: all rules of kube-proxy 1.36, all broken ones reported at once.

A section is only checked where its mode is the selected one, as kube-proxy does: an odd `ipvs` section is nobody's
trouble in nftables mode. Paths are those of the file. Source: pkg/proxy/apis/config/validation.
"""

import re
from collections.abc import Callable, Iterator
from typing import NamedTuple

from vipwire.config.configuration import KIND, PRIMARY, Config, LocalMode, port_range, split_cidrs
from vipwire.config.duration import format_duration
from vipwire.config.gates import gate_errors
from vipwire.config.modes import DEFAULT, mode_names, registered
from vipwire.config.sections import Series
from vipwire.model.net import Prefix, parse_address
from vipwire.model.number import port_number

_MAX_VERBOSITY = 2**31 - 1


class FieldError(NamedTuple):
    """One invalid field: its path in the file, the value it has and what is allowed."""

    path: str
    value: object
    message: str

    def __str__(self) -> str:
        value = f'"{self.value}"' if isinstance(self.value, str) else self.value
        return f"{KIND}.{self.path}: Invalid value: {value}: {self.message}"


def validate(config: Config) -> tuple[FieldError, ...]:
    """Check every rule; nothing means valid."""
    rules: tuple[Callable[[Config], Iterator[FieldError]], ...] = (
        _gates,
        _mode,
        _iptables,
        _nftables,
        _ipvs,
        _conntrack,
        _client,
        _process,
        _addresses,
        _node_ports,
        _detect_local,
        _userspace,
        _counters,
        _logging,
    )
    return tuple(error for rule in rules for error in rule(config))


def _gates(config: Config) -> Iterator[FieldError]:
    for message in gate_errors(config.feature_gates):
        yield FieldError("featureGates", ",".join(f"{n}={str(v).lower()}" for n, v in config.feature_gates), message)


def _mode(config: Config) -> Iterator[FieldError]:
    choice = f"{', '.join(mode_names())} or blank (blank means {DEFAULT})"
    if config.mode and config.mode not in mode_names():
        yield FieldError("mode", config.mode, f"must be {choice}")


def _periods_section(config: Config) -> str:
    """Name the section that has the periods of the selected mode; "" if there is no such mode."""
    return registered(config.proxy_mode).settings.periods if config.proxy_mode in mode_names() else ""


def _iptables(config: Config) -> Iterator[FieldError]:
    yield from _masquerade_bit("iptables", config.iptables.masquerade_bit)
    if not config.mode or _periods_section(config) == "iptables":
        yield from _periods("iptables", config.iptables.sync_period, config.iptables.min_sync_period)


def _nftables(config: Config) -> Iterator[FieldError]:
    if _periods_section(config) == "nftables":
        yield from _masquerade_bit("nftables", config.nftables.masquerade_bit)
        yield from _periods("nftables", config.nftables.sync_period, config.nftables.min_sync_period)
        yield from _offloading(config)


def _offloading(config: Config) -> Iterator[FieldError]:
    packets, path = config.nftables.offload_packet_threshold, "nftables.offloadPacketThreshold"
    if packets < 0:
        yield FieldError(path, packets, "must be greater than or equal to 0")
    elif packets and config.counters.traffic:
        yield FieldError(path, packets, "must be 0 with counters.traffic: no rule could count what is offloaded")


def _ipvs(config: Config) -> Iterator[FieldError]:
    if _periods_section(config) != "ipvs":
        return
    ipvs = config.ipvs
    yield from _periods("ipvs", ipvs.sync_period, ipvs.min_sync_period)
    yield from _not_negative("ipvs.tcpTimeout", ipvs.tcp_timeout)
    yield from _not_negative("ipvs.tcpFinTimeout", ipvs.tcp_fin_timeout)
    yield from _not_negative("ipvs.udpTimeout", ipvs.udp_timeout)
    for index, text in enumerate(ipvs.exclude_cidrs):
        yield from _cidr(f"ipvs.excludeCIDRs[{index}]", text)


def _conntrack(config: Config) -> Iterator[FieldError]:
    conntrack = config.conntrack
    for name, count in (("maxPerCore", conntrack.max_per_core), ("min", conntrack.min)):
        if count < 0:
            yield FieldError(f"conntrack.{name}", count, "must be greater than or equal to 0")
    yield from _not_negative("conntrack.tcpEstablishedTimeout", conntrack.tcp_established_timeout)
    yield from _not_negative("conntrack.tcpCloseWaitTimeout", conntrack.tcp_close_wait_timeout)
    yield from _not_negative("conntrack.udpTimeout", conntrack.udp_timeout)
    yield from _not_negative("conntrack.udpStreamTimeout", conntrack.udp_stream_timeout)


def _client(config: Config) -> Iterator[FieldError]:
    if config.client_connection.burst < 0:
        yield FieldError("clientConnection.burst", config.client_connection.burst, "must be non-negative")


def _process(config: Config) -> Iterator[FieldError]:
    if not -1000 <= config.oom_score_adj <= 1000:
        yield FieldError("oomScoreAdj", config.oom_score_adj, "must be within the range [-1000, 1000]")
    if config.config_sync_period <= 0:
        yield FieldError("configSyncPeriod", format_duration(config.config_sync_period), "must be greater than 0")
    if "hostnameOverride" in config.explicit and not config.hostname_override:
        yield FieldError("hostnameOverride", "", "must not consist of blanks only")
    version = config.show_hidden_metrics_for_version
    if version and not re.fullmatch(r"\d+\.\d+", version):
        yield FieldError("showHiddenMetricsForVersion", version, "must be omitted or be <major>.<minor>")


def _addresses(config: Config) -> Iterator[FieldError]:
    if not _is_address(config.bind_address):
        yield FieldError("bindAddress", config.bind_address, "must be an IP address")
    yield from _host_port("healthzBindAddress", config.healthz_bind_address)
    yield from _host_port("metricsBindAddress", config.metrics_bind_address)
    yield from _host_port("view_bind_address", config.view_bind_address)


def _host_port(path: str, text: str) -> Iterator[FieldError]:
    if not text:
        return
    match = re.fullmatch(r"\[(?P<v6>[^\]]*)\]:(?P<port6>.*)|(?P<v4>[^:]*):(?P<port4>[^:]*)", text)
    if match is None:
        yield FieldError(path, text, "must be IP:port ([IP]:port for IPv6)")
        return
    host, port = match["v6"] or match["v4"] or "", match["port6"] or match["port4"] or ""
    if not _is_address(host):
        yield FieldError(path, text, f"{host!r} must be a valid IP")
    if port_number(port) is None:
        yield FieldError(path, text, f"{port!r} must be a valid port, 1 to 65535")


def _node_ports(config: Config) -> Iterator[FieldError]:
    addresses = config.node_port_addresses
    for index, text in enumerate(addresses):
        path = f"nodePortAddresses[{index}]"
        if text != PRIMARY:
            yield from _cidr(path, text)
        elif len(addresses) > 1:
            yield FieldError(path, text, "cannot be used together with CIDRs or twice")


def _detect_local(config: Config) -> Iterator[FieldError]:
    allowed, mode = [mode.value for mode in LocalMode], config.detect_local_mode
    if mode and mode not in allowed:
        yield FieldError("detectLocalMode", mode, f"must be {', '.join(allowed)} or blank (blank means ClusterCIDR)")
    elif mode == LocalMode.BRIDGE_INTERFACE.value and not config.detect_local.bridge_interface:
        yield FieldError("detectLocal.bridgeInterface", "", f"must not be empty with detectLocalMode {mode}")
    elif mode == LocalMode.INTERFACE_NAME_PREFIX.value and not config.detect_local.interface_name_prefix:
        yield FieldError("detectLocal.interfaceNamePrefix", "", f"must not be empty with detectLocalMode {mode}")
    elif mode in (LocalMode.CLUSTER_CIDR.value, ""):
        yield from _cluster_cidr(config.cluster_cidr)


def _cluster_cidr(text: str) -> Iterator[FieldError]:
    parts = split_cidrs(text)
    errors = [error for part in parts for error in _cidr("clusterCIDR", part)]
    yield from errors
    pair = "must be a single CIDR or a dual-stack pair of CIDRs (such as 10.100.0.0/16,fde4:8dba:82e1::/48)"
    one_family = not errors and len(parts) == 2 and len({Prefix.parse(part).family for part in parts}) == 1
    if len(parts) > 2 or one_family:
        yield FieldError("clusterCIDR", text, pair)


def _userspace(config: Config) -> Iterator[FieldError]:
    if port_range(config.port_range) is None:
        yield FieldError("portRange", config.port_range, "must be a port range such as 30000-32767, or empty")
    if config.udp_idle_timeout <= 0:
        yield FieldError("udpIdleTimeout", format_duration(config.udp_idle_timeout), "must be greater than 0")
    if config.userspace_bind not in ("", "vip", "none"):
        removed = "; loopback was removed" if config.userspace_bind == "loopback" else ""
        yield FieldError("userspaceBind", config.userspace_bind, f"must be vip, none or empty{removed}")


def _counters(config: Config) -> Iterator[FieldError]:
    allowed = [series.value for series in Series]
    if config.counters.series not in allowed:
        yield FieldError("counters.series", config.counters.series, f"must be {', '.join(allowed)}")
    if config.counters.limit < 1:
        yield FieldError("counters.limit", config.counters.limit, "must be greater than 0")


def _logging(config: Config) -> Iterator[FieldError]:
    logging = config.logging
    if logging.format not in ("text", "json"):
        yield FieldError("logging.format", logging.format, "must be text or json")
    if logging.flush_frequency < 0:
        yield FieldError("logging.flushFrequency", format_duration(logging.flush_frequency), "must not be negative")
    if not 0 <= logging.verbosity <= _MAX_VERBOSITY:
        yield FieldError("logging.verbosity", logging.verbosity, f"must be within the range [0, {_MAX_VERBOSITY}]")
    if logging.vmodule and logging.format != "text":
        yield FieldError("logging.vmodule", len(logging.vmodule), "is only supported with the text format")
    for index, item in enumerate(logging.vmodule):
        if not item.file_pattern or any(letter in item.file_pattern for letter in ",="):
            path = f"logging.vmodule[{index}].filePattern"
            yield FieldError(path, item.file_pattern, "must not be empty or contain a comma or an equals sign")
        if item.verbosity < 0:
            yield FieldError(f"logging.vmodule[{index}].verbosity", item.verbosity, "must not be negative")


def _masquerade_bit(section: str, bit: int) -> Iterator[FieldError]:
    if not 0 <= bit <= 31:
        yield FieldError(f"{section}.masqueradeBit", bit, "must be within the range [0, 31]")


def _periods(section: str, sync: float, minimum: float) -> Iterator[FieldError]:
    if sync <= 0:
        yield FieldError(f"{section}.syncPeriod", format_duration(sync), "must be greater than 0")
    yield from _not_negative(f"{section}.minSyncPeriod", minimum)
    if minimum > sync > 0:
        message = f"must be greater than or equal to {section}.minSyncPeriod, which is {format_duration(minimum)}"
        yield FieldError(f"{section}.syncPeriod", format_duration(sync), message)


def _not_negative(path: str, seconds: float) -> Iterator[FieldError]:
    if seconds < 0:
        yield FieldError(path, format_duration(seconds), "must be greater than or equal to 0")


def _cidr(path: str, text: str) -> Iterator[FieldError]:
    try:
        Prefix.parse(text)
    except ValueError:
        yield FieldError(path, text, "must be a valid CIDR such as 10.0.0.0/8 or fd00::/64")


def _is_address(text: str) -> bool:
    try:
        parse_address(text)
    except ValueError:
        return False
    return True
