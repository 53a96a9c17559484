"""The Driver of ipvs mode."""

import contextlib
import math
from collections.abc import Iterable, Mapping
from typing import Any, Final

from vipwire.config.configuration import Config
from vipwire.errors import CommitError
from vipwire.linux.host.kernel import KernelRelease
from vipwire.linux.netlink.ipvs import Timeouts
from vipwire.model.net import Family, Prefix
from vipwire.modes.ipvs import start
from vipwire.modes.ipvs.first_commit import FirstCommit
from vipwire.modes.ipvs.leftovers import IpvsRemains
from vipwire.modes.ipvs.mode import MODE
from vipwire.modes.ipvs.ownership import IpvsOwner
from vipwire.modes.ipvs.writing import Settings, Writing
from vipwire.modes.spec import BEHIND_ALL, Driver, Mode, ModeSpec, NatPriorities, Others, clean_by
from vipwire.reconcile.backend import Backend
from vipwire.reconcile.explainer import Explainer


def _build(config: Config, families: Iterable[Family], *, prepare: bool) -> Mapping[Family, Mode]:
    """Build it; for one that is run IPVS is loaded, tried and given its timeouts."""
    chosen = config.ipvs
    seconds = (chosen.tcp_timeout, chosen.tcp_fin_timeout, chosen.udp_timeout)
    timeouts = Timeouts(*(math.ceil(each) for each in seconds))
    return start.build(families, _settings(config), timeouts if prepare else None)


def _explainer(family: Family, mode: Any) -> Explainer[Any, Any, Any]:
    from vipwire.modes.ipvs.explain.explainer import IpvsExplainer  # noqa: PLC0415  # not to run

    return IpvsExplainer(family, lambda: mode.resting)


def _remains(family: Family, running: ModeSpec) -> IpvsRemains | None:
    return None if running is MODE else IpvsRemains(family, to_sockets=running.relays)


def _before_first_commit(backend: Backend[Any, Any], others: Others) -> Backend[Any, Any]:
    """Commit in steps for the first time where others translate."""
    listens = False  # if nobody can tell, any mode may be there but one whose node ports are sockets
    with contextlib.suppress(CommitError, OSError):
        found = others.translating()
        if not found:
            return backend
        listens = all(each.relays for each in found)
    return FirstCommit(backend, others.disarm, listens=listens)


def _settings(config: Config) -> Settings:
    return Settings(config.ipvs.scheduler or "rr", tuple(Prefix.parse(text) for text in config.ipvs.exclude_cidrs))


DRIVER: Final = Driver(
    build=_build,
    # A kernel without IPVS will do.
    supposed=lambda config, families: {family: Writing(family, _settings(config)) for family in families},
    attempt=lambda _config, _families: None,
    sysctls=lambda config: start.ipvs_sysctls(KernelRelease.running()[:2], strict_arp=config.ipvs.strict_arp),
    # net/netfilter/ipvs/ip_vs_core.c: at input, and for packets that this node sends at NF_IP_PRI_NAT_DST + 2.
    priorities=NatPriorities(BEHIND_ALL, -98),
    explainer=_explainer,
    remarks=lambda _: (),
    standing=lambda _: (),
    kernel_counters={},
    cleaners=clean_by(_build),
    owner=IpvsOwner,
    remains=_remains,
    translates=lambda _: False,
    before_first_commit=_before_first_commit,
)
