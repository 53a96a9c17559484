"""Chains and rules of iptables that other modes have left, ours or kube-proxy's: found by name, removed by table.

Which mode has which, its `RuleOwner` knows; what goes when two have the same names: `modes.xtables.ownership`.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping

from vipwire.model.net import Family
from vipwire.modes.registry import driver_of, every_spec, spec_of
from vipwire.modes.xtables.ownership import TABLES, Owners, Place, RuleOwner, Tables, census, removals
from vipwire.modes.xtables.save import read_table
from vipwire.modes.xtables.tool import RuleTool, Tool, with_tables


def engines(family: Family) -> Iterator[Tool]:
    """Yield the tools of a family that can have rules here."""
    return with_tables(family, "removing rules of other modes")


def owners(family: Family) -> Owners:
    """Return what knows the chains of each mode that writes into iptables."""
    found = ((spec.name, driver_of(spec).owner(family)) for spec in every_spec())
    return {name: owner for name, owner in found if owner is not None}


def remove_rules(tool: Tool, running: str = "", *, held: Collection[Place] = frozenset()) -> dict[str, int]:
    """Remove the chains that other modes than `running` have left in one engine; tell how many of each mode.

    `running` is empty where the mode that runs writes no rules into this engine. The chains `held` stay. Raise
    CommitError if the tables cannot be read or written.
    """
    known = owners(tool.family)
    if not census(known, _chains(tool), held).keys() - {running}:
        return {}  # as after nearly every start: no rule was read, of which there may be a hundred thousand
    tables = read_engine(tool)
    found = census(known, tables, held)
    found.pop(running, None)
    leaving = [known[name] for name in found]
    for text in removals(tables, leaving, known.get(running), held) if leaving else ():
        tool.restore(text)
    return found


def modes_of(tool: Tool) -> frozenset[str]:
    """Name the modes that have chains in an engine. Raise OSError if it cannot be read."""
    return frozenset(census(owners(tool.family), _chains(tool)))


def own_chains(mode: str, chains: Iterable[str]) -> frozenset[str]:
    """Choose the chains, of whichever table, that have names of a mode's. Pure."""
    owner = driver_of(spec_of(mode)).owner(Family.IPV4)
    return frozenset(chain for chain in chains if owner and any(owner.owns(table, chain) for table in TABLES))


def disarm(tool: RuleTool) -> None:
    """Remove from the filter table what drops whatever is not translated in the way of the mode that wrote it."""
    leaving: list[RuleOwner] = [owner for owner in owners(tool.family).values() if owner.refuses]
    for text in removals({"filter": read_table(tool.save("filter"))}, leaving):
        tool.restore(text)


def _chains(tool: Tool) -> Mapping[str, Collection[str]]:
    """Name the chains of all tables of an engine."""
    return tool.chains_by_table(TABLES)


def read_engine(tool: RuleTool) -> Tables:
    """Read all tables of an engine that a mode may have chains in. Raise CommitError if it cannot be read."""
    return {table: read_table(tool.save(table)) for table in TABLES}
