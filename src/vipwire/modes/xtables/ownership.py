"""Tells whose chains and rules these are, and writes the text that removes those of some modes only. Pure.

Three modes write into the same tables, and two share names (KUBE-SERVICES, KUBE-MARK-MASQ: kube-proxy's, so not ours
to change). A chain that only one mode has tells whose leftovers these are; chains with shared names alone say nothing
and are left alone: older kubelets make some of them. What the running mode has in the same engine is never touched.

The filter tables go first. As long as the nat table of both modes is in force, all connections are translated; what
refuses the untranslated must not outlive what translates.
"""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from typing import Final, NamedTuple, Protocol

from vipwire.modes.xtables.save import BUILT_IN, ChainName, Chains, target
from vipwire.modes.xtables.variant import KUBELETS

TABLES: Final = ("filter", "nat", "mangle")
"""In the order in which they are emptied."""

Tables = Mapping[str, Chains]
"""What iptables-save shows, by table."""


class ChainRule(NamedTuple):
    """A rule in a chain, in the words of iptables-save without `-A CHAIN`."""

    chain: str
    rule: str


class RuleOwner(Protocol):
    """Knows a mode's chains and rules, in one family. All of it is pure."""

    @property
    def trial(self) -> str:
        """A chain that nobody jumps to, made for a moment to try a kernel: who is killed in that moment leaves it."""

    @property
    def refuses(self) -> bool:
        """Whether its filter table drops what the mode has not translated itself."""

    def owns(self, table: str, chain: str) -> bool:
        """Report whether a chain has a name of this mode's; others may have it too."""

    def vipwires(self, table: str, chain: str) -> bool:
        """Report whether a chain has a name that vipwire alone gives: kube-proxy makes no such chain in this mode."""

    def removable(self, table: str, chains: Chains, *, kubelet: bool) -> frozenset[str]:
        """Choose the chains of a table that go with this mode. `kubelet`: it has made its own in this engine."""

    def links(self, table: str, chains: Chains, *, kubelet: bool) -> Iterator[ChainRule]:
        """Yield the rules that go with this mode from chains that stay, each as often as it is there."""

    def words(self, table: str) -> frozenset[ChainRule]:
        """Return the very words of such rules, where another mode's may be the same."""


class WholeChainOwner(ABC):
    """Owns the chains that have its names, and the jumps to them from the kernel's own chains."""

    refuses: bool = False

    @abstractmethod
    def owns(self, table: str, chain: str) -> bool:
        """Report whether a chain has a name of this mode's."""

    def removable(self, table: str, chains: Chains, *, kubelet: bool) -> frozenset[str]:
        """Choose the chains that have its names."""
        del kubelet
        return frozenset(chain for chain in chains if self.owns(table, chain))

    def links(self, table: str, chains: Chains, *, kubelet: bool) -> Iterator[ChainRule]:
        """Yield all jumps from the kernel's own chains to these."""
        del kubelet
        for chain in BUILT_IN & chains.keys():
            yield from (ChainRule(chain, rule) for rule in chains[chain] if self.owns(table, target(rule)))


class VipwireOnlyOwner(WholeChainOwner):
    """Owns what only vipwire writes in a mode: this can go while kube-proxy runs in the same mode."""

    def __init__(self, owner: RuleOwner) -> None:
        self._owner, self.trial = owner, owner.trial

    def owns(self, table: str, chain: str) -> bool:
        """Report whether a chain has a name of vipwire's own."""
        return self.vipwires(table, chain)

    def vipwires(self, table: str, chain: str) -> bool:
        """Return the same."""
        return self._owner.vipwires(table, chain)

    def links(self, table: str, chains: Chains, *, kubelet: bool) -> Iterator[ChainRule]:
        """Yield the rules that jump to these from chains that stay: whoever wrote them, it was not kube-proxy."""
        del kubelet
        for chain, rules in chains.items():
            if chain in BUILT_IN or self._owner.owns(table, chain):
                yield from (ChainRule(chain, rule) for rule in rules if self.vipwires(table, target(rule)))

    def words(self, table: str) -> frozenset[ChainRule]:
        """Return the words of such rules."""
        return frozenset(link for link in self._owner.words(table) if self.vipwires(table, target(link.rule)))


class _KubeProxyOwner(WholeChainOwner):
    """Owns what kube-proxy writes too, in any of several modes."""

    trial: Final = ""

    def __init__(self, owners: Collection[RuleOwner]) -> None:
        self._owners = owners

    def owns(self, table: str, chain: str) -> bool:
        return any(owner.owns(table, chain) and not owner.vipwires(table, chain) for owner in self._owners)

    def vipwires(self, table: str, chain: str) -> bool:
        del table, chain
        return False

    def links(self, table: str, chains: Chains, *, kubelet: bool) -> Iterator[ChainRule]:
        found = (link for owner in self._owners for link in owner.links(table, chains, kubelet=kubelet))
        return (link for link in found if self.owns(table, target(link.rule)))

    def words(self, table: str) -> frozenset[ChainRule]:
        return frozenset(
            link for owner in self._owners for link in owner.words(table) if self.owns(table, target(link.rule))
        )


def all_of(owners: Collection[RuleOwner]) -> RuleOwner | None:
    """Return what knows the chains and rules that kube-proxy may have in the modes of these; None for no mode."""
    return _KubeProxyOwner(owners) if owners else None


Owners = Mapping[str, RuleOwner]
"""Owners by the names of their modes."""


def census(
    owners: Owners, tables: Mapping[str, Collection[str]], held: Collection[ChainName] = frozenset()
) -> dict[str, int]:
    """Count the chains by the mode that alone has such; modes without any are left out. Those `held` do not count."""
    counts: Counter[str] = Counter()
    for table, chains in tables.items():
        for chain in chains:
            mine = [name for name, owner in owners.items() if owner.owns(table, chain)]
            if len(mine) == 1 and (table, chain) not in held:
                counts[mine[0]] += 1
            counts.update(name for name, owner in owners.items() if chain == owner.trial)
    return dict(counts)


def removals(
    tables: Tables,
    leaving: Collection[RuleOwner],
    running: RuleOwner | None = None,
    held: Collection[ChainName] = frozenset(),
) -> Iterator[str]:
    """Write what removes modes from an engine, one text for each table that has something of theirs.

    What is `running`'s in this engine stays, and the chains that are `held` with the rules that jump there.
    """
    kubelet = has_kubelets(tables)
    for table in TABLES:
        chains = tables.get(table, {})
        guarded = frozenset(place.chain for place in held if place.table == table)
        gone = {chain for owner in leaving for chain in owner.removable(table, chains, kubelet=kubelet)}
        links = {link for owner in leaving for link in owner.links(table, chains, kubelet=kubelet)}
        if running is not None:
            gone -= running.removable(table, chains, kubelet=kubelet)
            links -= running.words(table)
        gone = (gone - guarded) | {owner.trial for owner in leaving if owner.trial in chains}
        links = {link for link in links if target(link.rule) not in guarded}
        if text := removal(table, chains, gone, links):
            yield text


def removal(table: str, chains: Chains, gone: Collection[str], links: Collection[ChainRule]) -> str:
    """Write what removes chains of a table, and rules of other chains; nothing where there is nothing.

    A chain that other rules jump to is only emptied.
    """
    lines = [f":{chain} - [0:0]" for chain in chains if chain in gone]
    pinned: set[str] = set()
    for chain, rules in chains.items():
        for rule in rules if chain not in gone else ():
            if ChainRule(chain, rule) in links:
                lines.append(f"-D {chain} {rule}")
            else:
                pinned.add(target(rule))
    lines += (f"-X {chain}" for chain in chains if chain in gone and chain not in pinned)
    return "\n".join([f"*{table}", *lines, "COMMIT", ""]) if lines else ""


def has_kubelets(tables: Tables) -> bool:
    """Report whether kubelet has made its chains in an engine."""
    return any(chain in chains for chains in tables.values() for chain in KUBELETS)
