"""Counts how many entries a delta adds to each table of iptables-legacy, so that others' changes show. Pure.

The engine does not count commits. What somebody else changes while we write would look like our own doing, were it
not for the number of entries: each rule is one, and each chain has two more, its name and its end. Where a dispatch
chain was found in disorder the sum does not come out, and the rules are read once more.
"""

from collections import Counter
from collections.abc import Mapping
from typing import Final

from vipwire.modes.iptables.rules.names import CHAIN, FILTER, ROOT, TABLES, Key, Rules
from vipwire.modes.iptables.rules.skeleton import guards
from vipwire.modes.iptables.rules.tree import Dispatch
from vipwire.reconcile.delta import Delta

_CHAIN: Final = 2
_BRANCH: Final = _CHAIN + 1
"""A chain of a tree has a rule that leads to it."""


def tree_entries(dispatches: Mapping[tuple[str, str], Dispatch]) -> Counter[str]:
    """Count the entries that the trees themselves have in each table."""
    found = Counter[str]()
    for (table, _), dispatch in dispatches.items():
        found[table] += _BRANCH * dispatch.branches
    return found


def growth(
    delta: Delta[Key, Rules], before: Counter[str], after: Counter[str], *, firewall_missing: bool
) -> Mapping[str, int]:
    """Return by how many entries each table grows; `before` and `after` is what the trees have.

    `firewall_missing`: KUBE-FIREWALL is made for the first rule that is about it.
    """
    more = Counter({table: after[table] - before[table] for table in TABLES})
    for key, rules in delta.added.items():
        more[key.table] += _size(key, rules)
    for key, rules in delta.removed.items():
        more[key.table] -= _size(key, rules)
    for key, (old, new) in delta.changed.items():
        more[key.table] += len(new) - len(old)
    if firewall_missing and any(map(guards, (*delta.added, *delta.changed))):
        more[FILTER] += _CHAIN
    return more


def _size(key: Key, rules: Rules) -> int:
    return len(rules) + (_CHAIN if key.kind in (CHAIN, ROOT) else 0)
