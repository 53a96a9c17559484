"""The rules of this mode as one packet meets them, for `modes.xtables.traversal`. Pure."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from vipwire.model.net import Address
from vipwire.modes.userspace.names import PORT, Chain, Key, Rule, Value
from vipwire.modes.xtables.match import Header, Surroundings
from vipwire.modes.xtables.save import BUILT_IN
from vipwire.modes.xtables.traversal import Listed
from vipwire.reconcile.explainer import ObjectState

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
        return self._fixed(key) if self._is_fixed(key) else self._listed(key)

    def _is_fixed(self, key: Chain) -> bool:
        return any(isinstance(objects.get(key), tuple) for objects in (self.observed, self.wanted))

    def _fixed(self, key: Chain) -> Iterator[Listed]:
        """List a chain whose rules never change."""
        seen, planned = self.observed.get(key), self.wanted.get(key)
        there, wanted = (each if isinstance(each, tuple) else () for each in (seen, planned))
        if key not in self.observed:
            yield Listed("", ObjectState.MISSING)
        for words in there:
            yield Listed(words, ObjectState.PLANNED if words in wanted else _strange(key, self.wanted))
        yield from (Listed(words, ObjectState.MISSING) for words in wanted if words not in there)

    def _listed(self, key: Chain) -> Iterator[Listed]:
        if key in self.wanted and key not in self.observed:
            yield Listed("", ObjectState.MISSING)
        for rule in sorted(self._members.get(key, ()), key=lambda rule: not rule.first):
            yield self._rule(rule, self._state(rule))
        missing = (rule for rule in self._planned.get(key, ()) if rule not in self.observed)
        yield from (self._rule(rule, ObjectState.MISSING) for rule in missing)

    def _state(self, rule: Rule) -> ObjectState:
        if rule not in self.wanted:
            return ObjectState.FOREIGN
        return ObjectState.PLANNED if self.wanted[rule] == self.observed.get(rule) else ObjectState.DIFFERENT

    def _rule(self, rule: Rule, state: ObjectState) -> Listed:
        """Fill in the port of the front, where the relay has told it."""
        if not rule.front:
            return Listed(rule.words, state)
        port = self.port_of(rule.front)
        words = rule.words.replace(PORT, str(port) if port else _NO_PORT)
        shown = words if port else rule.words.replace(PORT, f"<port of {rule.front}>")
        return Listed(words, state, shown, rule.front)


def _strange(key: Chain, wanted: Mapping[Key, Value]) -> ObjectState:
    return ObjectState.DIFFERENT if key in wanted else ObjectState.FOREIGN
