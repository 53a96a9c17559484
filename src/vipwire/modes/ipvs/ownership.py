"""Recognises the rules of ipvs mode, of vipwire or kube-proxy. Pure."""

from functools import cache
from typing import Final, cast

from vipwire.model.net import Family
from vipwire.modes.ipvs.objects import ranges
from vipwire.modes.ipvs.objects.names import Rules
from vipwire.modes.ipvs.skeleton import KUBE_PROXYS, build_node_objects
from vipwire.modes.xtables.ownership import ChainRule, RuleOwner
from vipwire.modes.xtables.save import BUILT_IN, ChainName
from vipwire.plan.node import NodePlan

GUARDS: Final = frozenset(
    {
        *(ChainName("filter", chain) for chain in ("KUBE-IPVS-FILTER", ranges.MARKS, ranges.NOBODY, ranges.STRAYS)),
        *(ChainName("mangle", chain) for chain in ("KUBE-ROUTED", ranges.MARKS)),
    }
)
"""The chains that keep the host's own ports off kube-ipvs0 and lead open connections to IPVS."""


_KUBE_PROXY_HAS: Final = frozenset(
    {
        *(("nat", f"KUBE-{name}") for name in ("SERVICES", "POSTROUTING", "NODE-PORT", "LOAD-BALANCER", "MARK-MASQ")),
        *(("filter", f"KUBE-{name}") for name in ("FORWARD", "NODE-PORT", "PROXY-FIREWALL")),
        *(("filter", f"KUBE-{name}") for name in ("SOURCE-RANGES-FIREWALL", "IPVS-FILTER", "IPVS-OUT-FILTER")),
    }
)
"""kube-proxy's chains in ipvs mode (pkg/proxy/ipvs/proxier.go, iptablesChains)."""


class IpvsOwner(RuleOwner):
    """Recognises the chains and rules of one family."""

    trial = "KUBE-IPVS-PROBE"

    def __init__(self, family: Family) -> None:
        self._family = family

    def owns_chain(self, table: str, chain: str) -> bool:
        return ChainName(table, chain) in _list_own_chains(self._family) and chain not in BUILT_IN

    def is_only_vipwires(self, table: str, chain: str) -> bool:
        """Report whether only vipwire has this chain, not kube-proxy."""
        return self.owns_chain(table, chain) and (table, chain) not in _KUBE_PROXY_HAS

    def list_shared_rules(self, table: str) -> frozenset[ChainRule]:
        return frozenset(
            ChainRule(chain, rule)
            for (where, chain), rules in _list_own_chains(self._family).items()
            if where == table and chain in BUILT_IN
            for rule in rules
        )


@cache
def _list_own_chains(family: Family) -> dict[ChainName, Rules]:
    objects = build_node_objects(NodePlan(family)).items()
    ours = {key: cast("Rules", value) for key, value in objects if isinstance(key, ChainName)}
    return dict.fromkeys(KUBE_PROXYS, ()) | ours
