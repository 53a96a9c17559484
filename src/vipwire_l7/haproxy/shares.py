"""Writes weighted choices as map entries, so that a command changes the weights. Pure.

A request draws a number below the sum of the weights, and the entry `choice:number` leads to a pool. The choice's
name ends with that sum. If the sum exceeds `_MOST`, the choice is written as rules (`choices`).
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from vipwire_l7.haproxy.words import line
from vipwire_l7.plan.sites import Chance, Choice

SHARES: Final = "shares"
_MOST: Final = 256
_IS_SHARED: Final = "{{ var(txn.target) -m beg choice: }}"


def shares_of(choice: Choice, choices: frozenset[str]) -> dict[str, str]:
    """Return the map entries of a choice; none if it needs rules. `choices` are the names of all choices."""
    if not 0 < choice.whole <= _MOST or not choices.isdisjoint(choice.targets):
        return {}
    drawn: list[str] = []
    left = choice.whole
    for step in choice.steps:
        match step.when:
            case ():
                part = left
            case (Chance(part, of),) if of == left:
                pass
            case _:
                return {}
        drawn += [step.target] * part
        left -= part
    return {f"{choice.name}:{number}": target for number, target in enumerate(drawn)}


def share_lines(file: str, rule: str = "http-request") -> Iterator[str]:
    """Write the rules that draw, after those of the other choices. `rule` is the keyword that each begins with."""
    yield line(f"{rule} set-var(txn.whole) var(txn.target),field(3,:) if {_IS_SHARED}")
    yield line(f"{rule} set-var(txn.draw) rand,mod(txn.whole) if {_IS_SHARED}")
    yield line(f"{rule} set-var(txn.target) var(txn.target),concat(:,txn.draw),map_str({file}) if {_IS_SHARED}")


def shared_choices(choices: Iterable[Choice]) -> Mapping[str, dict[str, str]]:
    """Return the entries of all choices that fit into a map, by name."""
    every = tuple(choices)
    names = frozenset(each.name for each in every)
    return {each.name: entries for each in every if (entries := shares_of(each, names))}
