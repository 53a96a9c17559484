"""The dispatch chains of a family, empty, and what all chains should hold if they are filled as wanted. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from vipwire.model.net import Family
from vipwire.modes.iptables.rules.frontend_code import Zone
from vipwire.modes.iptables.rules.names import CHAIN, ENTRY, RANGES, ROOT, ROOTS, TABLES, Key, Rules
from vipwire.modes.iptables.rules.tree import DEEPEST, Dispatch, Shape
from vipwire.reconcile.backend import Rendered


def dispatches(family: Family, *, tree: bool) -> dict[tuple[str, str], Dispatch]:
    """Build the empty dispatch chains of a family, as trees or as kube-proxy's flat chains."""
    zone = Zone(family)
    deepest = DEEPEST if tree else 0
    made = {where: Shape(zone, where[1], prefix, deepest) for where, prefix in ROOTS.items()}
    for where, shape in made.items():
        if where[1] == RANGES:  # one jump further from the hook than other roots; ports cannot be branched at
            made[where] = replace(shape, deepest=max(0, deepest - 1), before=zone.ports_at)
    return {where: Dispatch(shape) for where, shape in made.items()}


def expected_chains(
    empty: Mapping[tuple[str, str], Dispatch], wanted: Iterable[Rendered[Key, Rules]]
) -> Mapping[str, Mapping[str, Rules]]:
    """List what chains should hold, by table: those of Services, common ones, and what becomes of dispatch chains.

    These are filled as wanted. To build their trees takes memory for the moment; who is given none leaves them out.
    """
    found: dict[str, dict[str, Rules]] = {table: {} for table in TABLES}
    entries: dict[tuple[str, str], dict[int, Rules]] = {where: {} for where in ROOTS}
    tails: dict[tuple[str, str], Rules] = {}
    for each in wanted:
        for key, rules in each.own.items():
            if key.kind == CHAIN:
                found[key.table][key.chain] = rules
            elif key.kind == ENTRY and isinstance(key.detail, int):
                entries[key.table, key.chain][key.detail] = rules
            elif key.kind == ROOT:
                tails[key.table, key.chain] = rules
    for (table, root), dispatch in empty.items():
        dispatch.load(entries[table, root])
        found[table] |= dispatch.chains()
        found[table][root] = (*found[table][root], *tails.get((table, root), ()))
    return found
