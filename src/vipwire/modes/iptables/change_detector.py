"""Tells, without running a program, whether somebody else may have changed the rules.

nf_tables counts every commit of anybody in the network namespace. The legacy engine counts nothing, but says how
many rules each table has, how large it is and where its chains begin: what a flush or a foreign rule changes. What
others do while we write shows in the number of rules, if that is not what ours have become.
"""

import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final, Protocol, TypeAlias

from vipwire.linux.netlink.nftables.generations import Generations
from vipwire.model.net import Family
from vipwire.modes.iptables.rules.names import CHAIN, FILTER, ROOT, TABLES, Key, Rules
from vipwire.modes.iptables.rules.skeleton import guards
from vipwire.modes.iptables.rules.tree import Dispatch
from vipwire.modes.xtables.legacy import LegacySocket
from vipwire.modes.xtables.variant import Variant
from vipwire.reconcile.delta import Delta

Observation: TypeAlias = int | tuple[bytes, ...]
"""What was seen of the rules: two that differ mean that the rules were changed in between."""

_ENTRIES_AT: Final = 32 + 11 * 4
"""In struct ipt_getinfo: name, valid_hooks, hook_entry[5], underflow[5], num_entries, size."""


class ChangeDetector(Protocol):
    """Looks at the rules of one family."""

    def look(self) -> Observation:
        """Read the current state of the rules, to compare later ones with."""

    def after(self, before: Observation, commits: int) -> Observation | None:
        """Read the state after commits of ours; return None if others have committed meanwhile."""

    def close(self) -> None:
        """Close the socket."""


class TableSizes:
    """The legacy variant's."""

    def __init__(self, family: Family) -> None:
        self._socket = LegacySocket(family)

    def look(self) -> tuple[bytes, ...]:
        """Read the sizes of every table."""
        return tuple(self._socket.info(table).raw for table in TABLES)

    def after(self, before: Observation, commits: int) -> Observation | None:
        """Read the sizes after a commit of ours."""
        del before, commits
        return self.look()

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()


def grown_by(before: Observation, after: Observation, more: Mapping[str, int]) -> bool:
    """Report whether each table has grown by so many entries between two states; True where they do not tell."""
    if isinstance(before, int) or isinstance(after, int):
        return True
    return all(_entries(after[at]) - _entries(before[at]) == more.get(table, 0) for at, table in enumerate(TABLES))


def _entries(info: bytes) -> int:
    return int.from_bytes(info[_ENTRIES_AT : _ENTRIES_AT + 4], sys.byteorder)


def change_detectors(families: Iterable[Family], variant: Variant) -> dict[Family, ChangeDetector]:
    """Build the change detector of each family."""
    if variant is Variant.LEGACY:
        return {family: TableSizes(family) for family in families}
    return dict.fromkeys(families, Generations())


_CHAIN: Final = 2
_BRANCH: Final = _CHAIN + 1
"""Entries for each branch of a tree: its chain, and the rule that leads to it."""


def count_branches(dispatches: Mapping[tuple[str, str], Dispatch]) -> Counter[str]:
    """Count the branches that the trees have in each table."""
    found = Counter[str]()
    for (table, _), dispatch in dispatches.items():
        found[table] += dispatch.branches
    return found


def growth(
    delta: Delta[Key, Rules], before: Counter[str], after: Counter[str], *, firewall_missing: bool
) -> Mapping[str, int]:
    """Return by how many entries a delta makes each table grow; `before` and `after` are branches.

    Each rule is an entry, and each chain has two more, its name and its end. Where a dispatch chain was found in
    disorder the sum does not come out, and the rules are read once more. `firewall_missing`: KUBE-FIREWALL is made
    for the first rule that is about it.
    """
    more = Counter({table: _BRANCH * (after[table] - before[table]) for table in TABLES})
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
