"""From a run to one transaction of nf_tables, as iptables-nft would write it. Pure.

    tables; chains that may be missing; chains emptied; rules; jumps in chains of others; chains deleted

A chain that is new must not be there yet, and is not emptied.

All chains are there before a rule leads to one, and all of what goes is emptied before it is deleted.
"""

from collections.abc import Iterator, Mapping
from typing import Final

from vipwire.linux.netlink.nftables import encode
from vipwire.linux.netlink.nftables.encode import Hook, Operation
from vipwire.model.net import Family
from vipwire.modes.iptables.rules.names import FILTER, NAT, TABLES
from vipwire.modes.iptables.rules.script import Run, TablePart
from vipwire.modes.xtables.binary.expressions import Encoder

BASES: Final[Mapping[tuple[str, str], Hook]] = {
    (FILTER, "INPUT"): Hook("filter", encode.HOOKS["input"], 0),
    (FILTER, "FORWARD"): Hook("filter", encode.HOOKS["forward"], 0),
    (FILTER, "OUTPUT"): Hook("filter", encode.HOOKS["output"], 0),
    (NAT, "PREROUTING"): Hook("nat", encode.HOOKS["prerouting"], -100),
    (NAT, "OUTPUT"): Hook("nat", encode.HOOKS["output"], -100),
    (NAT, "POSTROUTING"): Hook("nat", encode.HOOKS["postrouting"], 100),
}
"""The kernel's own chains that lead to ours; iptables-nft makes each when it is first used."""

Handles = Mapping[tuple[str, str, str], list[int]]
"""The rules to delete: by table, chain and words."""


def operations(
    encoder: Encoder, family: Family, run: Run, missing: frozenset[tuple[str, str]], handles: Handles
) -> list[Operation]:
    """Write one run. `missing` are chains of `BASES` that nobody has made yet.

    Raise UnknownRuleError for a rule that is not known as the kernel has it.
    """
    found: list[Operation] = []
    for table in TABLES:
        if part := run.parts.get(table):
            found += _table(encoder, family, table, part, missing, handles)
    return found


def _table(
    encoder: Encoder,
    family: Family,
    table: str,
    part: TablePart,
    missing: frozenset[tuple[str, str]],
    handles: Handles,
) -> Iterator[Operation]:
    chains = sorted((*part.chains, *part.emptied, *part.gone), reverse=True)
    yield encode.open_table(family, table)
    yield from encode.fresh_chains(family, table, (chain for chain in chains if chain in part.fresh))
    yield from (encode.new_chain(family, table, chain) for chain in chains if chain not in part.fresh)
    for chain in dict.fromkeys(jump.chain for jump in part.jumps):
        if (table, chain) in missing:
            yield encode.new_chain(family, table, chain, BASES[table, chain])
    yield from (encode.flush_chain(family, table, chain) for chain in chains if chain not in part.fresh)
    for chain in chains:
        if rules := part.chains.get(chain):
            yield from encode.new_xtables_rules(family, table, chain, map(encoder, rules))
    for verb, chain, rule in part.jumps:
        if verb == "-D":
            yield encode.delete_rule(family, table, chain, handles[table, chain, rule].pop())
        else:
            yield from encode.new_xtables_rules(family, table, chain, [encoder(rule)], first=verb == "-I")
    yield from (encode.delete_chain(family, table, chain) for chain in part.gone)
