"""The rules of this mode as one packet meets them, for `modes.xtables.traversal`. Pure."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from vipwire.model.net import Address
from vipwire.modes.userspace.names import PORT, Chain, Key, Rule, Value
from vipwire.modes.xtables.match import Header, Listed, Surroundings, compare_rules
from vipwire.modes.xtables.save import BUILT_IN
from vipwire.reconcile.steps import ObjectState, state_of

PortOf = Callable[[str], int]
"""Tells at which port a front is; 0 if that is not known."""
_NO_PORT: Final = "0"


@dataclass
class FrontRules(Surroundings):
    """The rules that were observed, beside those that should be; `own` are this node's addresses."""

    observed: Mapping[Key, Value]
    wanted: Mapping[Key, Value]
    own: frozenset[Address]
    port_of: PortOf
    _members: dict[Chain, list[Rule]] = field(default_factory=dict)
    _planned: dict[Chain, list[Rule]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for objects, found in ((self.observed, self._members), (self.wanted, self._planned)):
            for key in objects:
                if isinstance(key, Rule):
                    found.setdefault(Chain(key.table, key.chain), []).append(key)

    def owns(self, address: Address) -> bool:
        """Report whether an address is this node's."""
        return address in self.own

    def rules(self, table: str, chain: str, header: Header) -> Iterable[Listed] | None:
        """List a chain, the rules that are first before the others; None if it is neither there nor planned."""
        del header
        key = Chain(table, chain)
        if chain not in BUILT_IN and key not in self.observed and key not in self.wanted:
            return None
        seen, planned = self.observed.get(key), self.wanted.get(key)
        if isinstance(seen, tuple) or isinstance(planned, tuple):  # a chain whose rules never change
            there, meant = (each if isinstance(each, tuple) else () for each in (seen, planned))
            strange = ObjectState.DIFFERENT if key in self.wanted else ObjectState.FOREIGN
            return compare_rules(there if key in self.observed else None, meant, strange)
        return self._listed(key)

    def _listed(self, key: Chain) -> Iterator[Listed]:
        if key in self.wanted and key not in self.observed:
            yield Listed("", ObjectState.MISSING)
        missing = (rule for rule in self._planned.get(key, ()) if rule not in self.observed)
        for rule in (*sorted(self._members.get(key, ()), key=lambda rule: not rule.first), *missing):
            yield self._rule(rule, state_of(rule, self.observed, self.wanted))

    def _rule(self, rule: Rule, state: ObjectState) -> Listed:
        """Fill in the port of the front, where the relay has told it."""
        if not rule.front:
            return Listed(rule.words, state)
        port = self.port_of(rule.front)
        words = rule.words.replace(PORT, str(port) if port else _NO_PORT)
        shown = words if port else rule.words.replace(PORT, f"<port of {rule.front}>")
        return Listed(words, state, shown, rule.front)
