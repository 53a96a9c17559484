"""Tells rules of iptables mode from others; kube-proxy's have the same names as ours. Pure.

KUBE-FIREWALL is kubelet's too. It goes when no rule but ours is in it, and stays with all that belongs to it where
kubelet has made its chains.
"""

from collections.abc import Iterator
from functools import cache
from typing import Final

from vipwire.modes.iptables.rules import names
from vipwire.modes.iptables.rules.names import JUMP, Key, tree_root
from vipwire.modes.iptables.rules.read import is_ours
from vipwire.modes.iptables.rules.skeleton import guards, jump_keys
from vipwire.modes.xtables.ownership import ChainRule
from vipwire.modes.xtables.save import Chains

_OWN: Final = frozenset({names.CLUSTER_IPS, names.RANGES, names.NO_SUCH_PORT, names.NOT_POD_MASQ})
"""Chains that kube-proxy does not have (pkg/proxy/iptables/proxier.go)."""
_OWN_PREFIXES: Final = ("KUBE-NPFW-",)


class IptablesOwner:
    """Knows the chains and rules of either family."""

    trial: Final = "KUBE-PROXY-PROBE"
    refuses: Final = False

    def owns(self, table: str, chain: str) -> bool:
        """Report whether a chain is this mode's wholly."""
        return is_ours(table, chain)

    def vipwires(self, table: str, chain: str) -> bool:
        """Report whether a chain is of a tree, of ranges or of frontends that only vipwire has."""
        root = tree_root(table, chain)
        return is_ours(table, chain) and (
            chain in _OWN or chain.startswith(_OWN_PREFIXES) or (root is not None and root != chain)
        )

    def removable(self, table: str, chains: Chains, *, kubelet: bool) -> frozenset[str]:
        """Choose its chains, and KUBE-FIREWALL where nobody else uses it."""
        found = {chain for chain in chains if is_ours(table, chain)}
        if table == names.FILTER and names.FIREWALL in chains and not (kubelet or self._used(chains)):
            found.add(names.FIREWALL)
        return frozenset(found)

    def links(self, table: str, chains: Chains, *, kubelet: bool) -> Iterator[ChainRule]:
        """Yield the rules that have our very words; those about KUBE-FIREWALL only where they can go."""
        known, used = self.words(table), self._used(chains)
        for chain, rules in chains.items():
            for rule in rules:
                link = ChainRule(chain, rule)
                if link in known and not (
                    guards(Key(JUMP, table, chain, rule)) and (kubelet or (used and chain != names.FIREWALL))
                ):
                    yield link

    def words(self, table: str) -> frozenset[ChainRule]:
        """Return the words of our rules in chains that are not ours."""
        return _words(table)

    def _used(self, chains: Chains) -> bool:
        own = {link.rule for link in self.words(names.FILTER) if link.chain == names.FIREWALL}
        return not own.issuperset(chains.get(names.FIREWALL, ()))


@cache
def _words(table: str) -> frozenset[ChainRule]:
    return frozenset(ChainRule(key.chain, str(key.detail)) for key in jump_keys() if key.table == table)
