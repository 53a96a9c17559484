"""The Driver of nftables mode."""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from vipwire.config.configuration import Config
from vipwire.linux.host.kernel import require_nftables
from vipwire.linux.netlink.nftables.generations import Generations
from vipwire.model.net import Family
from vipwire.modes.nftables.kernel import NftablesBackend
from vipwire.modes.nftables.leftovers import TableRemains, tables
from vipwire.modes.nftables.mode import MODE
from vipwire.modes.nftables.probe import obstacle_to_offloading, probe
from vipwire.modes.nftables.table.names import DSTNAT, TABLE
from vipwire.modes.spec import Driver, Mode, ModeSpec, Place, Remark
from vipwire.process import log

if TYPE_CHECKING:
    from vipwire.reconcile.explainer import Explainer


class NftablesDriver(Driver):
    """Builds, explains and removes tables of nftables."""

    def build(self, config: Config, families: Iterable[Family], *, prepare: bool) -> Mapping[Family, Mode]:
        """Build it for each family; what is going to be run is tried."""
        require_nftables()
        families = tuple(families)
        if prepare:
            self.attempt(config, families)
        packets = _offload_after(config.nftables.offload_packet_threshold, families, warn=prepare)
        generations, counters = Generations(), config.counters.level
        return {family: NftablesBackend(family, generations, counters, offload_after=packets) for family in families}

    def attempt(self, config: Config, families: Iterable[Family]) -> None:
        """Try the table in a transaction that cannot succeed."""
        del config
        probe(families)

    def place(self, config: Config) -> Place:
        """Return the priority of the table's nat chains."""
        del config
        return Place(DSTNAT, DSTNAT, TABLE)

    def explainer(self, family: Family, mode: Any) -> "Explainer[Any, Any, Any]":
        """Build what explains a table."""
        from vipwire.modes.nftables.explain.explainer import NftablesExplainer  # noqa: PLC0415  # not to run

        del mode
        return NftablesExplainer(family)

    def remarks(self, config: Config) -> Iterable[Remark]:
        """Say whether connections can be offloaded, if that is asked for, and how the fast path stands."""
        from vipwire.modes.nftables.remarks import remarks  # noqa: PLC0415  # not to run

        return remarks(config)

    def standing(self, config: Config) -> Iterable[Remark]:
        """Say how many connections are offloaded, and at how many interfaces."""
        from vipwire.modes.nftables.remarks import standing  # noqa: PLC0415  # not to run

        return standing(config)

    def remains(self, family: Family, running: ModeSpec) -> TableRemains:
        """Find our own table, unless this mode runs, and kube-proxy's."""
        return TableRemains(family, ours=running is not MODE and MODE.name not in running.includes)

    def translates(self, family: Family) -> bool:
        """Report whether there is a table of ours or of kube-proxy's."""
        return bool(tables(family))


def _offload_after(packets: int, families: Iterable[Family], *, warn: bool) -> int:
    """Do without the fast path where the kernel lacks it: that costs time, and no connection.

    Who only looks at what a proxy has made here has to do without as well, or would see a difference for good.
    """
    if packets and (obstacle := obstacle_to_offloading(families)):
        if warn:
            log.warning("connections are not offloaded, and all packets meet the rules", reason=obstacle)
        return 0
    return packets


DRIVER: Final = NftablesDriver()
