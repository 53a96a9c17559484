"""Tells rules of ipvs mode, ours or kube-proxy's, from all others. Pure."""

from functools import cache
from typing import Final, cast

from vipwire.model.net import Family
from vipwire.modes.ipvs.objects import ranges
from vipwire.modes.ipvs.objects.names import Rules
from vipwire.modes.ipvs.skeleton import KUBE_PROXYS, node_objects
from vipwire.modes.xtables.ownership import ChainRule, WholeChainOwner
from vipwire.modes.xtables.save import BUILT_IN, ChainName
from vipwire.plan.node import NodePlan

GUARDS: Final = frozenset(
    {
        *(ChainName("filter", chain) for chain in ("KUBE-IPVS-FILTER", ranges.MARKS, ranges.NOBODY, ranges.STRAYS)),
        *(ChainName("mangle", chain) for chain in ("KUBE-ROUTED", ranges.MARKS)),
    }
)
"""Keep the host's own ports off the addresses of kube-ipvs0, and lead open connections to IPVS: they stay with these.
"""


_KUBE_PROXY_HAS: Final = frozenset(
    {
        *(("nat", f"KUBE-{name}") for name in ("SERVICES", "POSTROUTING", "NODE-PORT", "LOAD-BALANCER", "MARK-MASQ")),
        *(("filter", f"KUBE-{name}") for name in ("FORWARD", "NODE-PORT", "PROXY-FIREWALL")),
        *(("filter", f"KUBE-{name}") for name in ("SOURCE-RANGES-FIREWALL", "IPVS-FILTER", "IPVS-OUT-FILTER")),
    }
)
"""kube-proxy's chains in ipvs mode (pkg/proxy/ipvs/proxier.go, iptablesChains)."""


class IpvsOwner(WholeChainOwner):
    """Knows the chains and rules of one family."""

    trial: Final = "KUBE-IPVS-PROBE"

    def __init__(self, family: Family) -> None:
        self._family = family

    def owns(self, table: str, chain: str) -> bool:
        """Report whether a chain has a name of this mode's."""
        return ChainName(table, chain) in _chains(self._family) and chain not in BUILT_IN

    def vipwires(self, table: str, chain: str) -> bool:
        """Report whether a chain is none of kube-proxy's."""
        return self.owns(table, chain) and (table, chain) not in _KUBE_PROXY_HAS

    def words(self, table: str) -> frozenset[ChainRule]:
        """Return the words of the jumps that we write."""
        return frozenset(
            ChainRule(chain, rule)
            for (where, chain), rules in _chains(self._family).items()
            if where == table and chain in BUILT_IN
            for rule in rules
        )


@cache
def _chains(family: Family) -> dict[ChainName, Rules]:
    objects = node_objects(NodePlan(family)).items()
    ours = {key: cast("Rules", value) for key, value in objects if isinstance(key, ChainName)}
    return dict.fromkeys(KUBE_PROXYS, ()) | ours
