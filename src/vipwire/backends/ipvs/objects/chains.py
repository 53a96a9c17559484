"""The chains of iptables: what iptables-save printed, and what iptables-restore is to do. Pure.

Our chains are ours wholly. Of the built-in ones only the jumps to our chains are, in order; everyone else's rules
stay where they are.
"""

from collections.abc import Iterator, Mapping
from typing import Final

from vipwire.backends.ipvs.names import ChainName, Rules
from vipwire.reconcile.delta import Delta
from vipwire.xtables.save import BUILT_IN, read_tables, target

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
