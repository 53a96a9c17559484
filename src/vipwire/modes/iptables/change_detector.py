"""Detects foreign changes of the rules without running a program.

nf_tables counts all commits in the network namespace. The legacy engine reports the number of rules, the size and the
chains' offsets of each table, which a flush or a foreign rule changes. A foreign change during vipwire's write shows
in the number of rules.
"""

import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final, Protocol, TypeAlias

from vipwire.linux.netlink.nftables.generations import Generations
from vipwire.model.net import Family
from vipwire.modes.iptables.rules.names import CHAIN, FILTER, ROOT, TABLES, Key, Rules
from vipwire.modes.iptables.rules.skeleton import is_guard
from vipwire.modes.iptables.rules.tree import Dispatch
from vipwire.modes.xtables.legacy import LegacySocket
from vipwire.modes.xtables.tool import Variant
from vipwire.reconcile.delta import Delta

Observation: TypeAlias = int | tuple[bytes, ...]
"""A state of the rules; two different ones mean a change in between."""

_ENTRIES_AT: Final = 32 + 11 * 4
"""In struct ipt_getinfo: name, valid_hooks, hook_entry[5], underflow[5], num_entries, size."""


class ChangeDetector(Protocol):
    """Observes the rules of one family."""

    def observe(self) -> Observation: ...

    def observe_after(self, before: Observation, commits: int) -> Observation | None:
        """Read the state after vipwire's commits; None if other programs committed meanwhile."""

    def close(self) -> None: ...


class TableSizes:
    """The detector of the legacy variant."""

    def __init__(self, family: Family) -> None:
        self._socket = LegacySocket(family)

    def observe(self) -> tuple[bytes, ...]:
        return tuple(self._socket.read_info(table).raw for table in TABLES)

    def observe_after(self, before: Observation, commits: int) -> Observation | None:
        del before, commits
        return self.observe()

    def close(self) -> None:
        self._socket.close()


def has_grown_by(before: Observation, after: Observation, more: Mapping[str, int]) -> bool:
    """Report whether each table grew by so many entries between two states; True if the states do not tell."""
    if isinstance(before, int) or isinstance(after, int):
        return True
    return all(
        _count_entries(after[at]) - _count_entries(before[at]) == more.get(table, 0)
        for at, table in enumerate(TABLES)
    )


def _count_entries(info: bytes) -> int:
    return int.from_bytes(info[_ENTRIES_AT : _ENTRIES_AT + 4], sys.byteorder)


def build_change_detectors(families: Iterable[Family], variant: Variant) -> dict[Family, ChangeDetector]:
    if variant is Variant.LEGACY:
        return {family: TableSizes(family) for family in families}
    return dict.fromkeys(families, Generations())


_CHAIN: Final = 2
_BRANCH: Final = _CHAIN + 1
"""Entries of a tree's branch: its chain, and the jump to it."""


def count_branches(dispatches: Mapping[tuple[str, str], Dispatch]) -> Counter[str]:
    found = Counter[str]()
    for (table, _), dispatch in dispatches.items():
        found[table] += dispatch.branches
    return found


def compute_growth(
    delta: Delta[Key, Rules], before: Counter[str], after: Counter[str], *, firewall_missing: bool
) -> Mapping[str, int]:
    """Return the entries by which a delta changes each table; `before` and `after` count branches.

    Each rule is one entry, and each chain adds two, its name and its end. After a disordered dispatch chain the sum
    is wrong, and vipwire reads the rules once more. `firewall_missing`: the first rule about KUBE-FIREWALL creates
    that chain.
    """
    more = Counter({table: _BRANCH * (after[table] - before[table]) for table in TABLES})
    for key, rules in delta.added.items():
        more[key.table] += _count_rules_of(key, rules)
    for key, rules in delta.removed.items():
        more[key.table] -= _count_rules_of(key, rules)
    for key, (old, new) in delta.changed.items():
        more[key.table] += len(new) - len(old)
    if firewall_missing and any(map(is_guard, (*delta.added, *delta.changed))):
        more[FILTER] += _CHAIN
    return more


def _count_rules_of(key: Key, rules: Rules) -> int:
    return len(rules) + (_CHAIN if key.kind in (CHAIN, ROOT) else 0)
