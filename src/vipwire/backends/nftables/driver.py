"""The Driver of nftables mode."""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from vipwire.backends.nftables.counts import CounterLevel
from vipwire.backends.nftables.kernel import NftablesBackend
from vipwire.backends.nftables.leftovers import TableRemains, tables
from vipwire.backends.nftables.mode import MODE
from vipwire.backends.nftables.probe import probe
from vipwire.backends.spec import Driver, Mode, ModeSpec
from vipwire.config.configuration import Config
from vipwire.config.sections import Series
from vipwire.host.kernel import require_nftables
from vipwire.model.net import Family
from vipwire.netlink.generations import Generations
from vipwire.reconcile.explainer import Explainer


class NftablesDriver(Driver):
    """Builds, explains and removes tables of nftables."""

    def build(self, config: Config, families: Iterable[Family], *, prepare: bool) -> Mapping[Family, Mode]:
        """Build it for each family; what is going to be run is tried."""
        require_nftables()
        if prepare:
            self.attempt(config, families)
        generations, counters = Generations(), _counters(config)
        return {family: NftablesBackend(family, generations, counters) for family in families}

    def attempt(self, config: Config, families: Iterable[Family]) -> None:
        """Try the table in a transaction that cannot succeed."""
        del config
        probe(families)

    def explainer(self, family: Family, mode: Any) -> Explainer[Any, Any]:
        """Build what explains a table."""
        from vipwire.backends.nftables.explain.explainer import NftablesExplainer  # noqa: PLC0415  # not to run

        del mode
        return NftablesExplainer(family)

    def remains(self, family: Family, running: ModeSpec) -> TableRemains:
        """Find our own table, unless this mode runs, and kube-proxy's."""
        return TableRemains(family, ours=running is not MODE and MODE.name not in running.includes)

    def translates(self, family: Family) -> bool:
        """Report whether there is a table of ours or of kube-proxy's."""
        return bool(tables(family))


def _counters(config: Config) -> CounterLevel:
    if config.counters.series == Series.NONE.value:
        return CounterLevel.NOTHING
    return CounterLevel.TRAFFIC if config.counters.traffic else CounterLevel.CONNECTIONS


DRIVER: Final = NftablesDriver()
