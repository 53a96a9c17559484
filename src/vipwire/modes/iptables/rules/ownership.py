"""Recognises rules of iptables mode; kube-proxy's have the same names as vipwire's. Pure.

KUBE-FIREWALL belongs to kubelet, too. vipwire removes it only if it has no foreign rule and kubelet has no chains.
"""

from collections.abc import Iterator
from functools import cache
from typing import Final

from vipwire.modes.iptables.rules import names
from vipwire.modes.iptables.rules.names import JUMP, Key, tree_root
from vipwire.modes.iptables.rules.read import is_ours
from vipwire.modes.iptables.rules.skeleton import is_guard, jump_keys
from vipwire.modes.xtables.ownership import ChainRule, RuleOwner
from vipwire.modes.xtables.save import Chains

_OWN: Final = frozenset({names.CLUSTER_IPS, names.RANGES, names.NO_SUCH_PORT, names.NOT_POD_MASQ})
"""Chains that kube-proxy lacks (pkg/proxy/iptables/proxier.go)."""
_OWN_PREFIXES: Final = ("KUBE-NPFW-",)


class IptablesOwner(RuleOwner):
    """Recognises the chains and rules of either family."""

    trial = "KUBE-PROXY-PROBE"

    def owns_chain(self, table: str, chain: str) -> bool:
        return is_ours(table, chain)

    def is_only_vipwires(self, table: str, chain: str) -> bool:
        """Report whether only vipwire has this chain: of trees, ranges, and frontends."""
        root = tree_root(table, chain)
        return is_ours(table, chain) and (
            chain in _OWN or chain.startswith(_OWN_PREFIXES) or (root is not None and root != chain)
        )

    def select_removable_chains(self, table: str, chains: Chains, *, kubelet: bool) -> frozenset[str]:
        """Return vipwire's chains, and KUBE-FIREWALL if no other program uses it."""
        found = {chain for chain in chains if is_ours(table, chain)}
        if table == names.FILTER and names.FIREWALL in chains and not (kubelet or self._is_firewall_used(chains)):
            found.add(names.FIREWALL)
        return frozenset(found)

    def list_jumps(self, table: str, chains: Chains, *, kubelet: bool) -> Iterator[ChainRule]:
        """Yield vipwire's rules in foreign chains; those about KUBE-FIREWALL only if it can go."""
        known, used = self.list_shared_rules(table), self._is_firewall_used(chains)
        for chain, rules in chains.items():
            for rule in rules:
                link = ChainRule(chain, rule)
                if link in known and not (
                    is_guard(Key(JUMP, table, chain, rule)) and (kubelet or (used and chain != names.FIREWALL))
                ):
                    yield link

    def list_shared_rules(self, table: str) -> frozenset[ChainRule]:
        return _list_jump_rules(table)

    def _is_firewall_used(self, chains: Chains) -> bool:
        own = {link.rule for link in self.list_shared_rules(names.FILTER) if link.chain == names.FIREWALL}
        return not own.issuperset(chains.get(names.FIREWALL, ()))


@cache
def _list_jump_rules(table: str) -> frozenset[ChainRule]:
    return frozenset(ChainRule(key.chain, str(key.detail)) for key in jump_keys() if key.table == table)
