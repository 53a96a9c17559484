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
from vipwire.model.sysctl import Sysctl
from vipwire.modes.ipvs import start
from vipwire.modes.ipvs.first_commit import FirstCommit
from vipwire.modes.ipvs.leftovers import IpvsRemains
from vipwire.modes.ipvs.mode import MODE
from vipwire.modes.ipvs.ownership import IpvsOwner
from vipwire.modes.ipvs.writing import Settings, Writing
from vipwire.modes.spec import BEHIND_ALL, Driver, Mode, ModeSpec, Others, Place, Supposed
from vipwire.reconcile.backend import Backend
from vipwire.reconcile.explainer import Explainer

_OUTPUT: Final = -98
"""The priority of IPVS for packets that this node sends: NF_IP_PRI_NAT_DST + 2."""


class IpvsDriver(Driver):
    """Builds, explains and removes virtual servers with all that belongs to them."""

    def build(self, config: Config, families: Iterable[Family], *, prepare: bool) -> Mapping[Family, Mode]:
        """Build it for each family; for one that is run IPVS is loaded, tried and given its timeouts."""
        chosen = config.ipvs
        seconds = (chosen.tcp_timeout, chosen.tcp_fin_timeout, chosen.udp_timeout)
        timeouts = Timeouts(*(math.ceil(each) for each in seconds))
        return start.build(families, _settings(config), timeouts if prepare else None)

    def supposed(self, config: Config, families: Iterable[Family]) -> Mapping[Family, Supposed]:
        """Build what renders; a kernel without IPVS will do."""
        return {family: Writing(family, _settings(config)) for family in families}

    def sysctls(self, config: Config) -> tuple[Sysctl, ...]:
        """Name what this kernel's IPVS needs."""
        return start.ipvs_sysctls(KernelRelease.running()[:2], strict_arp=config.ipvs.strict_arp)

    def place(self, config: Config) -> Place:
        """Return where IPVS is called (net/netfilter/ipvs/ip_vs_core.c): at input, and at output behind nat."""
        del config
        return Place(BEHIND_ALL, _OUTPUT)

    def explainer(self, family: Family, mode: Any) -> Explainer[Any, Any, Any]:
        """Build what explains virtual servers."""
        from vipwire.modes.ipvs.explain.explainer import IpvsExplainer  # noqa: PLC0415  # not to run

        return IpvsExplainer(family, lambda: mode.resting)

    def owner(self, family: Family) -> IpvsOwner:
        """Return which chains are this mode's."""
        return IpvsOwner(family)

    def remains(self, family: Family, running: ModeSpec) -> IpvsRemains | None:
        """Find virtual servers, addresses and ipsets, unless this mode runs."""
        return None if running is MODE else IpvsRemains(family, to_sockets=running.relays)

    def with_first_commit(self, backend: Backend[Any, Any], others: Others) -> Backend[Any, Any]:
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


DRIVER: Final = IpvsDriver()
