"""Estimates the number of HAProxy rules that routes need. Pure.

A match of host and path alone is a map entry. Conditions and regular expressions are rules: each path of a host has
one for each expression and for each condition of a shorter prefix (`ladders`). 400 expressions beside 400 paths are
160,000 rules, for which HAProxy takes half a gigabyte. `ingress.plan.budget` limits the number.
"""

from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field

from vipwire_l7.gateway.plan.matching.ladders import Entry
from vipwire_l7.plan.sites import Match

_Key = tuple[Match, str]


@dataclass(slots=True)
class HostSteps:
    """The matches of one host that need rules, so far."""

    keys: set[_Key] = field(default_factory=set)
    ended: set[str] = field(default_factory=set)
    """The prefixes that have a match without a condition. No request goes on to shorter prefixes."""
    conditional: Counter[str] = field(default_factory=Counter)
    """The number of matches with conditions, by prefix."""
    reaching: Counter[str] = field(default_factory=Counter)
    """The number of keys whose rules go on to a prefix, by prefix."""
    expressions: int = 0

    def cost(self, more: "HostSteps") -> int:
        """Estimate the rules that `more` would add, never too few."""
        found = more.expressions * len(self.keys) + sum(
            number * self.reaching[path] for path, number in more.conditional.items()
        )
        for _, path in more.keys - self.keys:
            found += self.expressions + more.expressions
            found += sum(
                self.conditional[each] + more.conditional[each] for each in _up(path, self.ended, more.ended)
            )
        return found

    def add(self, more: "HostSteps") -> None:
        self.ended |= more.ended
        self.conditional.update(more.conditional)
        self.expressions += more.expressions
        for _, path in more.keys - self.keys:
            self.reaching.update(_up(path, self.ended))
        self.keys |= more.keys


def is_tried(entry: Entry) -> bool:
    """Report whether a match needs a rule."""
    return bool(entry.match.conditions) or entry.match.path.match is Match.EXPRESSION


def rules_of(entries: Collection[Entry]) -> HostSteps:
    """Count the matches of a route. An Exact path whose first match has no condition needs no rule."""
    made = HostSteps()
    settled = set[str]()
    for each in entries:
        match, path, conditions = each.match.path.match, each.match.path.path, each.match.conditions
        if match is Match.EXPRESSION:
            made.expressions += 1
        elif conditions:
            made.conditional[path] += 1
        elif match is Match.PREFIX:
            made.ended.add(path)
        else:
            settled.add(path)
    made.keys = {
        (each.match.path.match, each.match.path.path)
        for each in entries
        if each.match.path.match is Match.PREFIX
        or (each.match.path.match is Match.EXACT and each.match.path.path not in settled)
    }
    if made.expressions:
        made.keys.add((Match.PREFIX, ""))  # where no other path matches, a ladder of its own
    return made


def _up(path: str, *ended: Collection[str]) -> Iterator[str]:
    """Yield a path and the prefixes above it, up to one where all requests end."""
    while True:
        yield path
        if not path or any(path in each for each in ended):
            return
        path = path.rpartition("/")[0]
