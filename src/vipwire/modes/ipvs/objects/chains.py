"""Reads iptables-save output and writes iptables-restore input for ipvs mode's chains. Pure.

vipwire owns its chains whole. Of a built-in chain it owns only the jumps to its chains, in order. In chains that
Services share it adds and removes single rules.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from vipwire.modes.ipvs.objects.names import RangeRule, Rules
from vipwire.modes.ipvs.objects.ranges import DYNAMIC, must_precede
from vipwire.modes.xtables.save import BUILT_IN, ChainName, find_rule_target, read_tables
from vipwire.reconcile.delta import Delta

TABLES: Final = ("mangle", "nat", "filter")


def parse_save(text: str, ours: frozenset[ChainName]) -> dict[ChainName, Rules]:
    """Collect vipwire's chains from iptables-save output, and built-in chains that jump to them.

    Raise DecodeError for text that iptables-save does not print.
    """
    found: dict[ChainName, Rules] = {}
    for table, chains in read_tables(text).items():
        targets = {chain.chain for chain in ours if chain.table == table} - BUILT_IN
        for name, rules in chains.items():
            chain = ChainName(table, name)
            if name not in BUILT_IN:
                if chain in ours:
                    found[chain] = tuple(rules)
            elif jumps := tuple(rule for rule in rules if find_rule_target(rule) in targets):
                found[chain] = jumps
    return found


def separate_shared(found: Mapping[ChainName, Rules]) -> tuple[dict[ChainName, Rules], dict[RangeRule, int]]:
    """Separate the rules of chains that Services share from whole chains."""
    chains = {chain: () if chain in DYNAMIC else rules for chain, rules in found.items()}
    shared = (rule for chain, rules in found.items() if chain in DYNAMIC for rule in _list_range_rules(chain, rules))
    return chains, dict(Counter(shared))


def _list_range_rules(chain: ChainName, rules: Iterable[str]) -> Iterator[RangeRule]:
    """Yield the rules of a shared chain; one at a wrong place is marked `stray`, so that vipwire replaces it."""
    at_head = True
    for words in rules:
        at_head = at_head and must_precede(words)
        yield RangeRule(*chain, words, stray=must_precede(words) and not at_head)


def rules_text(delta: Delta[RangeRule, int]) -> str:
    return "".join(f"{line}\n" for table in TABLES for line in write_single_changes(table, delta))


def write_single_changes(table: str, delta: Delta[RangeRule, int]) -> Iterator[str]:
    """Write a difference of one table's single rules, from `*table` to COMMIT."""
    changes = [(rule, -times) for rule, times in delta.removed.items()]
    changes += [(rule, new - old) for rule, (old, new) in delta.changed.items()]
    changes += delta.added.items()
    lines: list[str] = []
    for rule, more in changes:
        if rule.table == table:
            verb = f"-I {rule.chain} 1" if must_precede(rule.words) else f"-A {rule.chain}"
            verb = f"-D {rule.chain}" if more < 0 else verb
            lines += [f"{verb} {rule.words}"] * abs(more)
    if lines:
        yield from (f"*{table}", *lines, "COMMIT")


def restore_text(delta: Delta[ChainName, Rules]) -> str:
    """Write a difference for `iptables-restore --noflush`, which commits each table as a whole."""
    return "".join(line + "\n" for table in TABLES for line in _write_table(table, delta))


def _write_table(table: str, delta: Delta[ChainName, Rules]) -> Iterator[str]:
    new = _select_table(table, delta.written)
    old = {
        **_select_table(table, delta.removed),
        **_select_table(table, {key: value for key, (value, _) in delta.changed.items()}),
    }
    gone = [chain for chain in _select_table(table, delta.removed) if chain not in BUILT_IN]
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


def _select_table(table: str, chains: Mapping[ChainName, Rules]) -> dict[str, Rules]:
    return {key.chain: rules for key, rules in chains.items() if key.table == table}


PROBE: Final = "*filter\n:KUBE-IPVS-PROBE - [0:0]\n-X KUBE-IPVS-PROBE\nCOMMIT\n"
"""Creates and deletes a chain, because iptables-nft may read where it cannot write."""
