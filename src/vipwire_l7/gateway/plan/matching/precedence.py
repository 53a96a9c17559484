"""Orders the matches of all routes for one host by the precedence of the Gateway API, and counts their rules. Pure.

A request takes the first match that fits. Of routes that share a host, those with the more specific hostname come
first. Then Exact paths, regular expressions, and prefixes from the longest to the shortest. At one path, matches with
a method come first, then those with the most headers, then those with the most query parameters, then the oldest
route, its first rule. A match without conditions is one map entry. Where matches with conditions come first, the
entry leads to a choice of all that may follow at that path: first those of the path, then those of each shorter
prefix, up to one without a condition.

So each path of a host has a rule for each expression and for each condition of a shorter prefix. 400 expressions
beside 400 paths are 160,000 rules, for which HAProxy takes half a gigabyte. `plan.budget` limits the number.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from vipwire_l7.gateway.plan.kinds.objects import RouteObject
from vipwire_l7.gateway.plan.matching.matches import ALL, PathMatch, RequestMatch
from vipwire_l7.plan.expressions import find_literal_prefix
from vipwire_l7.plan.sites import CLOSED, NOWHERE, Aspect, Choice, Comparison, Match, Route, Step, make_choice


@dataclass(frozen=True, slots=True)
class Entry:
    """One match of a route, and its target. `order` is the position of the rule and match in the route."""

    route: RouteObject
    match: RequestMatch
    order: tuple[int, int]
    target: str
    breadth: tuple[bool, int] | tuple[()] = ()
    """Orders matches of wildcard hostnames after matches of the exact hostname."""

    @property
    def sorting(self) -> tuple[object, ...]:
        return (*self.match.rank, *self.route.age, self.route.kind.value, *self.order)

    def deny_match(self) -> "Entry":
        """Return an entry that denies all requests of this match, without its conditions and regular expression."""
        path = self.match.path
        if path.match is Match.EXPRESSION:
            path = PathMatch(Match.PREFIX, find_literal_prefix(path.path))
        return replace(self, match=replace(ALL, path=path), target=CLOSED)


def order_matches(site: str, entries: Sequence[Entry]) -> tuple[tuple[Route, ...], tuple[Choice, ...]]:
    if len(entries) == 1 and not is_tried(entries[0]):  # the common case, kept cheap
        (only,) = entries
        owner, wanted = only.route, only.match.path
        return (Route(site, wanted.match, wanted.path, only.target, owner.name, owner.kind.value),), ()
    by_breadth: dict[tuple[bool, int] | tuple[()], list[Entry]] = {}
    for each in entries:
        by_breadth.setdefault(each.breadth, []).append(each)
    by_host = [RankedMatches(found) for _, found in sorted(by_breadth.items())]
    routes, choices = [], dict[str, Choice]()
    for match, path in dict.fromkeys(key for ranked in by_host for key in ranked.keys):
        sequence = tuple(each for ranked in by_host for each in ranked.list_candidates(match, path))
        steps = tuple(_make_steps(sequence))
        if len(steps) == 1 and not steps[0].when:
            target = steps[0].target
        else:
            choice = make_choice(steps)
            choices[choice.name] = choice
            target = choice.name
        head = sequence[0]
        routes.append(Route(site, match, path, target, head.route.name, head.route.kind.value))
    return tuple(routes), tuple(choices.values())


class RankedMatches:
    """The matches of one host whose hostnames are equally specific."""

    def __init__(self, entries: Iterable[Entry]) -> None:
        self._by_path: dict[tuple[Match, str], list[Entry]] = {}
        for each in entries:
            self._by_path.setdefault((each.match.path.match, each.match.path.path), []).append(each)
        for found in self._by_path.values():
            found.sort(key=lambda each: each.sorting)
        self._expressions = tuple(
            each
            for (match, _), found in sorted(self._by_path.items(), key=lambda pair: -len(pair[0][1]))
            if match is Match.EXPRESSION
            for each in found
        )

    @property
    def keys(self) -> Iterator[tuple[Match, str]]:
        """Yield the paths that need a map entry, exact paths first."""
        for wanted in (Match.EXACT, Match.PREFIX):
            yield from (key for key in self._by_path if key[0] is wanted)
        if self._expressions:
            yield Match.PREFIX, ""

    def list_candidates(self, match: Match, path: str) -> Iterator[Entry]:
        """Yield the candidates for a request whose path the map found at this entry, the best first."""
        if match is Match.EXACT:
            yield from self._by_path.get((match, path), ())
        yield from self._expressions
        yield from self._find_shorter_prefixes(path)

    def _find_shorter_prefixes(self, path: str) -> Iterator[Entry]:
        """Yield the matches of a prefix and of all shorter prefixes, the longest first."""
        while True:
            yield from self._by_path.get((Match.PREFIX, path), ())
            if not path:
                return
            path = path.rpartition("/")[0]


def _make_steps(sequence: Iterable[Entry]) -> Iterator[Step]:
    for each in sequence:
        path = each.match.path
        conditions = each.match.conditions
        if path.match is Match.EXPRESSION:
            conditions = (Comparison(Aspect.PATH, f"^(?:{path.path})$", expression=True), *conditions)
        yield Step(each.target, conditions)
        if not conditions:
            return
    yield Step(NOWHERE)


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

    def estimate_more_rules(self, more: "HostSteps") -> int:
        """Estimate the rules that `more` would add, never too few."""
        found = more.expressions * len(self.keys) + sum(
            number * self.reaching[path] for path, number in more.conditional.items()
        )
        for _, path in more.keys - self.keys:
            found += self.expressions + more.expressions
            found += sum(
                self.conditional[each] + more.conditional[each] for each in _climb_path(path, self.ended, more.ended)
            )
        return found

    def add_matches(self, more: "HostSteps") -> None:
        self.ended |= more.ended
        self.conditional.update(more.conditional)
        self.expressions += more.expressions
        for _, path in more.keys - self.keys:
            self.reaching.update(_climb_path(path, self.ended))
        self.keys |= more.keys


def is_tried(entry: Entry) -> bool:
    return bool(entry.match.conditions) or entry.match.path.match is Match.EXPRESSION


def count_matches(entries: Collection[Entry]) -> HostSteps:
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
        made.keys.add((Match.PREFIX, ""))  # a request whose path no other entry matches tries the expressions
    return made


def _climb_path(path: str, *ended: Collection[str]) -> Iterator[str]:
    """Yield a path and the prefixes above it, up to one where all requests end."""
    while True:
        yield path
        if not path or any(path in each for each in ended):
            return
        path = path.rpartition("/")[0]
