"""The modes that can be chosen, and how each is built. A new mode is one more line here.

A mode that this machine cannot run is an UnsupportedError that says what is missing. There is no silent fallback.
"""

import contextlib
import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol

from vipwire.app.engine import Mode
from vipwire.backends.iptables.build import LOOPBACK_SYSCTLS, build, leftovers
from vipwire.backends.iptables.counts.nfacct import read_counter
from vipwire.backends.iptables.explain.explainer import IptablesExplainer
from vipwire.backends.iptables.names import INVALID_COUNTER, LOCALHOST_COUNTER
from vipwire.backends.iptables.settings import Settings
from vipwire.backends.ipvs import start as ipvs
from vipwire.backends.ipvs.explain.explainer import IpvsExplainer
from vipwire.backends.ipvs.kernel import Settings as IpvsSettings
from vipwire.backends.ipvs.names import DEVICE
from vipwire.backends.nftables.counts import CounterLevel
from vipwire.backends.nftables.explain.explainer import NftablesExplainer
from vipwire.backends.nftables.kernel import NftablesBackend
from vipwire.backends.nftables.probe import probe as try_nftables
from vipwire.backends.userspace import build as userspace
from vipwire.backends.userspace.explain.explainer import UserspaceExplainer
from vipwire.backends.userspace.settings import Bind, Choices
from vipwire.config.configuration import Config, ProxyMode, port_range
from vipwire.config.sections import Series
from vipwire.errors import UnsupportedError
from vipwire.host.kernel import KernelRelease, require_nftables, require_release
from vipwire.model.net import Family, Prefix
from vipwire.model.sysctl import Sysctl
from vipwire.netlink.generations import Generations
from vipwire.netlink.ipvs import Timeouts
from vipwire.process import log
from vipwire.reconcile.explainer import Explainer
from vipwire.serve.metrics import Metrics


def _iptables(config: Config, families: Iterable[Family], *, prepare: bool) -> dict[Family, Mode]:
    wanted = Settings(
        localhost_node_ports=config.iptables.localhost_node_ports,
        drop_invalid=not config.conntrack.tcp_be_liberal,
        tree=config.iptables.tree,
    )
    built, notes = build(families, wanted, prepare=prepare)
    for note in notes if prepare else ():
        say = log.warning if note.remedy else log.info
        say("iptables", what=note.what, reason=note.reason, remedy=note.remedy)
    return dict(built)


def _nftables(config: Config, families: Iterable[Family], *, prepare: bool) -> dict[Family, Mode]:
    require_release(KernelRelease(5, 13), "nftables mode")
    require_nftables()
    if prepare:
        try_nftables(families)
    generations, counters = Generations(), _counters(config)
    return {family: NftablesBackend(family, generations, counters) for family in families}


def _counters(config: Config) -> CounterLevel:
    if config.counters.series == Series.NONE.value:
        return CounterLevel.NOTHING
    return CounterLevel.TRAFFIC if config.counters.traffic else CounterLevel.CONNECTIONS


def _ipvs(config: Config, families: Iterable[Family], *, prepare: bool) -> dict[Family, Mode]:
    chosen = config.ipvs
    settings = IpvsSettings(chosen.scheduler or "rr", tuple(Prefix.parse(text) for text in chosen.exclude_cidrs))
    seconds = (chosen.tcp_timeout, chosen.tcp_fin_timeout, chosen.udp_timeout)
    timeouts = Timeouts(*(math.ceil(each) for each in seconds))
    return dict(ipvs.build(families, settings, timeouts if prepare else None))


def _userspace(config: Config, families: Iterable[Family], *, prepare: bool) -> dict[Family, Mode]:
    ports = port_range(config.port_range) or range(0)
    choices = Choices(
        bind=Bind(config.userspace_bind),
        ports=(ports[0], ports[-1]) if ports else (0, 0),
        udp_timeout=config.udp_idle_timeout,
        localhost_node_ports=config.iptables.localhost_node_ports,
    )
    return dict(userspace.build(families, choices, prepare=prepare))


VIP_DEVICES = frozenset({DEVICE})
"""Devices whose addresses are VIPs, not the machine's own."""


class _Build(Protocol):
    """Builds a mode; with `prepare` it may make the machine ready, without it only looks."""

    def __call__(self, config: Config, families: Iterable[Family], *, prepare: bool) -> dict[Family, Mode]: ...


_MODES: dict[ProxyMode, _Build] = {
    ProxyMode.NFTABLES: _nftables,
    ProxyMode.IPTABLES: _iptables,
    ProxyMode.IPVS: _ipvs,
    ProxyMode.USERSPACE: _userspace,
}
_EXPLAINERS: dict[ProxyMode, Callable[[Family, Any], Explainer[Any, Any]]] = {
    ProxyMode.NFTABLES: lambda family, _: NftablesExplainer(family),
    ProxyMode.IPVS: lambda family, backend: IpvsExplainer(family, lambda: backend.resting),
    ProxyMode.IPTABLES: lambda _, backend: IptablesExplainer(backend),
    ProxyMode.USERSPACE: lambda family, _: UserspaceExplainer(family),
}


def build_modes(config: Config, families: Iterable[Family], *, prepare: bool = False) -> dict[Family, Mode]:
    """Build the selected mode for each family, or raise UnsupportedError. `prepare`: it is going to be run."""
    make = _MODES.get(config.proxy_mode)
    if make is None:
        here = ", ".join(mode.value for mode in _MODES)
        raise UnsupportedError(
            f"mode {config.proxy_mode.value!r} is not in this version of vipwire (--proxy-mode: {here}); "
            "leave the mode blank for the default"
        )
    return make(config, families, prepare=prepare)


def needs_net_admin(config: Config) -> bool:
    """Tell whether the selected mode writes rules: all do but userspace mode where it is told to do without."""
    return config.proxy_mode is not ProxyMode.USERSPACE or not config.userspace_bind


def mode_sysctls(config: Config) -> tuple[Sysctl, ...]:
    """Name the kernel settings that the selected mode wants."""
    if config.proxy_mode is ProxyMode.IPVS:
        return ipvs.ipvs_sysctls(KernelRelease.running()[:2], strict_arp=config.ipvs.strict_arp)
    if config.proxy_mode is ProxyMode.USERSPACE:
        return userspace.SYSCTLS
    loopback = config.proxy_mode is ProxyMode.IPTABLES and config.iptables.localhost_node_ports
    return LOOPBACK_SYSCTLS if loopback else ()


def attach_counters(config: Config, metrics: Metrics) -> None:
    """Let the metrics that the kernel counts be read where the selected mode has them."""
    if config.proxy_mode is ProxyMode.IPTABLES:
        metrics.iptables_ct_state_invalid_dropped_packets_total.read = lambda: read_counter(INVALID_COUNTER)
        metrics.iptables_localhost_nodeports_accepted_packets_total.read = lambda: read_counter(LOCALHOST_COUNTER)


def build_explainer(config: Config, family: Family, mode: Mode) -> Explainer[Any, Any] | None:
    """Build what explains the selected mode's objects, as `mode` sees them; None where it has nothing of the kind."""
    make = _EXPLAINERS.get(config.proxy_mode)
    return make(family, mode) if make is not None else None


def every_mode(families: Iterable[Family], *, rules: bool = True) -> Iterator[tuple[ProxyMode, Family, Mode]]:
    """Build every mode that this machine can run, to clean up after any of them; without `rules` only relays."""
    for name, make in _MODES.items():
        if name is ProxyMode.USERSPACE:
            for left in userspace.leftovers(families, rules=rules):
                yield name, left.family, left
            continue
        if not rules:
            continue
        if name is ProxyMode.IPTABLES:
            for each in leftovers(families):
                yield name, each.family, each
            continue
        with contextlib.suppress(UnsupportedError):
            for family, mode in make(Config(), families, prepare=False).items():
                yield name, family, mode
