"""Starts `vipwire up` from the values of its flags; errors are ConfigErrors that name the flag."""

import ipaddress
import socket
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import click

from vipwire.config.configuration import Config
from vipwire.config.flags import build_config, parse_environment_flags, parse_flags
from vipwire.config.kinds import parse_duration
from vipwire.config.sections import Logging
from vipwire.errors import ConfigError
from vipwire.linux.host.addresses import read_addresses, select_global_addresses
from vipwire.logging import log
from vipwire.model.net import format_address, parse_address
from vipwire.model.text import port_number
from vipwire.process_lifecycle import event_loop
from vipwire.terminal.output import MISUSED, plain_errors
from vipwire_up.bgp.settings import BgpSettings, read_bgp_settings
from vipwire_up.claim_data_dir import claim_folder
from vipwire_up.controllers.allocation.ranges import Network, Range, port_range
from vipwire_up.controllers.hooks import Ranges
from vipwire_up.dns.settings import RESOLV_CONF, check_address, check_domain, parse_server
from vipwire_up.dns.settings import Settings as DnsSettings
from vipwire_up.readiness_probes.commands import RunAs
from vipwire_up.readiness_probes.probes import Prober
from vipwire_up.store.etcd.settings import EtcdSettings, read_settings
from vipwire_up.up import Setting, run_cluster

_LEAST_LIFE, _MOST_LIFE = timedelta(hours=1), timedelta(days=365)
_OURS_TO_SAY: Final = frozenset({"hostname-override", "kubeconfig", "manifests", "master"})
_ALONE: Final = frozenset({"cleanup", "cleanup-all", "cleanup-iptables", "init-only", "takeover", "write-config-to"})
"""Flags of `vipwire proxy` for an action in place of a run, or for its start alone."""


def start_up(flags: dict[str, Any]) -> None:
    log.configure(Logging())
    with plain_errors(MISUSED):
        setting = read_setting(flags)
    if setting.proxy is not None:
        log.configure(setting.proxy.logging)

    def ready(url: str, kubeconfig: Path) -> None:
        click.echo(f"API server at {url}")
        for line in setting.summary():
            click.echo(line)
        click.echo(f"try: kubectl --kubeconfig {kubeconfig} get namespaces")

    details = (f"API server at {setting.address} port {setting.port}",)
    claim = claim_folder(setting.folder, setting.proxy, "vipwire up", details, takeover=flags["takeover"])
    with plain_errors(), claim:
        event_loop.run_in_loop(run_cluster(setting, ready))


def read_setting(flags: Mapping[str, Any]) -> Setting:
    node = flags["node_name"] or socket.gethostname().lower()
    dns = _read_dns_settings(flags)  # raises for invalid flags even without DNS
    ranges = Ranges(
        parse_cidrs(flags["service_cluster_ip_range"]), parse_port_range(flags["service_node_port_range"])
    )
    return Setting(
        folder=flags["data_dir"],
        address=flags["bind_address"],
        port=flags["secure_port"],
        names=flags["names"],
        store_limit=flags["store_limit"] << 20,
        etcd=_read_etcd_settings(flags),
        ranges=ranges,
        node=node,
        proxy=build_proxy_config(flags, node, flags["data_dir"] / "admin.kubeconfig"),
        dns=dns if flags["dns"] else None,
        prober=build_prober(flags, node),
        probes=flags["probes"] == "machine",
        balancers=tuple(_parse_network(text, "--load-balancer-range") for text in flags["load_balancer_ranges"]),
        announce=flags["announce_interface"],
        node_ips=read_node_ips(flags["node_ip"]),
        node_seconds=flags["node_lease_seconds"],
        bgp=read_bgp_flags(flags),
        life=_parse_signing_duration(flags["cluster_signing_duration"]),
    )


def read_node_ips(text: str) -> tuple[str, ...]:
    """Parse addresses of this machine, at most one of each family. Raise ConfigError."""
    flag, here = "--node-ip", {format_address(each) for each in select_global_addresses(read_addresses())}
    found = tuple(_parse_address(part.strip(), flag) for part in text.split(",")) if text else ()
    if len({":" in each for each in found}) < len(found):
        raise ConfigError(f"{flag} {text}: give at most one address of each family")
    for each in found:
        if each not in here:
            raise ConfigError(f"{flag} {each}: this machine has {', '.join(sorted(here)) or 'no global address'}")
    return found


def _parse_address(text: str, flag: str) -> str:
    try:
        return format_address(parse_address(text))
    except ValueError as error:
        raise ConfigError(f"{flag}: {error}") from None


def _parse_signing_duration(text: str) -> timedelta:
    flag = "--cluster-signing-duration"
    try:
        found = timedelta(seconds=parse_duration(text))
    except ValueError as error:
        raise ConfigError(f"{flag}: {error}") from error
    if not _LEAST_LIFE <= found <= _MOST_LIFE:
        raise ConfigError(f"{flag} {text}: must be between 1h and 8760h")
    return found


def _read_etcd_settings(flags: Mapping[str, Any]) -> EtcdSettings | None:
    given = {name.replace("_", "-"): value for name, value in flags.items() if name.startswith("etcd_") and value}
    if flags["store"] == "etcd":
        if flags["store_limit"]:
            raise ConfigError("--store-limit: etcd has a limit of its own, --quota-backend-bytes")
        return read_settings(given)
    if given:
        raise ConfigError(f"--{min(given)} is for --store etcd")
    return None


def build_prober(flags: Mapping[str, Any], node: str) -> Prober:
    name = flags["exec_probes_user"]
    if name and not flags["exec_probes"]:
        raise ConfigError(f"--exec-probes-user {name}: without --exec-probes, vipwire runs no commands")
    return Prober(node, flags["exec_probes"], RunAs.user_named(name) if name else None)


def read_bgp_flags(flags: Mapping[str, Any]) -> BgpSettings | None:
    return read_bgp_settings(flags["bgp_as"], flags["bgp_peers"], flags["bgp_kinds"], flags["bgp_router_id"])


def parse_cidrs(text: str) -> tuple[str, ...]:
    flag = "--service-cluster-ip-range"
    found = [_parse_network(part, flag) for part in text.split(",")]
    if len({network.version for network in found}) < len(found):
        raise ConfigError(f"{flag}: {text!r} has more than one CIDR of a family")
    return tuple(map(str, found))


def _parse_network(text: str, flag: str) -> Network:
    try:
        return ipaddress.ip_network(text.strip())
    except ValueError as error:
        raise ConfigError(f"{flag}: {error} (allowed: a CIDR such as 10.96.0.0/16 or fd00::/112)") from None


def parse_port_range(text: str) -> Range:
    first, last = (port_number(each) for each in text.partition("-")[::2])
    if first is not None and last is not None and first <= last:
        return port_range(first, last)
    raise ConfigError(f"--service-node-port-range: {text!r} is not a range (allowed: 30000-32767, within 1-65535)")


def build_proxy_config(flags: Mapping[str, Any], node: str, kubeconfig: Path) -> Config | None:
    """Parse the proxy's own flags, without its source of objects and its node's name.

    `kubeconfig` is for other commands: the proxy gets its source directly.
    """
    given, mode = parse_flags(flags["proxy_flags"]), flags["proxy_mode"]
    everywhere = {name: value for name, value in parse_environment_flags().items() if name not in _OURS_TO_SAY}
    if not flags["proxy"]:
        if given:
            raise ConfigError(f"--{next(iter(given))} behind -- is for the proxy, but --no-proxy is set")
        return None
    if others := sorted(_OURS_TO_SAY & given.keys()):
        raise ConfigError(f"--{others[0]} is not allowed here: vipwire sets it for this proxy")
    if others := sorted(_ALONE & given.keys()):
        why = "give it before --" if others[0] == "takeover" else "leave it out"
        raise ConfigError(f"--{others[0]} behind -- is for `vipwire proxy` alone: {why}")
    if mode and "config" in given:
        raise ConfigError(f"--proxy-mode {mode}: with --config set it in that file (mode: {mode})")
    takeover = ("--takeover",) if flags.get("takeover") else ()
    ours = ["--hostname-override", node, "--kubeconfig", str(kubeconfig), *takeover]
    if mode:
        ours += ["--proxy-mode", mode]
    if flags.get("view_bind_address"):
        ours += ["--view-bind-address", flags["view_bind_address"]]
    config, warnings = build_config({**everywhere, **given, **parse_flags(ours)})
    for warning in warnings if given else ():
        log.warning(warning)
    return config


def _read_dns_settings(flags: Mapping[str, Any]) -> DnsSettings:
    return DnsSettings(
        domain=check_domain(flags["cluster_domain"]),
        addresses=(check_address(flags["dns_address"], "--dns-address"),),
        port=flags["dns_port"],
        upstream=tuple(dict.fromkeys(parse_server(text, "--dns-upstream") for text in flags["upstream"])),
        resolv_conf=RESOLV_CONF,
    )
