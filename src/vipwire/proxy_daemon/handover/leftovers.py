"""Finds and removes objects that other modes, and kube-proxy in any mode, left on this node.

Looks only at names of vipwire and kube-proxy. This module removes iptables rules, because several modes share them: a
mode's `RuleOwner` knows its chains, `modes.xtables.ownership` decides about shared names. Each mode knows its other
objects (`modes.remains`):

    before the rules   objects that must go first, such as nftables tables; objects still in use are recorded
    rules              of all modes at once, in both engines (nft and legacy)
    after the rules    objects that need the rules gone: virtual servers, their device, a relay

A second look may be needed: a relay keeps connections that it accepted before its rules went, and IPVS drops the
connections of a deleted virtual server, so virtual servers in use stay until they are idle.
"""

from collections.abc import Collection, Iterator, Mapping
from typing import NamedTuple, Protocol, runtime_checkable

from vipwire.model.net import Family
from vipwire.model.value import Value
from vipwire.modes.registry import list_specs, load_driver
from vipwire.modes.spec import ModeSpec, Remains, RemovalResult
from vipwire.modes.xtables.ownership import (
    TABLES,
    Owners,
    RuleOwner,
    Tables,
    count_chains_of_one_mode,
    write_removals,
)
from vipwire.modes.xtables.save import ChainName, read_table
from vipwire.modes.xtables.tool import (
    PROGRAM,
    IptablesTool,
    RuleTool,
    Variant,
    find_tools_with_tables,
    has_nft_engine,
    list_engine_chains,
)


def list_engines(family: Family) -> Iterator[IptablesTool]:
    """Yield the iptables tools of a family that can have rules on this machine."""
    return find_tools_with_tables(family, "removing rules of other modes")


def list_engines_without_tool(family: Family) -> Iterator[tuple[str, str]]:
    """Yield chains of modes in an engine whose program is not installed: mode and description. Raise OSError."""
    there = {tool.variant for tool in list_engines(family)}
    for variant in Variant:
        if variant in there or (variant is Variant.NFT and not has_nft_engine()):
            continue
        for mode in count_chains_of_one_mode(list_owners(family), list_engine_chains(family, variant, TABLES)):
            program = f"{PROGRAM[family]}-{variant.value}"
            yield mode, f"chains of {program} stay: {program} is not installed"


def list_owners(family: Family) -> Owners:
    """Return the chain owners of each mode that writes iptables rules."""
    found = ((spec.name, load_driver(spec).owner(family)) for spec in list_specs())
    return {name: owner for name, owner in found if owner is not None}


def remove_rules(
    tool: IptablesTool, running: str = "", *, held: Collection[ChainName] = frozenset()
) -> dict[str, int]:
    """Remove the chains that modes other than `running` left in one engine; return how many chains of each mode went.

    `running` is "" if the running mode writes no rules into this engine. The chains `held` stay. Raise CommitError if
    the tables cannot be read or written.
    """
    known = list_owners(tool.family)
    if not count_chains_of_one_mode(known, _group_chains_by_table(tool), held).keys() - {running}:
        return {}  # the usual case after a start: saves reading up to 100,000 rules
    tables = read_rule_tables(tool)
    found = count_chains_of_one_mode(known, tables, held)
    found.pop(running, None)
    leaving = [known[name] for name in found]
    for text in write_removals(tables, leaving, known.get(running), held) if leaving else ():
        tool.restore(text)
    return found


def modes_of(tool: IptablesTool) -> frozenset[str]:
    """Return the modes that have chains in an engine. Raise OSError if the engine cannot be read."""
    return frozenset(count_chains_of_one_mode(list_owners(tool.family), _group_chains_by_table(tool)))


def disarm_rules(tool: RuleTool) -> None:
    """Remove filter rules that drop packets which the mode that wrote them has not translated."""
    leaving: list[RuleOwner] = [owner for owner in list_owners(tool.family).values() if owner.refuses]
    for text in write_removals({"filter": read_table(tool.save("filter"))}, leaving):
        tool.restore(text)


def _group_chains_by_table(tool: IptablesTool) -> Mapping[str, Collection[str]]:
    return tool.list_chains_by_table(TABLES)


def read_rule_tables(tool: RuleTool) -> Tables:
    """Read an engine's tables in which modes may have chains. Raise CommitError if it cannot be read."""
    return {table: read_table(tool.save(table)) for table in TABLES}


@runtime_checkable
class RuleUser(Protocol):
    """A mode that writes rules into one of the iptables engines."""

    @property
    def variant(self) -> str:
        """`nft` or `legacy`; "" if the mode writes no rules."""


class Removed(NamedTuple):
    """A removed or waiting leftover: its mode and a description."""

    mode: str
    family: Family
    what: str


class LeftoverRemovals(Value, frozen=True):
    """The removals of one look, the leftovers that wait for their connections to end, and those that cannot go."""

    removed: tuple[Removed, ...] = ()
    waiting: tuple[Removed, ...] = ()
    stuck: tuple[Removed, ...] = ()


class Leftovers:
    """Looks for leftovers of other modes. `backends` are those of the running mode."""

    def __init__(self, running: ModeSpec, backends: Mapping[Family, object]) -> None:
        self._running = running
        self._variants = {
            family: backend.variant if isinstance(backend, RuleUser) else "" for family, backend in backends.items()
        }
        self._remains: dict[tuple[str, Family], Remains] = {}
        self.writes_rules = any(
            not isinstance(backend, RuleUser) or bool(backend.variant) for backend in backends.values()
        )
        """False if the running mode works without rules."""

    def remove_leftovers(self) -> LeftoverRemovals:
        """Remove idle leftovers. Raise CommitError, OSError or UnsupportedError if the kernel refuses."""
        removed: list[Removed] = []
        waiting: list[Removed] = []
        stuck: list[Removed] = []

        def note(mode: str, family: Family, result: RemovalResult) -> None:
            removed.extend(Removed(mode, family, what) for what in result.removed)
            waiting.extend(Removed(mode, family, what) for what in result.waiting)

        for family in self._variants:
            found = self._find_handlers(family)
            for mode, each in found.items():
                note(mode, family, each.remove_before_rules())
            held = frozenset[ChainName]().union(*(each.list_held_chains() for each in found.values()))
            removed += self._remove_rules(family, held)
            stuck += (Removed(mode, family, what) for mode, what in list_engines_without_tool(family))
            for mode, each in found.items():
                note(mode, family, each.remove_after_rules())
        return LeftoverRemovals(tuple(removed), tuple(waiting), tuple(stuck))

    def _find_handlers(self, family: Family) -> dict[str, Remains]:
        """Return the leftovers' handlers by mode; a second look uses the same objects."""
        for spec in list_specs():
            if (spec.name, family) not in self._remains:
                each = load_driver(spec).remains(family, self._running)
                if each is not None:
                    self._remains[spec.name, family] = each
        return {mode: each for (mode, where), each in self._remains.items() if where is family}

    def _remove_rules(self, family: Family, held: frozenset[ChainName]) -> Iterator[Removed]:
        for tool in list_engines(family):
            running = self._running.name if self._variants[family] == tool.variant.value else ""
            for mode, chains in remove_rules(tool, running, held=held).items():
                yield Removed(mode, family, f"{tool.name}: {chains} chains")


def find_translating(running: ModeSpec, family: Family) -> frozenset[ModeSpec]:
    """Find the other modes that translate now. Raise CommitError or OSError if the kernel cannot be read."""
    ruling = frozenset[str]().union(*map(modes_of, list_engines(family)))
    return frozenset(
        spec
        for spec in list_specs()
        if spec is not running and (spec.name in ruling or load_driver(spec).translates(family))
    )
