"""The Driver of iptables mode."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from vipwire.config.configuration import Config
from vipwire.model.net import Family
from vipwire.model.sysctl import Sysctl
from vipwire.modes.iptables.build import LOOPBACK_SYSCTLS, build, leftovers
from vipwire.modes.iptables.counts.nfacct import read_counter
from vipwire.modes.iptables.rules.names import INVALID_COUNTER, LOCALHOST_COUNTER
from vipwire.modes.iptables.rules.ownership import IptablesOwner
from vipwire.modes.iptables.rules.settings import Settings
from vipwire.modes.spec import Driver, Mode
from vipwire.process import log
from vipwire.reconcile.explainer import Explainer


class IptablesDriver(Driver):
    """Builds, explains and removes chains of iptables."""

    def build(self, config: Config, families: Iterable[Family], *, prepare: bool) -> Mapping[Family, Mode]:
        """Build it for each family, and say in the log what the operator of one that is run should know."""
        wanted = Settings(
            localhost_node_ports=config.iptables.localhost_node_ports,
            drop_invalid=not config.conntrack.tcp_be_liberal,
            tree=config.iptables.tree,
            by_tools=config.iptables.by_tools,
        )
        built, notes = build(families, wanted, prepare=prepare)
        for note in notes if prepare else ():
            say = log.warning if note.remedy else log.info
            say("iptables", what=note.what, reason=note.reason, remedy=note.remedy)
        return built

    def sysctls(self, config: Config) -> tuple[Sysctl, ...]:
        """Name what node ports on 127.0.0.1 need."""
        return LOOPBACK_SYSCTLS if config.iptables.localhost_node_ports else ()

    def explainer(self, family: Family, mode: Any) -> Explainer[Any, Any, Any]:
        """Build what explains chains."""
        from vipwire.modes.iptables.explain.explainer import IptablesExplainer  # noqa: PLC0415  # not to run

        del family
        return IptablesExplainer(mode)

    def kernel_counters(self) -> Mapping[str, Callable[[], float | None]]:
        """Read kube-proxy's nfacct objects."""
        return {
            "iptables_ct_state_invalid_dropped_packets_total": lambda: read_counter(INVALID_COUNTER),
            "iptables_localhost_nodeports_accepted_packets_total": lambda: read_counter(LOCALHOST_COUNTER),
        }

    def cleaners(self, families: Iterable[Family], *, rules: bool) -> Iterable[tuple[Family, Mode]]:
        """Build one for every engine that has tables."""
        return [(each.family, each) for each in leftovers(families)] if rules else []

    def owner(self, family: Family) -> IptablesOwner:
        """Return which chains are this mode's; their names are the same in both families."""
        del family
        return IptablesOwner()


DRIVER: Final = IptablesDriver()
