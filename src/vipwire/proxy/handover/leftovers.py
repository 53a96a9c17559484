"""Finds and removes what modes other than the running one, and kube-proxy in any mode, left on this node.

Only what has a name of ours or of kube-proxy's is looked at. Rules of iptables are removed here, for several modes
share them (`proxy.handover.rules`); what else there is, each mode knows itself (`modes.remains`):

    before the rules   what goes first, such as tables of nftables; and what is in use is found out
    rules              of all modes at once, in both engines (nft and legacy)
    after the rules    what could only go without them: virtual servers and their device, a relay

A second look may be needed: a relay still takes connections that came before its rules went, and IPVS forgets the
connections of a virtual server that goes, so that those which are in use stay until they are not.
"""

from collections.abc import Iterator, Mapping
from typing import NamedTuple, Protocol, runtime_checkable

from vipwire.model.net import Family
from vipwire.model.value import Value
from vipwire.modes import remains
from vipwire.modes.registry import driver_of, every_spec
from vipwire.modes.spec import ModeSpec
from vipwire.modes.xtables.ownership import Place
from vipwire.proxy.handover.rules import engines, modes_of, remove_rules


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
        self._remains: dict[tuple[str, Family], remains.Remains] = {}
        self.writes_rules = any(
            not isinstance(backend, RuleUser) or bool(backend.variant) for backend in backends.values()
        )
        """Whether the running mode has rules at all: it may do without."""

    def sweep(self) -> LeftoverRemovals:
        """Remove what can go. Raise CommitError, OSError or UnsupportedError if the kernel does not let us."""
        removed: list[Removed] = []
        waiting: list[Removed] = []

        def note(mode: str, family: Family, result: remains.RemovalResult) -> None:
            removed.extend(Removed(mode, family, what) for what in result.removed)
            waiting.extend(Removed(mode, family, what) for what in result.waiting)

        for family in self._variants:
            found = self._found(family)
            for mode, each in found.items():
                note(mode, family, each.before_rules())
            held = frozenset[Place]().union(*(each.held() for each in found.values()))
            removed += self._rules(family, held)
            for mode, each in found.items():
                note(mode, family, each.after_rules())
        return LeftoverRemovals(tuple(removed), tuple(waiting))

    def _found(self, family: Family) -> dict[str, remains.Remains]:
        """Return what every mode may have left; the next look asks the same objects again."""
        for spec in every_spec():
            if (spec.name, family) not in self._remains:
                each = driver_of(spec).remains(family, self._running)
                if each is not None:
                    self._remains[spec.name, family] = each
        return {mode: each for (mode, where), each in self._remains.items() if where is family}

    def _rules(self, family: Family, held: frozenset[Place]) -> Iterator[Removed]:
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
