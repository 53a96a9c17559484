"""Reads this machine's facts that matter to a service proxy, from /proc, netlink and PATH. Changes nothing.

A fact that cannot be read is None or missing.
"""

import contextlib
import os
import shutil
import socket
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from vipwire.config.configuration import Config
from vipwire.config.modes import list_mode_names
from vipwire.errors import CommitError, DecodeError, VipwireError
from vipwire.inspect.earlier.look import EarlierChain, find_earlier_chains
from vipwire.linux.conntrack.flows import FlowTable
from vipwire.linux.host.kernel import read_capabilities
from vipwire.linux.host.kernel_release import KernelRelease
from vipwire.linux.host.settings import HOST_SETTINGS, read_sysctl
from vipwire.linux.netlink.nftables import decode, encode
from vipwire.linux.netlink.nftables.wire import MessageType
from vipwire.linux.netlink.socket import NETLINK_NETFILTER, NetlinkSocket
from vipwire.model.net import Family
from vipwire.modes.inspection import Remark, inspection_of
from vipwire.modes.registry import find_selected_mode, find_spec, list_specs, load_driver
from vipwire.modes.xtables.save import read_tables
from vipwire.modes.xtables.tool import Variant, find_tools_with_tables
from vipwire.proxy_daemon.start.modes import build_modes, find_usable_families
from vipwire.proxy_daemon.start.record import ProxyRecord, ProxyState, read_record

SYSCTLS = (
    "net/ipv4/ip_forward",
    "net/ipv6/conf/all/forwarding",
    "net/ipv4/conf/all/rp_filter",
    "net/ipv4/conf/all/route_localnet",
    "net/bridge/bridge-nf-call-iptables",
    "net/netfilter/nf_conntrack_count",
    "net/netfilter/nf_conntrack_max",
    "net/netfilter/nf_conntrack_events",
    "net/netfilter/nf_conntrack_tcp_be_liberal",
    "net/ipv4/ip_local_reserved_ports",
)
TOOLS = ("iptables", "ip6tables", "iptables-legacy", "conntrack", "ip")
"""Programs to look for in every mode, beside those that modes name."""
_FAMILIES = {1: "inet", 2: "ip", 3: "arp", 5: "netdev", 7: "bridge", 10: "ip6"}
_SAVE_SECONDS = 10


@dataclass(frozen=True, slots=True)
class ForeignTable:
    """An nftables table: its name as nft writes it (`ip nat`), and its chains."""

    name: str
    chains: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Facts:
    """All facts. `modes` maps each mode to its obstacle here, "" if it can run.

    `sysctls` are numbers by path. `tools` are paths in PATH with their variant. `tables` is None if nftables cannot
    be read. `legacy` are chains of iptables-legacy. `conntrack_losses` are the kernel's counts of connections that
    found no room, or no port. `proxy` is this network namespace's. `remarks` are the selected mode's, `earlier` other
    programs' chains that decide before it.
    """

    release: KernelRelease | None = None
    capabilities: frozenset[str] = frozenset()
    sysctls: Mapping[str, int] = field(default_factory=dict)
    tools: Mapping[str, str] = field(default_factory=dict)
    modes: Mapping[str, str] = field(default_factory=dict)
    tables: tuple[ForeignTable, ...] | None = None
    legacy: tuple[str, ...] = ()
    ipvs_services: int | None = None
    interfaces: tuple[str, ...] = ()
    conntrack: str = ""
    conntrack_losses: Mapping[str, int] = field(default_factory=dict)
    sctp: bool = False
    ipv6: bool = True
    settings_writable: bool = True
    proxy: tuple[ProxyState, ProxyRecord | None] = (ProxyState.NONE, None)
    remarks: tuple[Remark, ...] = ()
    earlier: tuple[EarlierChain, ...] = ()


def gather_facts(config: Config, proc: Path = Path("/proc")) -> Facts:
    """Read all facts. Changes nothing, but the kernel may load modules for objects that are tried and removed."""
    tools = [*(tool.name for spec in list_specs() for tool in spec.tools), *TOOLS]
    release = None
    with contextlib.suppress(ValueError):
        release = KernelRelease.running()
    return Facts(
        release=release,
        capabilities=read_capabilities(proc),
        sysctls=read_sysctls(SYSCTLS, proc),
        tools={name: said for name in tools if (said := _describe_tool(name))},
        modes={mode: find_missing_requirement(config, mode) for mode in list_mode_names()},
        tables=list_nft_tables(),
        legacy=list_legacy_chains(),
        ipvs_services=_count_ipvs_servers(proc),
        interfaces=tuple(name for _, name in socket.if_nameindex()),
        conntrack=_read_conntrack(),
        conntrack_losses=_read_losses(proc),
        sctp="SCTP" in _read_text(proc / "net/protocols"),
        ipv6=(proc / "net/if_inet6").exists(),
        settings_writable=any(
            os.access(root / "net/ipv4/ip_forward", os.W_OK) for root in (proc / "sys", HOST_SETTINGS)
        ),
        proxy=read_record(config.state_dir),
        remarks=tuple(inspection_of(find_selected_mode(config)).remarks(config)),
        earlier=find_earlier_chains(config, find_usable_families()),
    )


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""


def read_sysctls(paths: Iterable[str], proc: Path) -> dict[str, int]:
    """Read numeric kernel settings; skip those that this kernel does not have."""
    found: dict[str, int] = {}
    for path in paths:
        with contextlib.suppress(OSError, ValueError):
            found[path] = read_sysctl(path, proc / "sys")
    return found


def _describe_tool(name: str) -> str:
    path = shutil.which(name) or ""
    if path and name in ("iptables", "ip6tables", "iptables-restore"):
        version = _run_command([path, "--version"])
        variant = version.partition("(")[2].partition(")")[0]
        return f"{path} ({variant or 'legacy'})" if version else path
    return path


def _run_command(command: list[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_SAVE_SECONDS, check=False)  # noqa: S603 - a path found in PATH
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout


def find_missing_requirement(config: Config, mode: str) -> str:
    """Return the first requirement of a mode that this machine lacks; "" if the mode can run."""
    try:
        with contextlib.ExitStack() as built:
            modes = build_modes(replace(config, mode=mode), find_usable_families())
            for each in modes.values():
                built.callback(each.close)
            load_driver(find_spec(mode)).attempt(config, modes)
    except (VipwireError, OSError) as error:
        return str(error)
    return ""


def list_nft_tables() -> tuple[ForeignTable, ...] | None:
    """List the tables of all families, with their chains. None without rights."""
    chains: dict[str, list[str]] = {}
    try:
        with NetlinkSocket(NETLINK_NETFILTER) as netlink:
            for payload in netlink.dump(MessageType.GETTABLE, encode.list_tables()):
                table = decode.decode_table(payload)
                chains[_table_name(table.family, table.name)] = []
            for payload in netlink.dump(MessageType.GETCHAIN, encode.list_tables()):
                with contextlib.suppress(DecodeError):  # hooks of other families have another form
                    chain = decode.decode_chain(payload)
                    chains.setdefault(_table_name(chain.family, chain.table), []).append(chain.name)
    except (OSError, DecodeError):
        return None
    return tuple(ForeignTable(name, tuple(chains[name])) for name in sorted(chains))


def _table_name(family: int, name: str) -> str:
    return f"{_FAMILIES.get(family, family)} {name}"


def list_legacy_chains() -> tuple[str, ...]:
    """List the chains of iptables-legacy. Runs its tool only if such tables are in use already."""
    found: list[str] = []
    for tool in (
        each for family in Family for each in find_tools_with_tables(family, "vipwire check", limit=_SAVE_SECONDS)
    ):
        if tool.variant is Variant.LEGACY:
            with contextlib.suppress(CommitError, DecodeError):
                found += [chain for chains in read_tables(tool.save()).values() for chain in chains]
    return tuple(found)


def _count_ipvs_servers(proc: Path) -> int | None:
    """Count IPVS's virtual servers; None if the kernel has not loaded IPVS."""
    text = _read_text(proc / "net/ip_vs")
    if not text:
        return None
    return sum(line.startswith(("TCP", "UDP", "SCTP", "FWM")) for line in text.splitlines())


def _read_conntrack() -> str:
    """Return why connection tracking cannot be read; "" if it can."""
    try:
        with FlowTable() as table:
            next(table.list_flows(Family.IPV4), None)
    except (VipwireError, OSError) as error:
        return str(error)
    return ""


def _read_losses(proc: Path) -> dict[str, int]:
    lines = _read_text(proc / "net/stat/nf_conntrack").splitlines()
    if not lines:
        return {}
    names = lines[0].split()
    rows = [dict(zip(names, line.split(), strict=False)) for line in lines[1:]]
    return {
        name: sum(int(row.get(name, "0"), 16) for row in rows)
        for name in ("insert_failed", "drop", "early_drop")
        if name in names
    }
