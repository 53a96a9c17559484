"""Keeps the entries that routes bring to hosts, as far as the budgets of their namespaces allow. Pure.

The oldest routes use a budget first. As long as all routes fit, their order does not matter, and a changed route
costs its own hosts only. If they do not fit, all routes of the hosts concerned are counted again.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final, TypeAlias

from vipwire_l7.gateway.plan.matching.precedence import Entry, HostSteps, count_matches, order_matches
from vipwire_l7.gateway.plan.routes import FrontendKey, HostEntries, HostKey, RouteResult, rank_route
from vipwire_l7.plan.budget import MOST_STEPS, Budget
from vipwire_l7.plan.plan import HostPlan
from vipwire_l7.plan.sites import Choice
from vipwire_l7.watch.compact import SetsByKey
from vipwire_l7.watch.snapshot import ObjectRef

Refused: TypeAlias = tuple[str, tuple[HostEntries, ...]]
"""The reason why a route exceeds the budget, and the entries that deny requests in its place."""

_MANY: Final = 8
"""The number of a route's entries up to which a search is fast enough; a mapping for each route takes memory."""


class Hosts:
    """The entries of all hosts of all frontends."""

    def __init__(self, results: Mapping[ObjectRef, RouteResult]) -> None:
        """`results` holds the results of all routes, and is updated before `replace_route`."""
        self._results = results
        self._hosts = SetsByKey[HostKey, ObjectRef]()
        """The routes of each host."""
        self._by_host: dict[ObjectRef, dict[HostKey, list[HostEntries]]] = {}
        """The entries of routes with many."""
        self.by_way = SetsByKey[FrontendKey, str]()
        self._tried: dict[HostKey, Counter[str]] = {}
        """The number of rules by namespace, of hosts with any rule that HAProxy tries in turn."""
        self._shares: Counter[tuple[FrontendKey, str, str, int]] = Counter()
        """The routes that lead to a weighted choice, by frontend, name, namespace and rules."""
        self._sum = Counter[str]()
        """The upper bound of a namespace's rules."""
        self._crowded: set[HostKey] = set()
        """The hosts where a namespace asks for too many PCRE steps."""
        self._refused: dict[ObjectRef, Refused] = {}

    def replace_route(self, ref: ObjectRef, before: RouteResult | None, now: RouteResult | None) -> set[HostKey]:
        """Replace a route's result; return the hosts concerned."""
        old, new = ({each.key for each in result.brought} if result else set() for result in (before, now))
        for key in old - new:
            self._hosts.discard(key, ref)
            if not self._hosts.get(key):
                self.by_way.discard(*key)
        for key in new:
            self._hosts.add(key, ref)
            self.by_way.add(*key)
        self._by_host.pop(ref, None)
        if now is not None and len(now.brought) > _MANY:
            self._by_host[ref] = _group_by_host(now.brought)
        for result, number in ((before, -1), (now, 1)):
            for share in _list_shares(result):
                self._count_share(share, number)
        return old | new

    def _count_share(self, share: tuple[FrontendKey, str, str, int], number: int) -> None:
        had = self._shares[share]
        self._shares[share] = has = had + number
        self._sum[share[2]] += share[3] * (bool(has) - bool(had))
        if not has:
            del self._shares[share]

    def judge_hosts(self, hosts: Iterable[HostKey]) -> Mapping[ObjectRef, Iterable[HostKey]]:
        """Decide again which routes fit at some hosts; return the routes whose answer changed, with these hosts."""
        for key in hosts:
            tried, crowded = self._count_rules(key)
            self._sum.subtract(self._tried.pop(key, Counter()))
            if tried:
                self._tried[key] = tried
                self._sum.update(tried)
            (self._crowded.add if crowded else self._crowded.discard)(key)
        fits = not self._crowded and Budget.has_room(self._sum)
        before, self._refused = self._refused, {} if fits else self._spend_budgets()
        both = (before.keys() | self._refused.keys()) & self._results.keys()
        changed = [ref for ref in both if before.get(ref) != self._refused.get(ref)]
        for ref in both:
            self._results[ref].excess = self._refused[ref][0] if ref in self._refused else ""
        return {ref: {each.key for each in self._results[ref].brought} for ref in changed}

    def _count_rules(self, key: HostKey) -> tuple[Counter[str], bool]:
        """Count the rules of a host by namespace; report whether one namespace asks for too many steps."""
        found = {ref: self._list_entries(ref, key) for ref in self._hosts.get(key)}
        if not any(each.is_tried for own in found.values() for each in own):
            return Counter(), False
        host, tried, steps = HostSteps(), Counter[str](), Counter[str]()
        for ref in self._sort_routes(found):
            own, namespace = found[ref], ref[1].namespace
            more = [count_matches(each.entries) for each in own]
            tried[namespace] += sum(map(host.estimate_more_rules, more))
            steps[namespace] += sum(each.estimate_steps() for each in own)
            for each in more:
                host.add_matches(each)
        return tried, any(number > MOST_STEPS for number in steps.values())

    def _spend_budgets(self) -> dict[ObjectRef, Refused]:
        """Spend the budgets, the oldest route first. A guarded path whose route does not fit is denied."""
        budget, hosts = Budget(), dict[HostKey, HostSteps]()
        shares, refused = set[tuple[FrontendKey, str]](), dict[ObjectRef, Refused]()
        asking = {ref for key in self._tried for ref in self._hosts.get(key)}
        asking |= {ref for ref, each in self._results.items() if each.shares}

        def get_or_add_steps(brought: HostEntries) -> HostSteps:
            return hosts.setdefault(brought.key, HostSteps())

        def cost(found: Iterable[HostEntries]) -> int:
            return sum(get_or_add_steps(each).estimate_more_rules(count_matches(each.entries)) for each in found)

        for ref in self._sort_routes(asking):
            result = self._results[ref]
            found = result.brought
            fresh = {
                (way, name): number for way, name, _, number in _list_shares(result) if (way, name) not in shares
            }
            steps = Counter[str]()
            for each in found:
                steps[each.site] += each.estimate_steps()
            namespace = ref[1].namespace
            if text := budget.spend(namespace, cost(found) + sum(fresh.values()), steps):
                found, fresh = tuple(each.deny_guarded(result.guarded) for each in found), {}
                if budget.spend(namespace, cost(found), {}):
                    found = tuple(each.deny_host() for each in found if each.entries)
                refused[ref] = text, found
            shares |= fresh.keys()
            for each in found:
                get_or_add_steps(each).add_matches(count_matches(each.entries))
        return refused

    def _sort_routes(self, refs: Iterable[ObjectRef]) -> list[ObjectRef]:
        return sorted(refs, key=lambda ref: rank_route(self._results[ref].route))

    def _list_entries(self, ref: ObjectRef, key: HostKey) -> list[HostEntries]:
        if ref in self._by_host:
            return self._by_host[ref].get(key, [])
        return [each for each in self._results[ref].brought if each.key == key]

    def plan_host(self, key: HostKey, site: str) -> HostPlan | None:
        """Merge the entries of a host's routes; None if there are none."""
        entries: list[Entry] = []
        shares: dict[str, Choice] = {}
        for ref in self._sort_routes(self._hosts.get(key)):
            refused = self._refused.get(ref)
            found = _group_by_host(refused[1]).get(key, []) if refused else self._list_entries(ref, key)
            entries += (entry for each in found for entry in each.entries)
            shares |= self._results[ref].shares
        if not entries:
            return None
        routes, choices = order_matches(site, entries)
        led = {entry.target for entry in entries} | {target for choice in choices for target in choice.targets}
        used = sorted(shares.keys() & led)
        return HostPlan(routes, choices, tuple(shares[name] for name in used))


def _group_by_host(brought: Iterable[HostEntries]) -> dict[HostKey, list[HostEntries]]:
    found: dict[HostKey, list[HostEntries]] = {}
    for each in brought:
        found.setdefault(each.key, []).append(each)
    return found


def _list_shares(result: RouteResult | None) -> set[tuple[FrontendKey, str, str, int]]:
    if result is None or not result.shares:
        return set()
    return {
        (each.key[0], entry.target, result.route.name.namespace, len(result.shares[entry.target].steps))
        for each in result.brought
        for entry in each.entries
        if entry.target in result.shares
    }
