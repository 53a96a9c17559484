"""Puts the matches of all routes for one site into the order of the API, as routes and choices of the plan. Pure.

A request takes the first that fits: Exact paths, regular expressions, prefixes from the longest to the shortest; at
one path those with a method, then those with the most headers, then query parameters; then the oldest route, its
first rule. What does not depend on conditions is one entry of a map. Where conditions come first, the entry leads to
a choice of all that may follow at that path: first those of the path, then those of each shorter prefix, up to one
without a condition.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vipwire.gateway.plan.matches import RequestMatch
from vipwire.gateway.plan.objects import Item
from vipwire.ingress.plan.sites import Aspect, Choice, Compared, Match, Route, Step, choice_of

NOWHERE = "nowhere"


@dataclass(frozen=True, slots=True)
class Entry:
    """One match of a route, and where it leads. `order` tells the rules and matches of one route apart."""

    route: Item
    match: RequestMatch
    order: tuple[int, int]
    target: str

    @property
    def sorting(self) -> tuple[Any, ...]:
        """Sorts the entries of one path."""
        return (*self.match.rank, *self.route.age, self.route.kind.value, *self.order)


def routes_of(site: str, entries: Iterable[Entry]) -> tuple[tuple[Route, ...], tuple[Choice, ...]]:
    """Order the entries of one site."""
    by_path: dict[tuple[Match, str], list[Entry]] = {}
    for each in entries:
        by_path.setdefault((each.match.path.match, each.match.path.path), []).append(each)
    for found in by_path.values():
        found.sort(key=lambda each: each.sorting)
    expressions = [
        each
        for (match, _), found in sorted(by_path.items(), key=lambda pair: -len(pair[0][1]))
        if match is Match.EXPRESSION
        for each in found
    ]
    prefixes = {path: found for (match, path), found in by_path.items() if match is Match.PREFIX}
    if expressions:
        prefixes.setdefault("", [])
    routes, choices = [], dict[str, Choice]()
    for (match, path), own in (*_exact(by_path), *_prefixes(prefixes)):
        first = own if match is Match.EXACT else ()
        sequence = (*first, *expressions, *_below(path, prefixes))
        steps = tuple(_steps(sequence))
        if len(steps) == 1 and not steps[0].when:
            target = steps[0].target
        else:
            choice = choice_of(steps)
            choices[choice.name] = choice
            target = choice.name
        head = (own or expressions)[0]
        routes.append(Route(site, match, path, target, head.route.name, head.route.kind.value))
    return tuple(routes), tuple(choices.values())


_Found = Iterator[tuple[tuple[Match, str], Sequence[Entry]]]


def _exact(by_path: Mapping[tuple[Match, str], Sequence[Entry]]) -> _Found:
    return ((key, found) for key, found in by_path.items() if key[0] is Match.EXACT)


def _prefixes(prefixes: Mapping[str, Sequence[Entry]]) -> _Found:
    return (((Match.PREFIX, path), found) for path, found in prefixes.items())


def _below(path: str, prefixes: Mapping[str, Sequence[Entry]]) -> Iterator[Entry]:
    """Yield the entries of a prefix and of all shorter ones, the longest first."""
    while True:
        yield from prefixes.get(path, ())
        if not path:
            return
        path = path.rpartition("/")[0]


def _steps(sequence: Iterable[Entry]) -> Iterator[Step]:
    for each in sequence:
        path = each.match.path
        conditions = each.match.conditions
        if path.match is Match.EXPRESSION:
            conditions = (Compared(Aspect.PATH, f"^(?:{path.path})$", expression=True), *conditions)
        yield Step(each.target, conditions)
        if not conditions:
            return
    yield Step(NOWHERE)
