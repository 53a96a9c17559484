"""Keeps HAProxy's desired state up to date with the objects: plan, slots, configuration.

The frequent change, that of endpoints, touches nothing but the slots of its Service's pools: it is made in place,
so that it costs the same however many others there are. Where rules may change, all Ingresses are put together anew,
but only what is another is read, filled and written: what Ingresses ask for, slots and texts are kept.
"""

import contextlib
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from vipwire.model.names import ObjectName
from vipwire.model.problem import Problem
from vipwire_l7.haproxy.configuration import Configuration, PoolError, bounded_sites, configure, expression_of
from vipwire_l7.haproxy.frontends import Lookups
from vipwire_l7.haproxy.layout import Layout
from vipwire_l7.haproxy.part import Delta
from vipwire_l7.haproxy.refused import owners_of, parts_of, without
from vipwire_l7.haproxy.slots import Slots, fill
from vipwire_l7.plan.certificates import judge_secret
from vipwire_l7.plan.destinations import API_SERVER, Destinations
from vipwire_l7.plan.endpoints import servers_of
from vipwire_l7.plan.plan import HostPlan, PlanChange
from vipwire_l7.plan.planner import KeepingPlanner, Planner
from vipwire_l7.plan.sites import Asker, DatagramFrontend, Match, Pool, Server, SitePlan
from vipwire_l7.watch.objects import IngressKind
from vipwire_l7.watch.snapshot import Snapshot, Touched


class Desired:
    """The desired configuration. `update` follows the snapshot; `made` gives what there is to have."""

    def __init__(
        self,
        snapshot: Snapshot,
        planner: Planner,
        layout: Layout,
        default_pem: str,
        destinations: Destinations | None = None,
    ) -> None:
        self.destinations = destinations or Destinations()
        self._snapshot, self._planner, self._layout, self._default_pem = snapshot, planner, layout, default_pem
        self._site_plan: SitePlan | None = SitePlan()
        self._hosts: dict[str, HostPlan] = {}
        """The hosts of the last plan, if the planner keeps them, and how many of them come to each split."""
        self._shares = Counter[str]()
        self._pools: dict[str, Pool] = {}
        self.taken: set[Callable[[], None]] = set()
        """Called after each change, when HAProxy has it or soon will: for those who tell of it elsewhere."""
        self._slots: dict[str, Slots] = {}
        self._by_service: dict[ObjectName, dict[str, Pool]] = {}
        self._closed: frozenset[str] = frozenset()
        """The frontends whose addresses HAProxy cannot have."""
        self._now = self._planned = 0.0
        self._refused: dict[str, tuple[Problem, ...]] = {}
        """By part, as `haproxy.refused` names them."""
        self._configuration: Configuration | None = None
        self._before: Configuration | None = None
        self._kept: Mapping[str, Lookups] = {}
        self._plans = 0

    @contextlib.contextmanager
    def telling(self, tell: Callable[[], None]) -> Iterator[None]:
        """Call something after each change, as long as the context lasts."""
        self.taken.add(tell)
        try:
            yield
        finally:
            self.taken.discard(tell)

    @property
    def plan(self) -> SitePlan:
        """The whole plan, which is written down when it is asked for."""
        if self._site_plan is None:
            self._site_plan = self._planner.plan(self._snapshot, self._planned, self._closed)
        return self._site_plan

    @property
    def datagrams(self) -> Collection[DatagramFrontend]:
        """What a relay of UDP serves."""
        return self._keeper.kept.datagrams.values() if self._keeper else self.plan.datagrams

    @property
    def _keeper(self) -> KeepingPlanner | None:
        """The planner, if it keeps its plan and nothing of that is left out."""
        planner = self._planner
        return planner if isinstance(planner, KeepingPlanner) and not self._refused and not self._closed else None

    @property
    def problems(self) -> tuple[Problem, ...]:
        """All problems of objects and of their combination."""
        refused = (problem for problems in self._refused.values() for problem in problems)
        return (*self._snapshot.problems, *self.plan.problems, *refused)

    @property
    def judgements(self) -> tuple[int, int]:
        """Two numbers that change when `problems` and `plan` may have changed."""
        return self._snapshot.judgements, self._plans

    def update(self, touched: Touched, now: float) -> Delta | None:
        """Follow a change; `now` in seconds since the epoch, for certificates.

        Give the hosts and pools that may be others, if that is all there is; None if more has changed.
        """
        self._now = now
        services = touched.services | {name for kind, name in touched.named if kind is IngressKind.SERVICE}
        if (touched.structure or API_SERVER in services) and self.destinations.follow_api_server(self._snapshot):
            services |= self.destinations.services
        if (delta := self._follow(touched, services, now)) is not None:
            return delta
        if self._matters(touched) or (self._keeper and _is_more_than_hosts(self._keeper.kept.change)):
            if touched.structure:
                self._closed = frozenset()  # whoever has the address may have gone meanwhile
            self._plan(now)
            everything = touched.structure
            if self._review(services, everything=everything):
                self._plan(now)
            stale = (each for each in self.plan.pools if everything or self._is_stale(each, services))
            self._fill(list(stale))
            return None
        known = services & self.destinations.services
        if self.destinations.review(self._snapshot, known):
            self._plan_refusals()
            self._fill([each for each in self.plan.pools if self._is_stale(each, services)])
            return None
        pools = [pool for service in services for pool in self._by_service.get(service, {}).values()]
        if self._fill(pools):
            self._configuration = None
            return None
        return Delta(tuple(pool.name for pool in pools), every_pool=self._pools)

    def _follow(self, touched: Touched, services: Collection[ObjectName], now: float) -> Delta | None:
        """Plan what has changed alone; None if the planner cannot, or if more than hosts and pools is another."""
        keeper = self._keeper
        if keeper is None or touched.structure or not touched.named or not self._pools:
            return None
        keeper.update(self._snapshot, now)
        kept, known = keeper.kept, self.destinations.services
        named = {kept.pools[each].service for each in kept.change.pools if each in kept.pools}
        stale = {name for name in services if name in known} | {name for name in named if name not in known}
        if self.destinations.review(self._snapshot, stale):
            self._snapshot.refusals = self.destinations.refusals
            keeper.update(self._snapshot, now)
        change = kept.change
        if _is_more_than_hosts(change):
            return None
        kept.take_change()
        self._site_plan = self._configuration = None
        self._planned = now
        self._plans += bool(change.problems) or any(kind is IngressKind.INGRESS for kind, _ in touched.named)
        self._swap_pools(change.pools, kept.pools)
        pools = {name: kept.pools[name] for name in change.pools if name in kept.pools}
        pools |= {name: pool for each in services for name, pool in self._by_service.get(each, {}).items()}
        self._fill(pools.values())
        hosts = {site: (self._hosts.get(site, HostPlan()), kept.hosts.get(site, HostPlan())) for site in change.hosts}
        for site, (before, after) in hosts.items():
            self._shares.subtract(each.name for each in before.shares)
            self._shares.update(each.name for each in after.shares)
            self._hosts[site] = after
        ours = {each.name for found in hosts.values() for host in found for each in host.shares}
        return Delta(
            tuple(sorted({*change.pools, *pools})),
            hosts,
            self._pools,
            {each.mark: each for each in kept.frontends.values()},
            kept.default.get("", ""),
            frozenset(name for name in ours if self._shares[name] > 0),
        )

    def _swap_pools(self, names: Iterable[str], now: Mapping[str, Pool]) -> None:
        for name in names:
            before, pool = self._pools.pop(name, None), now.get(name)
            if before is not None:
                self._by_service[before.service].pop(name, None)
            if pool is not None:
                self._pools[name] = self._by_service.setdefault(pool.service, {})[name] = pool
            else:
                self._slots.pop(name, None)

    def is_outdated(self, now: float) -> bool:
        """Report whether time alone may have changed the plan: no object has to be another for that.

        A certificate begins or ends, HAProxy can have an address that was taken, or this machine has another one.
        """
        if self._closed or self._planner.moved():
            return True
        secrets = (self._snapshot.secrets.get(name) for kind, name in self.plan.named if kind is IngressKind.SECRET)
        return any(judge_secret(each, self._planned) != judge_secret(each, now) for each in secrets)

    def _review(self, services: Collection[ObjectName], *, everything: bool) -> bool:
        """Judge the plan's Services, as far as they are among these or new; report whether a refusal has changed."""
        named = {name for kind, name in self.plan.named if kind is IngressKind.SERVICE}
        gone = self.destinations.keep(named)
        known = self.destinations.services
        changed = self.destinations.review(
            self._snapshot, {name for name in named if everything or name in services or name not in known}
        )
        self._snapshot.refusals = self.destinations.refusals
        return changed or gone

    def _plan_refusals(self) -> None:
        self._snapshot.refusals = self.destinations.refusals
        self._plan(self._now)

    def _is_stale(self, pool: Pool, services: Collection[ObjectName]) -> bool:
        return pool.service in services or pool.name not in self._slots

    def _matters(self, touched: Touched) -> bool:
        """Report whether the plan may be another."""
        if touched.structure or not touched.named.isdisjoint(self.plan.named):
            return True
        return any(self._planner.wants(self._snapshot, kind, name) for kind, name in touched.named)

    def made(self, folder: str, kept: Mapping[str, Lookups] = MappingProxyType({})) -> Configuration:
        """Return the configuration for a folder. Its slots are ours, and follow every `update`.

        `kept` is what the frontends look for that HAProxy has.
        """
        made, before, self._kept = self._configuration, self._kept, kept
        if made is None or kept not in (before, made.shape.lookups):
            self._before = made = self._configured()
        if made.layout.folder != folder:
            made = replace(made, layout=replace(self._layout, folder=folder))
        self._configuration = made
        return made

    def _configured(self) -> Configuration:
        while True:
            try:
                return configure(self.plan, self._slots, self._layout, self._default_pem, self._before, self._kept)
            except PoolError as error:
                self.exclude(error.pool, f"it cannot be written, which is a defect of vipwire: {error}")

    def exclude(self, pool: str, reason: str) -> None:
        """Leave out a pool that HAProxy does not want."""
        message = f"HAProxy refuses the backend {pool}, which answers 503: {reason[:200]}"
        field = "metadata.annotations" if pool in self._slots else "spec.rules"
        self._refuse(pool, [Problem(each.kind, each.name, field, message) for each in self._askers(pool)])

    def exclude_servers(self, count: int) -> bool:
        """Leave out pools that have so many servers, of the namespace with the most; report whether that helps.

        HAProxy counts a file for each server, and does not start where it may not open as many.
        """
        sizes = {pool.name: len(self._slots.get(pool.name, ())) for pool in self.plan.pools}
        of = Counter[str]()
        for pool in self.plan.pools:
            of[pool.service.namespace] += sizes[pool.name]
        order = sorted(self.plan.pools, key=lambda each: (-of[each.service.namespace], -sizes[each.name]))
        for pool in order:
            if count <= 0:
                break
            count -= sizes[pool.name]
            namespace = pool.service.namespace
            message = (
                f"{namespace} has {of[namespace]} servers, more than HAProxy may open files: {pool.name} answers 503"
            )
            asked = self._askers(pool.name)
            self._refused[pool.name] = tuple(Problem(each.kind, each.name, "spec.rules", message) for each in asked)
        self._set_plan(without(self.plan, self._refused))
        return count <= 0

    def exclude_frontend(self, name: str) -> bool:
        """Leave out a frontend whose address cannot be had; report whether it is one of the plan's."""
        if name not in {*(each.name for each in self.plan.frontends), *(each.name for each in self.plan.datagrams)}:
            return False
        self._closed |= {name}
        self._plan(self._now)
        self._fill([pool for pool in self.plan.pools if pool.name not in self._slots])
        return True

    def exclude_route(self, expression: str, reason: str) -> None:
        """Leave out a regular expression that HAProxy does not want, as its map has it."""
        longest = dict(bounded_sites(self.plan))
        routes = (each for each in self.plan.routes if each.match is Match.EXPRESSION)
        for route in [each for each in routes if expression_of(each, longest.get(each.site, 0)) == expression]:
            message = f"HAProxy refuses the expression {route.path[:80]}, which is left out: {reason[:200]}"
            self._refuse(expression_of(route), [Problem("Ingress", route.owner, "spec.rules", message)])

    def exclude_certificate(self, name: str, reason: str) -> None:
        """Leave out a certificate that HAProxy does not want; its hosts get the default certificate."""
        for each in self.plan.certificates:
            if each.name == name:
                secret = name.removesuffix(".pem").replace("_", "/", 1)
                message = f"{secret}: HAProxy refuses it; its hosts get the default certificate: {reason[:200]}"
                self._refuse(each.pem, [Problem(ask.kind, ask.name, ask.field, message) for ask in each.askers])

    def _askers(self, pool: str) -> Iterable[Asker]:
        """Name the objects that lead to a pool, by a path or as the default backend."""
        yield from owners_of(pool, self.plan)
        if pool == self.plan.default:
            services = {each.service for each in self.plan.pools if each.name == pool}
            for name in self.plan.admitted:
                default = self._snapshot.ingresses[name].default_backend
                if default and default.service in services:
                    yield Asker("Ingress", name)

    def _refuse(self, part: str, problems: Sequence[Problem]) -> None:
        self._refused[part] = tuple(problems)
        self._set_plan(without(self.plan, self._refused))

    def _plan(self, now: float) -> None:
        plan, self._planned = self._planner.plan(self._snapshot, now, self._closed), now
        there = parts_of(plan) if self._refused else ()
        self._refused = {part: problems for part, problems in self._refused.items() if part in there}
        self._set_plan(without(plan, self._refused))

    def _set_plan(self, plan: SitePlan) -> None:
        self._site_plan, self._configuration = plan, None
        self._plans += 1
        self._by_service = {}
        for pool in plan.pools:
            self._by_service.setdefault(pool.service, {})[pool.name] = pool
        self._pools = {pool.name: pool for pool in plan.pools}
        if isinstance(self._planner, KeepingPlanner):
            self._planner.kept.take_change()
            self._hosts = dict(self._planner.kept.hosts)
            self._shares = Counter(each.name for host in self._hosts.values() for each in host.shares)
        wanted = {pool.name for pool in plan.pools}
        self._slots = {name: slots for name, slots in self._slots.items() if name in wanted}

    def _fill(self, pools: Collection[Pool]) -> bool:
        """Assign slots to all servers of pools; report whether a pool's number of slots has changed."""
        sizes = {pool.name: len(self._slots.get(pool.name, ())) for pool in pools}
        self._slots |= {pool.name: self._filled(pool) for pool in pools}
        return any(len(self._slots[name]) != size for name, size in sizes.items())

    def _filled(self, pool: Pool) -> Slots:
        servers = self.servers(pool) if pool.service.name else ()
        return fill(self._slots.get(pool.name, ()), servers)

    def servers(self, pool: Pool) -> tuple[Server, ...]:
        """Choose the servers of a pool, of those that may be connected to."""
        if pool.external:
            return self.destinations.external_server(pool, self._snapshot)
        service = self._snapshot.services.get(pool.service)
        slices = self.destinations.slices(pool.service, self._snapshot)
        return servers_of(pool, service, slices, self._planner.zone)

    @property
    def slots(self) -> Mapping[str, Slots]:
        """The slots by pool."""
        return self._slots


def _is_more_than_hosts(change: PlanChange) -> bool:
    """Report whether a plan has changed in more than hosts and their pools."""
    return bool(change.frontends or change.certificates or change.files or change.datagrams or change.default)
