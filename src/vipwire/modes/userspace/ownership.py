"""Recognises the rules of userspace mode, of vipwire or of kube-proxy up to 1.25. Pure."""

from typing import Final

from vipwire.modes.userspace import names
from vipwire.modes.userspace.names import CHAINS
from vipwire.modes.xtables.ownership import RuleOwner

_KUBE_PROXY_HAD: Final = frozenset(
    {
        names.PORTALS_CONTAINER,
        names.PORTALS_HOST,
        names.NODEPORT_CONTAINER,
        names.NODEPORT_HOST,
        names.NODEPORT_NON_LOCAL,
    }
)


class UserspaceOwner(RuleOwner):
    """Recognises the chains and rules of either family."""

    trial = "KUBE-PORTALS-PROBE"
    refuses = True

    def owns_chain(self, table: str, chain: str) -> bool:
        return chain in CHAINS.get(table, ())

    def is_only_vipwires(self, table: str, chain: str) -> bool:
        """Report whether kube-proxy, which had this mode up to 1.25, lacks this chain."""
        return self.owns_chain(table, chain) and chain not in _KUBE_PROXY_HAD
