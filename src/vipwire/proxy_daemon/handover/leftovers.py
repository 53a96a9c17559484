"""Finds and removes what modes other than the running one, and kube-proxy in any mode, left on this node.

Only what has a name of ours or of kube-proxy's is looked at. Rules of iptables are removed here, for several modes
share them: which mode has which chains, its `RuleOwner` knows, and what goes when two have the same names,
`modes.xtables.ownership`. What else there is, each mode knows itself (`modes.remains`):

    before the rules   what goes first, such as tables of nftables; and what is in use is found out
    rules              of all modes at once, in both engines (nft and legacy)
    after the rules    what could only go without them: virtual servers and their device, a relay

A second look may be needed: a relay still takes connections that came before its rules went, and IPVS forgets the
connections of a virtual server that goes, so that those which are in use stay until they are not.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import NamedTuple, Protocol, runtime_checkable

from vipwire.model.net import Family
from vipwire.model.value import Value
from vipwire.modes.registry import driver_of, every_spec, spec_of
from vipwire.modes.spec import ModeSpec, Remains, RemovalResult
from vipwire.modes.xtables.ownership import TABLES, Owners, RuleOwner, Tables, census, removals
from vipwire.modes.xtables.save import ChainName, read_table
from vipwire.modes.xtables.tool import IptablesTool, RuleTool, with_tables


def engines(family: Family) -> Iterator[IptablesTool]:
    """Yield the tools of a family that can have rules here."""
    return with_tables(family, "removing rules of other modes")


def owners(family: Family) -> Owners:
    """Return what knows the chains of each mode that writes into iptables."""
    found = ((spec.name, driver_of(spec).owner(family)) for spec in every_spec())
    return {name: owner for name, owner in found if owner is not None}


def remove_rules(
    tool: IptablesTool, running: str = "", *, held: Collection[ChainName] = frozenset()
) -> dict[str, int]:
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


def modes_of(tool: IptablesTool) -> frozenset[str]:
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


def _chains(tool: IptablesTool) -> Mapping[str, Collection[str]]:
    return tool.chains_by_table(TABLES)


def read_engine(tool: RuleTool) -> Tables:
    """Read all tables of an engine that a mode may have chains in. Raise CommitError if it cannot be read."""
    return {table: read_table(tool.save(table)) for table in TABLES}


@runtime_checkable
class RuleUser(Protocol):
    """A mode whose rules are in one of the engines of iptables."""

    @property
    def variant(self) -> str:
        """`nft` or `legacy`; "" if it writes no rules."""


class Removed(NamedTuple):
    """Something that was found and is no more, or waits: the name of the mode, and what it is in words."""

    mode: str
    family: Family
    what: str


class LeftoverRemovals(Value, frozen=True):
    """What one look has removed, and what waits for its connections to end."""

    removed: tuple[Removed, ...] = ()
    waiting: tuple[Removed, ...] = ()


class Leftovers:
    """Looks for what others have left. `backends` are those of the mode that runs."""

    def __init__(self, running: ModeSpec, backends: Mapping[Family, object]) -> None:
        self._running = running
        self._variants = {
            family: backend.variant if isinstance(backend, RuleUser) else "" for family, backend in backends.items()
        }
        self._remains: dict[tuple[str, Family], Remains] = {}
        self.writes_rules = any(
            not isinstance(backend, RuleUser) or bool(backend.variant) for backend in backends.values()
        )
        """Whether the running mode has rules at all: it may do without."""

    def sweep(self) -> LeftoverRemovals:
        """Remove what can go. Raise CommitError, OSError or UnsupportedError if the kernel does not let us."""
        removed: list[Removed] = []
        waiting: list[Removed] = []

        def note(mode: str, family: Family, result: RemovalResult) -> None:
            removed.extend(Removed(mode, family, what) for what in result.removed)
            waiting.extend(Removed(mode, family, what) for what in result.waiting)

        for family in self._variants:
            found = self._found(family)
            for mode, each in found.items():
                note(mode, family, each.before_rules())
            held = frozenset[ChainName]().union(*(each.held() for each in found.values()))
            removed += self._rules(family, held)
            for mode, each in found.items():
                note(mode, family, each.after_rules())
        return LeftoverRemovals(tuple(removed), tuple(waiting))

    def _found(self, family: Family) -> dict[str, Remains]:
        """Return what every mode may have left; the next look asks the same objects again."""
        for spec in every_spec():
            if (spec.name, family) not in self._remains:
                each = driver_of(spec).remains(family, self._running)
                if each is not None:
                    self._remains[spec.name, family] = each
        return {mode: each for (mode, where), each in self._remains.items() if where is family}

    def _rules(self, family: Family, held: frozenset[ChainName]) -> Iterator[Removed]:
        for tool in engines(family):
            running = self._running.name if self._variants[family] == tool.variant.value else ""
            for mode, chains in remove_rules(tool, running, held=held).items():
                yield Removed(mode, family, f"{tool.name}: {chains} chains")


def translating(running: ModeSpec, family: Family) -> frozenset[ModeSpec]:
    """Find the modes other than `running` that translate now. Raise CommitError or OSError if nobody can tell."""
    ruling = frozenset[str]().union(*map(modes_of, engines(family)))
    return frozenset(
        spec
        for spec in every_spec()
        if spec is not running and (spec.name in ruling or driver_of(spec).translates(family))
    )
