"""Recognises the modes' chains and rules, and writes the removal of some modes' rules. Pure.

Three modes write into the same tables, and two share kube-proxy's names (KUBE-SERVICES, KUBE-MARK-MASQ). A chain that
only one mode has identifies its leftovers; shared names alone do not, because older kubelets create some. vipwire
never touches the running mode's objects in the same engine.

The filter tables go first: refusals of untranslated packets must not outlive the translation.
"""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from typing import Final, NamedTuple

from vipwire.modes.xtables.save import BUILT_IN, ChainName, Chains, find_rule_target

TABLES: Final = ("filter", "nat", "mangle")
"""In the order of removal."""

KUBELETS: Final = ("KUBE-KUBELET-CANARY", "KUBE-IPTABLES-HINT")
"""Chains that only kubelet creates, in the engine that the node uses."""

Tables = Mapping[str, Chains]
"""The output of iptables-save, by table."""


class ChainRule(NamedTuple):
    """A rule in a chain, in the words of iptables-save without `-A CHAIN`."""

    chain: str
    rule: str


class RuleOwner(ABC):
    """Recognises a mode's chains and rules, in one family. All of it is pure.

    By default a mode owns the chains of its names, and the jumps to them from built-in chains.
    """

    trial: str = ""
    """A chain without jumps to it that tries a kernel; a killed process may leave it."""
    refuses: bool = False
    """Whether its filter table drops packets that this mode has not translated."""

    @abstractmethod
    def owns_chain(self, table: str, chain: str) -> bool:
        """Report whether this mode has a chain of this name; other modes may have one, too."""

    @abstractmethod
    def is_only_vipwires(self, table: str, chain: str) -> bool:
        """Report whether only vipwire, not kube-proxy, has a chain of this name in this mode."""

    def select_removable_chains(self, table: str, chains: Chains, *, kubelet: bool) -> frozenset[str]:
        """Return the chains of a table that go with this mode. `kubelet`: kubelet has its chains in this engine."""
        del kubelet
        return frozenset(chain for chain in chains if self.owns_chain(table, chain))

    def list_jumps(self, table: str, chains: Chains, *, kubelet: bool) -> Iterator[ChainRule]:
        """Yield the rules that go with this mode from chains that stay, each as often as it occurs."""
        del kubelet
        for chain in BUILT_IN & chains.keys():
            yield from (
                ChainRule(chain, rule) for rule in chains[chain] if self.owns_chain(table, find_rule_target(rule))
            )

    def list_shared_rules(self, table: str) -> frozenset[ChainRule]:
        """Return the words of such rules that may equal another mode's."""
        del table
        return frozenset()


Owners = Mapping[str, RuleOwner]
"""Owners by the names of their modes."""


def count_chains_of_one_mode(
    owners: Owners, tables: Mapping[str, Collection[str]], held: Collection[ChainName] = frozenset()
) -> dict[str, int]:
    """Count the chains that identify each mode, without `held` ones; leave out modes without any."""
    counts: Counter[str] = Counter()
    for table, chains in tables.items():
        for chain in chains:
            mine = [name for name, owner in owners.items() if owner.owns_chain(table, chain)]
            if len(mine) == 1 and (table, chain) not in held:
                counts[mine[0]] += 1
            counts.update(name for name, owner in owners.items() if chain == owner.trial)
    return dict(counts)


def write_removals(
    tables: Tables,
    leaving: Collection[RuleOwner],
    running: RuleOwner | None = None,
    held: Collection[ChainName] = frozenset(),
) -> Iterator[str]:
    """Write the removal of modes from an engine, one text for each table with leftovers.

    `running`'s objects in this engine stay, and so do the chains `held` with the jumps to them.
    """
    kubelet = has_kubelets(tables)
    for table in TABLES:
        chains = tables.get(table, {})
        guarded = frozenset(place.chain for place in held if place.table == table)
        gone = {chain for owner in leaving for chain in owner.select_removable_chains(table, chains, kubelet=kubelet)}
        links = {link for owner in leaving for link in owner.list_jumps(table, chains, kubelet=kubelet)}
        if running is not None:
            gone -= running.select_removable_chains(table, chains, kubelet=kubelet)
            links -= running.list_shared_rules(table)
        gone = (gone - guarded) | {owner.trial for owner in leaving if owner.trial in chains}
        links = {link for link in links if find_rule_target(link.rule) not in guarded}
        if text := write_removal(table, chains, gone, links):
            yield text


def write_removal(table: str, chains: Chains, gone: Collection[str], links: Collection[ChainRule]) -> str:
    """Write the removal of chains of a table, and of rules in other chains; "" if there are none.

    A chain that other rules jump to is only emptied.
    """
    lines = [f":{chain} - [0:0]" for chain in chains if chain in gone]
    pinned: set[str] = set()
    for chain, rules in chains.items():
        for rule in rules if chain not in gone else ():
            if ChainRule(chain, rule) in links:
                lines.append(f"-D {chain} {rule}")
            else:
                pinned.add(find_rule_target(rule))
    lines += (f"-X {chain}" for chain in chains if chain in gone and chain not in pinned)
    return "\n".join([f"*{table}", *lines, "COMMIT", ""]) if lines else ""


def has_kubelets(tables: Tables) -> bool:
    return any(chain in chains for chains in tables.values() for chain in KUBELETS)
