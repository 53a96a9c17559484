"""Keeps HAProxy's desired state: the plan, and the slots of its pools.

A change costs in proportion to its size: the planner plans only the change, `update` returns the hosts, pools and
certificates that changed, and `find_change` compares only those. Parts that HAProxy refuses are left out.
"""

import contextlib
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from vipwire.model.names import ObjectName
from vipwire.model.problem import Problem
from vipwire_l7.haproxy.backends import get_current_weight
from vipwire_l7.haproxy.configuration import Configuration, PoolError, build_configuration, write_route_expression
from vipwire_l7.haproxy.frontends import find_bounded_sites
from vipwire_l7.haproxy.layout import Layout
from vipwire_l7.haproxy.refused import find_owners, list_parts, remove_parts
from vipwire_l7.haproxy.slots import Slots, fill_slots
from vipwire_l7.haproxy.state import WHOLE, Change, Delta, compare_configurations
from vipwire_l7.plan.destinations import API_SERVER, Destinations
from vipwire_l7.plan.endpoint_limit import EndpointLimit
from vipwire_l7.plan.endpoints import choose_servers
from vipwire_l7.plan.limits import MOST, Limited, Most
from vipwire_l7.plan.plan import HostPlan, Planner, build_site_plan
from vipwire_l7.plan.sites import ANSWERS, EVERY_HOST, DatagramFrontend, Match, ObjectField, Pool, Server, SitePlan
from vipwire_l7.watch.compact import SetsByKey
from vipwire_l7.watch.objects import IngressKind
from vipwire_l7.watch.snapshot import ChangeExtent, ObjectRef, Snapshot


@dataclass(frozen=True, slots=True)
class ProblemChange:
    """A change of the problems, by their origin, and of the Ingresses: whether each is this controller's."""

    problems: Mapping[Hashable, tuple[Problem, ...]] = field(default_factory=dict)
    admitted: Mapping[ObjectName, bool] = field(default_factory=dict)


class Desired:
    """The desired configuration. `update` follows the snapshot, `find_change` compares with HAProxy."""

    def __init__(
        self,
        snapshot: Snapshot,
        planner: Planner,
        layout: Layout,
        default_pem: str,
        destinations: Destinations | None = None,
        most: Most = MOST,
    ) -> None:
        self.destinations = destinations or Destinations()
        self._most_endpoints = most[Limited.ENDPOINTS]
        self._endpoint_limit = EndpointLimit(self._most_endpoints)
        self._snapshot, self._planner, self._layout, self._default_pem = snapshot, planner, layout, default_pem
        self._site_plan: SitePlan | None = SitePlan()
        self._hosts: dict[str, HostPlan] = {}
        self._pools: dict[str, Pool] = {}
        """Both as of the last update."""
        self._shares = Counter[str]()
        """The number of hosts that use each split."""
        self.taken: set[Callable[[], None]] = set()
        """Callbacks after each change that HAProxy has or will soon have."""
        self._slots: dict[str, Slots] = {}
        self._by_service = SetsByKey[ObjectName, str]()
        self._closed: frozenset[str] = frozenset()
        """The frontends that HAProxy cannot bind."""
        self._now = 0.0
        self._refused: dict[str, tuple[Problem, ...]] = {}
        """The reasons by part, as `haproxy.refused` names parts."""
        self._crowded, self._room = set[str](), 0
        """The pools whose servers exceed HAProxy's descriptors, and the number of servers that do not."""
        self._exceeded: Mapping[str, str] = {}
        """The largest pool of each namespace with too many endpoints as of the last `take_changed_problems`."""
        self._told: Mapping[str, tuple[Problem, ...]] = {}
        """The refused parts as of the last `take_changed_problems`."""
        self._judged, self._admitted = set[ObjectRef](), set[ObjectName]()
        """The changes of the plan's problems and Ingresses since then."""

    @contextlib.contextmanager
    def call_after_changes(self, tell: Callable[[], None]) -> Iterator[None]:
        """Call `tell` after each change, as long as the context lasts."""
        self.taken.add(tell)
        try:
            yield
        finally:
            self.taken.discard(tell)

    @property
    def plan(self) -> SitePlan:
        """The whole plan as one value, made on access."""
        if self._site_plan is None:
            self._site_plan = remove_parts(self._planner.kept.build_site_plan(), self._refused)
        return self._site_plan

    @property
    def datagrams(self) -> Collection[DatagramFrontend]:
        return self._planner.kept.datagrams.values()

    @property
    def problems(self) -> tuple[Problem, ...]:
        refused = (problem for problems in self._refused.values() for problem in problems)
        cut = (
            each for pool in self._endpoint_limit.exceeded.values() for each in self._write_endpoint_problems(pool)
        )
        return (*self._snapshot.problems, *self._planner.kept.list_problems(), *refused, *cut)

    @property
    def refused(self) -> Collection[str]:
        return self._refused.keys()

    def serves_ingress(self, name: ObjectName) -> bool:
        """Report whether a path of an Ingress leads to a Service."""
        ingress = self._snapshot.ingresses.get(name)
        hosts = {rule.host or EVERY_HOST for rule in ingress.rules} if ingress else set()
        routes = (route for host in hosts for route in self._planner.kept.hosts.get(host, HostPlan()).routes)
        left_out = ANSWERS | self._refused.keys()
        return any((each.kind, each.owner) == ("Ingress", name) and each.target not in left_out for each in routes)

    def take_changed_problems(self) -> ProblemChange:
        """Return the problems and the accepted Ingresses that changed since the last call."""
        kept, refs, names = self._planner.kept, self._judged, self._admitted
        self._judged, self._admitted = set(), set()
        found: dict[Hashable, tuple[Problem, ...]] = {
            ("object", *ref): each for ref, each in self._snapshot.take_changed_problems().items()
        }
        found |= {("plan", *ref): kept.problems.get(ref, ()) for ref in refs}
        before, self._told = self._told, dict(self._refused)
        parts = {part for part in before.keys() | self._told.keys() if before.get(part) != self._told.get(part)}
        found |= {("part", part): self._told.get(part, ()) for part in parts}
        found |= self._judge_endpoints()
        return ProblemChange(found, {name: name in kept.admitted for name in names})

    def _judge_endpoints(self) -> dict[Hashable, tuple[Problem, ...]]:
        """Return the changed problems of the namespaces with too many endpoints."""
        before, self._exceeded = self._exceeded, dict(self._endpoint_limit.exceeded)
        changed = {of for of in before.keys() | self._exceeded.keys() if before.get(of) != self._exceeded.get(of)}
        return {("endpoints", of): self._write_endpoint_problems(self._exceeded.get(of, "")) for of in changed}

    def _write_endpoint_problems(self, pool: str) -> tuple[Problem, ...]:
        more = f"the namespace has more than {self._most_endpoints} endpoints in HAProxy"
        remedy = "delete Services or Pods, or raise --namespace-limit endpoints=N"
        message = f"{more}: vipwire uses only some of {pool} and other large backends: {remedy}"
        return tuple(Problem(each.kind, each.name, "spec.rules", message) for each in self._find_askers(pool)[pool])

    @property
    def retries(self) -> bool:
        """Whether HAProxy may now accept a part that it refused."""
        return bool(self._closed)

    def update(self, touched: ChangeExtent, now: float) -> Delta:
        """Follow a change; return the extent of its effect. `now` is in seconds since the epoch, for certificates."""
        self._now = now
        everything = touched.structure
        services = touched.services | {name for kind, name in touched.named if kind is IngressKind.SERVICE}
        if (everything or API_SERVER in services) and self.destinations.follow_api_server(self._snapshot):
            services |= self.destinations.reviewed_services
        if everything:
            self._closed = frozenset()  # another process may have freed the address meanwhile
        self._planner.update(self._snapshot, now, self._closed)
        if self._review_destinations(services, everything=everything):
            self._snapshot.refusals = self.destinations.refusals
            self._planner.update(self._snapshot, now, self._closed)
        if everything or touched.named:
            self._site_plan = None
        return self._apply_plan_change(services, everything=everything)

    def _review_destinations(self, services: Collection[ObjectName], *, everything: bool) -> bool:
        """Check `services` and the plan's new Services again; report whether a refusal has changed."""
        kept, known = self._planner.kept, self.destinations.reviewed_services
        gone = False
        if everything:
            self._site_plan = None
            stale = {name for kind, name in self._planner.looked_at if kind is IngressKind.SERVICE}
            gone = self.destinations.forget_others(stale)
        else:
            named = {kept.pools[each].service for each in kept.pools.changed if each in kept.pools}
            stale = {name for name in services if name in known} | {name for name in named if name not in known}
        return self.destinations.review_services(self._snapshot, stale) or gone

    def _apply_plan_change(self, services: Iterable[ObjectName] = (), *, everything: bool = False) -> Delta:
        """Take over the planner's change, and the Services whose servers may have changed."""
        kept = self._planner.kept
        change = kept.take_change()
        if change:
            self._site_plan = None
        self._judged |= change.problems
        self._admitted |= change.admitted
        fill_in = {name for each in services for name in self._by_service.get(each)}
        for name in change.pools:
            self._replace_pool(name, kept.pools.get(name))
        names = kept.pools.keys() if everything else fill_in | change.pools
        cut = self._fill_slots({name: kept.pools[name] for name in names if name in kept.pools})
        hosts = {site: (self._hosts.get(site, HostPlan()), kept.hosts.get(site, HostPlan())) for site in change.hosts}
        for site, (before, after) in hosts.items():
            self._shares.subtract(each.name for each in before.shares)
            self._shares.update(each.name for each in after.shares)
            self._hosts[site] = after
        whole = everything or change.whole
        delta = Delta(hosts, frozenset(fill_in | change.pools | cut), frozenset(change.certificates), whole)
        return self._forget_refusals(delta) if self._refused else delta

    def _replace_pool(self, name: str, pool: Pool | None) -> None:
        before = self._pools.pop(name, None)
        if before is not None:
            self._by_service.discard(before.service, name)
            self._endpoint_limit.put(before.service.namespace, name, 0)
        if pool is not None:
            self._pools[name] = pool
            self._by_service.add(pool.service, name)
        else:
            self._slots.pop(name, None)

    def _forget_refusals(self, delta: Delta) -> Delta:
        """Try refused parts again that changed, or that now fit; return the changes."""
        gone = {name for name in delta.pools if name not in self._pools}
        suspects = gone | list_parts(build_site_plan((before for before, _ in delta.hosts.values()), (), {}))
        suspects = self._refused.keys() & (self._refused.keys() if delta.whole or delta.certificates else suspects)
        if suspects:
            there = list_parts(self._planner.kept.build_site_plan())
            for part in suspects - there:
                del self._refused[part]
        self._crowded &= self._refused.keys()
        room = self._room - sum(len(slots) for name, slots in self._slots.items() if name not in self._crowded)
        for name in sorted(self._crowded, key=lambda each: (len(self._slots[each]), each)):
            room -= len(self._slots[name])
            if room >= 0:
                self._crowded.discard(name)
                del self._refused[name]
                self._site_plan = None
                delta = delta.merge_later(WHOLE)
        return delta

    def find_change(self, live: Configuration, delta: Delta) -> Change:
        """Compare HAProxy's configuration with the desired one, limited to `delta`."""
        while True:
            try:
                plan = self.plan if delta.whole else self._select_part(delta)
                wanted = build_configuration(plan, self._slots, live.layout, self._default_pem, live, anew=False)
            except PoolError as error:
                self._exclude_unwritten(error)
                delta = WHOLE
            else:
                names = {each.name for pair in delta.hosts.values() for host in pair for each in host.shares}
                return compare_configurations(
                    live, wanted, delta, frozenset(each for each in names if self._shares[each] > 0)
                )

    def _select_part(self, delta: Delta) -> SitePlan:
        """Return the part of the plan in a change."""
        kept = self._planner.kept
        marks = {colon + mark for _, colon, mark in (site.partition(":") for site in delta.hosts)}
        frontends = [each for each in kept.frontends.values() if each.mark in marks]
        hosts = (kept.hosts.get(site, HostPlan()) for site in delta.hosts)
        part = build_site_plan(hosts, frontends, kept.pools, kept.default.get("", ""))
        pools = {each.name: each for each in part.pools}
        pools |= {name: kept.pools[name] for name in delta.pools if name in kept.pools}
        certificates = tuple(kept.certificates[name] for name in delta.certificates if name in kept.certificates)
        return remove_parts(replace(part, pools=tuple(pools.values()), certificates=certificates), self._refused)

    def build_configuration(self, folder: str, live: Configuration | None = None) -> Configuration:
        """Return the whole configuration for a folder. Unchanged texts are taken from `live`."""
        layout = replace(self._layout, folder=folder)
        while True:
            try:
                return build_configuration(self.plan, self._slots, layout, self._default_pem, live)
            except PoolError as error:
                self._exclude_unwritten(error)

    def _exclude_unwritten(self, error: PoolError) -> None:
        self.exclude_pool(error.pool, f"internal error, please report it: {error}")

    def exclude_pool(self, pool: str, reason: str) -> None:
        message = f"HAProxy refuses the backend {pool}, which answers 503: {reason[:200]}"
        field = "metadata.annotations" if pool in self._slots else "spec.rules"
        self._refuse_part(
            pool, [Problem(each.kind, each.name, field, message) for each in self._find_askers(pool)[pool]]
        )

    def exclude_servers(self, count: int) -> bool:
        """Leave out pools with at least so many servers, of the namespace with the most; report whether that helps.

        HAProxy needs a descriptor for each server, and does not start if the limit of open files is lower.
        """
        sizes = {pool.name: len(self._slots.get(pool.name, ())) for pool in self.plan.pools}
        of = Counter[str]()
        for pool in self.plan.pools:
            of[pool.service.namespace] += sizes[pool.name]
        self._room = sum(sizes.values()) - count
        order = sorted(self.plan.pools, key=lambda each: (-of[each.service.namespace], -sizes[each.name]))
        left_out = list[Pool]()
        for pool in order:
            if count <= 0:
                break
            count -= sizes[pool.name]
            left_out.append(pool)
        askers = self._find_askers(*(pool.name for pool in left_out))
        for pool in left_out:
            namespace = pool.service.namespace
            servers = f"the {of[namespace]} servers of {namespace}"
            message = f"{servers} exceed HAProxy's limit of open files: {pool.name} answers 503"
            asked = askers[pool.name]
            self._refused[pool.name] = tuple(Problem(each.kind, each.name, "spec.rules", message) for each in asked)
        self._crowded |= askers.keys()
        self._site_plan = remove_parts(self.plan, self._refused)
        return count <= 0

    def exclude_frontend(self, name: str) -> bool:
        """Leave out a frontend that HAProxy cannot bind; report whether it is one of the plan's."""
        if name not in {*(each.name for each in self.plan.frontends), *(each.name for each in self.datagrams)}:
            return False
        self._closed |= {name}
        self._planner.update(self._snapshot, self._now, self._closed)
        self._apply_plan_change()
        return True

    def exclude_route(self, expression: str, reason: str) -> None:
        """Leave out a regular expression that HAProxy refuses, as written in its map."""
        longest = dict(find_bounded_sites(self.plan))
        routes = (each for each in self.plan.routes if each.match is Match.EXPRESSION)
        for route in [
            each for each in routes if write_route_expression(each, longest.get(each.site, 0)) == expression
        ]:
            message = f"HAProxy refuses the expression {route.path[:80]}, which is left out: {reason[:200]}"
            self._refuse_part(write_route_expression(route), [Problem("Ingress", route.owner, "spec.rules", message)])

    def exclude_certificate(self, name: str, reason: str) -> None:
        """Leave out a certificate that HAProxy refuses; its hosts get the default certificate."""
        for each in self.plan.certificates:
            if each.name == name:
                secret = name.removesuffix(".pem").replace("_", "/", 1)
                message = f"{secret}: HAProxy refuses the certificate; its hosts get the default: {reason[:200]}"
                self._refuse_part(each.pem, [Problem(ask.kind, ask.name, ask.field, message) for ask in each.askers])

    def _find_askers(self, *pools: str) -> Mapping[str, Iterable[ObjectField]]:
        """Find the objects that lead to each of these pools, by a path or as the default backend."""
        found, plan = find_owners(pools, self.plan), self.plan
        if plan.default in found:
            services = {each.service for each in plan.pools if each.name == plan.default}
            for name in sorted(self._planner.kept.admitted):
                default = self._snapshot.ingresses[name].default_backend
                if default and default.service in services:
                    found[plan.default][ObjectField("Ingress", name)] = None
        return found

    def _refuse_part(self, part: str, problems: Sequence[Problem]) -> None:
        self._refused[part] = tuple(problems)
        self._site_plan = remove_parts(self.plan, self._refused)

    def _fill_slots(self, pools: Mapping[str, Pool]) -> set[str]:
        """Fill the slots of pools; return further pools that the limit of their namespace now cuts differently."""
        servers = {name: self.choose_servers(pool) if pool.service.name else () for name, pool in pools.items()}
        for name, pool in pools.items():
            self._endpoint_limit.put(pool.service.namespace, name, len(servers[name]))
        cut = self._endpoint_limit.judge() - servers.keys()
        servers |= {name: self.choose_servers(self._pools[name]) for name in cut}
        for name, found in servers.items():
            share = self._endpoint_limit.get_share(self._pools[name].service.namespace)
            used = (
                found if len(found) <= share else sorted(found, key=lambda each: not get_current_weight(each))[:share]
            )
            self._slots[name] = fill_slots(self._slots.get(name, ()), used)
        return cut

    def choose_servers(self, pool: Pool) -> tuple[Server, ...]:
        """Choose the servers of a pool, without refused destinations."""
        if pool.external:
            return self.destinations.find_external_server(pool, self._snapshot)
        service = self._snapshot.services.get(pool.service)
        slices = self.destinations.get_allowed_slices(pool.service, self._snapshot)
        return choose_servers(pool, service, slices, self._planner.zone)

    @property
    def slots(self) -> Mapping[str, Slots]:
        return self._slots
