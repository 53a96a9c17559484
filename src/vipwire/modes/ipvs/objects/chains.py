"""The chains of iptables: what iptables-save printed, and what iptables-restore is to do. Pure.

Our chains are ours wholly. Of the built-in ones only the jumps to our chains are, in order; everyone else's rules
stay where they are. Chains that Services share have rules that come and go one by one.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from vipwire.modes.ipvs.objects.names import RangeRule, Rules
from vipwire.modes.ipvs.objects.ranges import DYNAMIC, leads
from vipwire.modes.xtables.save import BUILT_IN, ChainName, read_tables, target
from vipwire.reconcile.delta import Delta

TABLES: Final = ("mangle", "nat", "filter")


def parse_save(text: str, ours: frozenset[ChainName]) -> dict[ChainName, Rules]:
    """Collect our chains from the output of iptables-save; a built-in chain only if it jumps to one of ours.

    Raise DecodeError for what iptables-save does not print.
    """
    found: dict[ChainName, Rules] = {}
    for table, chains in read_tables(text).items():
        targets = {chain.chain for chain in ours if chain.table == table} - BUILT_IN
        for name, rules in chains.items():
            chain = ChainName(table, name)
            if name not in BUILT_IN:
                if chain in ours:
                    found[chain] = tuple(rules)
            elif jumps := tuple(rule for rule in rules if target(rule) in targets):
                found[chain] = jumps
    return found


def parted(found: Mapping[ChainName, Rules]) -> tuple[dict[ChainName, Rules], dict[RangeRule, int]]:
    """Tell the rules of chains that Services share from those that belong to their chain."""
    chains = {chain: () if chain in DYNAMIC else rules for chain, rules in found.items()}
    shared = (rule for chain, rules in found.items() if chain in DYNAMIC for rule in _members(chain, rules))
    return chains, dict(Counter(shared))


def _members(chain: ChainName, rules: Iterable[str]) -> Iterator[RangeRule]:
    """Read the rules of a chain; one that has to lead and does not counts as another, which is replaced."""
    at_head = True
    for words in rules:
        at_head = at_head and leads(words)
        yield RangeRule(*chain, words, stray=leads(words) and not at_head)


def rules_text(delta: Delta[RangeRule, int]) -> str:
    """Write a difference of single rules for `iptables-restore --noflush`."""
    return "".join(f"{line}\n" for table in TABLES for line in single(table, delta))


def single(table: str, delta: Delta[RangeRule, int]) -> Iterator[str]:
    """Write a difference of single rules of one table, with its first and last line."""
    changes = [(rule, -times) for rule, times in delta.removed.items()]
    changes += [(rule, new - old) for rule, (old, new) in delta.changed.items()]
    changes += delta.added.items()
    lines = [line for rule, more in changes if rule.table == table for line in _times(rule, more)]
    if lines:
        yield from (f"*{table}", *lines, "COMMIT")


def _times(rule: RangeRule, more: int) -> Iterator[str]:
    how = f"-D {rule.chain}" if more < 0 else f"-I {rule.chain} 1" if leads(rule.words) else f"-A {rule.chain}"
    yield from (f"{how} {rule.words}" for _ in range(abs(more)))


def restore_text(delta: Delta[ChainName, Rules]) -> str:
    """Write a difference for `iptables-restore --noflush`: a table is changed as a whole or not at all."""
    return "".join(line + "\n" for table in TABLES for line in _table(table, delta))


def _table(table: str, delta: Delta[ChainName, Rules]) -> Iterator[str]:
    new = {**_of(table, delta.added), **_of(table, {key: value for key, (_, value) in delta.changed.items()})}
    old = {**_of(table, delta.removed), **_of(table, {key: value for key, (value, _) in delta.changed.items()})}
    gone = [chain for chain in _of(table, delta.removed) if chain not in BUILT_IN]
    if not new and not old:
        return
    yield f"*{table}"
    # Naming a chain creates or empties it.
    yield from (f":{chain} - [0:0]" for chain in new if chain not in BUILT_IN)
    for chain in BUILT_IN & old.keys():
        yield from (f"-D {chain} {rule}" for rule in old[chain])
    for chain, rules in new.items():
        if chain in BUILT_IN:
            yield from (f"-I {chain} {at} {rule}" for at, rule in enumerate(rules, 1))
        else:
            yield from (f"-A {chain} {rule}" for rule in rules)
    yield from (f"-F {chain}" for chain in gone)
    yield from (f"-X {chain}" for chain in gone)
    yield "COMMIT"


def _of(table: str, chains: Mapping[ChainName, Rules]) -> dict[str, Rules]:
    return {key.chain: rules for key, rules in chains.items() if key.table == table}


PROBE: Final = "*filter\n:KUBE-IPVS-PROBE - [0:0]\n-X KUBE-IPVS-PROBE\nCOMMIT\n"
"""Makes a chain and removes it: iptables-nft reads well even where it cannot write."""
