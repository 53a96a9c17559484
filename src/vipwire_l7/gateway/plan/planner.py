"""Plans the objects of the Gateway API, and their statuses. A change costs in proportion to its size.

The planner plans the frame (all objects but routes) once, and each route on its own. A result is kept until an object
changes that the result looked up; a route's result also until a fact changes that it took from the frame. The entries
of routes are merged by host.
"""

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import replace

from vipwire.model.names import ObjectName
from vipwire_l7.gateway.plan.frame import KINDS, Frame, plan_frame
from vipwire_l7.gateway.plan.hosts import Hosts
from vipwire_l7.gateway.plan.kinds.objects import ROUTE_KINDS, GatewaySetting, GatewayWorld
from vipwire_l7.gateway.plan.listeners import ListenerKey
from vipwire_l7.gateway.plan.own_services import OwnService
from vipwire_l7.gateway.plan.routes import FrontendKey, HostKey, RouteResult, plan_route, rank_route
from vipwire_l7.gateway.plan.rules import Shares
from vipwire_l7.gateway.plan.statuses import (
    write_gateway_status,
    write_set_status,
    write_tls_conditions,
    write_tls_policy_status,
)
from vipwire_l7.gateway.plan.tls import TlsPolicyResult, list_targets
from vipwire_l7.plan.dependencies import Dependencies
from vipwire_l7.plan.limits import Limits
from vipwire_l7.plan.plan import HostPlan, Plan
from vipwire_l7.plan.sites import Frontend, Route
from vipwire_l7.watch.compact import NO_PARTS
from vipwire_l7.watch.objects import IngressKind, Json
from vipwire_l7.watch.snapshot import Changes, ObjectRef, Snapshot

_FRAME: ObjectRef = IngressKind.GATEWAY_CLASS, ObjectName("", "")
"""The name of the frame among the results. No object can have this name."""


class GatewayPlanner:
    """Plans the Gateway API. `statuses` and `services` belong to the last plan."""

    def __init__(self, setting: GatewaySetting, reached: Callable[[], tuple[str, ...]] | None = None) -> None:
        """`reached` finds the addresses of Gateways that name none, unless the setting has them."""
        self._setting, self._reached = setting, reached or (lambda: setting.addresses)
        self._frame = Frame()
        self._forget_results(None)

    def _forget_results(self, snapshot: Snapshot | None) -> None:
        """Forget all results; Gateways keep their addresses."""
        self._snapshot = snapshot
        self._changes = snapshot.follow_changes() if snapshot is not None else Changes()
        self.kept = Plan()
        self._frame = Frame(given=self._frame.given)
        self._frontends: dict[FrontendKey, Frontend] = {}
        self._led: dict[str, tuple[Route, ...]] = {}
        self._looked_at = Dependencies[ObjectRef]()
        self._results: dict[ObjectRef, RouteResult] = {}
        self._hosts, self._limits = Hosts(self._results), Limits(self._setting.limits)
        self._datagrams: dict[str, dict[ObjectRef, Shares]] = {}
        self._counts = Counter[ListenerKey]()
        self._told = set[ObjectRef]()
        self.revision: int | None = None
        """A count of changed statuses; None before the first plan."""
        self._refused: frozenset[str] = frozenset()
        self._planned, self.due = 0.0, math.inf
        """When the frame was planned, and when it expires although no object changes."""
        self.services: Mapping[ObjectName, OwnService] | None = None

    @property
    def zone(self) -> str:
        return self._setting.zone

    def take_changed_statuses(self) -> set[ObjectRef]:
        """Return the objects whose statuses may have changed since the last call."""
        taken, self._told = self._told, set()
        return taken

    def has_changed(self, ref: ObjectRef) -> bool:
        """Report whether an object has changed since it was planned."""
        return ref in self._changes

    def have_addresses_changed(self) -> bool:
        return self._reached() != self._setting.addresses

    @property
    def looked_at(self) -> Collection[ObjectRef]:
        return self._looked_at.looked_at

    def update(self, snapshot: Snapshot, now: float, refused: Collection[str] = ()) -> None:
        is_first = snapshot is not self._snapshot
        if is_first:
            self._forget_results(snapshot)
        changed = self._changes.take()
        world = GatewayWorld(snapshot, now)
        if is_first or self._is_stale(changed, world, frozenset(refused)):
            self._refused = frozenset(refused)
            changed |= self._plan_frame(world)
        if is_first:
            routes = {(kind, name) for kind in ROUTE_KINDS for name in snapshot.list_gateway_objects(kind)}
        else:
            routes = {each for each in changed if each[0] in ROUTE_KINDS} | self._looked_at.find_users(changed)
        self._plan_routes(routes - {_FRAME}, world)
        self.revision = (self.revision or 0) + 1

    def _is_stale(self, changed: Collection[ObjectRef], world: GatewayWorld, refused: frozenset[str]) -> bool:
        return (
            self.have_addresses_changed()
            or refused != self._refused
            or not self._planned <= world.now < self.due
            or any(kind in KINDS for kind, _ in changed)
            or _FRAME in self._looked_at.find_users(changed)
            or any(
                world.list_sections(*each) != self._frame.seen[each] for each in changed if each in self._frame.seen
            )
        )

    def _plan_frame(self, world: GatewayWorld) -> set[ObjectRef]:
        """Plan the frame; return the objects that routes look up and that changed."""
        self._setting = replace(self._setting, addresses=self._reached())
        before, kept = self._frame, self.kept
        self._frame = made = plan_frame(world, self._setting, self._refused, before.given)
        self._looked_at.record(_FRAME, world.take_lookups())
        self._planned, self.due, self.services = world.now, world.until, made.services
        kept.problems.put_all(before.problems, made.problems)
        kept.certificates.put_all(before.certificates, made.certificates)
        kept.files.replace_values(before.files, made.files)
        self._told |= {*_list_objects_with_status(before), *_list_objects_with_status(made)}
        marks = {way: each.mark for way, each in self._frontends.items()}
        self._frontends = {
            (place, mode): each
            for place, port in sorted(made.ports.items(), key=lambda found: (found[1].bind, found[1].port))
            for mode, each in port.build_frontends()
        }
        kept.frontends.arrange({each.name: each for each in self._frontends.values()})
        led, self._led = (
            self._led,
            {each.site: (each,) for port in made.ports.values() for each in port.list_forwarding_routes()},
        )
        for site in led.keys() - self._led.keys():
            kept.hosts.put(site, None)
        for way in marks.keys() | self._frontends.keys():
            mark = self._frontends[way].mark if way in self._frontends else None
            if mark != marks.get(way):
                for host in self._hosts.by_way.get(way):
                    self._put_host((way, host), marks.get(way))
        for site, routes in self._led.items():
            kept.hosts.put(site, HostPlan(routes))
        for place in before.datagrams.keys() | made.datagrams.keys():
            self._put_datagrams(place, before)
        return made.find_changed_facts(before)

    def _plan_routes(self, refs: Iterable[ObjectRef], world: GatewayWorld) -> None:
        """Plan some routes again, and merge the entries of their hosts."""
        hosts, places = set[HostKey](), set[str]()
        for ref in refs:
            self._plan_route(ref, world, hosts, places)
        for ref in self._limits.judge():
            self._plan_route(ref, world, hosts, places)
        for ref, more in self._hosts.judge_hosts(hosts).items():
            hosts.update(more)
            self._told.add(ref)
            self.kept.problems.put(ref, self._results[ref].list_problems() or None)
        for key in hosts:
            self._put_host(key)
        for place in places:
            self._put_datagrams(place, self._frame)

    def _plan_route(self, ref: ObjectRef, world: GatewayWorld, hosts: set[HostKey], places: set[str]) -> None:
        """Plan a route again; record the hosts and UDP places concerned."""
        before, route = self._results.pop(ref, None), world.find_route(*ref)
        now = plan_route(route, self._frame, world) if route is not None else None
        if route is None:
            self._looked_at.forget(ref)
        else:
            self._looked_at.record(ref, world.take_lookups())
        self._told.add(ref)
        if now is not None:
            self._results[ref] = now
            self._limits.record_demand(ref, now.count_demand())
            if text := self._limits.find_excess(ref):
                now.leave_out(text)
        elif before is not None:
            self._limits.record_demand(ref, None)
        else:
            return
        hosts |= self._hosts.replace_route(ref, before, now)
        places |= self._replace_result(ref, before, now)
        self.kept.problems.put(ref, (now.list_problems() if now is not None else ()) or None)

    def _put_host(self, key: HostKey, before: str | None = None) -> None:
        """Merge the entries of a host. `before` is the mark that its frontend had."""
        way, host = key
        if before is not None:
            self.kept.hosts.put(f"{host}{before}", None)
        if way in self._frontends:
            site = f"{host}{self._frontends[way].mark}"
            self.kept.hosts.put(site, self._hosts.plan_host(key, site))

    def _put_datagrams(self, place: str, before: Frame) -> None:
        """Plan a UDP address and port: the oldest route with a rule gets all clients."""
        found = self._frame.datagrams.get(place)
        if found is None:
            if place in before.datagrams:
                self.kept.datagrams.put(before.datagrams[place].name, None)
            return
        refs = [ref for ref, shares in self._datagrams.get(place, {}).items() if shares]
        oldest = min(refs, key=lambda ref: rank_route(self._results[ref].route), default=None)
        shares = self._datagrams[place][oldest] if oldest is not None else ()
        self.kept.datagrams.put(found.name, replace(found, shares=shares))

    def _replace_result(self, ref: ObjectRef, before: RouteResult | None, now: RouteResult | None) -> set[str]:
        """Replace the parts of a route's result that are not by host; return the UDP places concerned."""
        told = self._told
        self.kept.pools.replace_values(before.pools if before else (), now.fresh if now else {})
        self.kept.files.replace_values(before.files if before else (), now.files if now else {})
        if now is not None:
            now.fresh = NO_PARTS
        for result, number in ((before, -1), (now, 1)):
            if result is None:
                continue
            for listener in result.listeners:
                self._counts[listener] += number
                told.add(listener[:2])
            told |= {
                (each.policy.kind, each.policy.name)
                for (name, _), each in self._frame.tls.by_port.items()
                if name in result.services
            }
            for place in result.datagrams:
                there = self._datagrams.setdefault(place, {})
                if number < 0:
                    del there[ref]
                else:
                    there[ref] = result.datagrams[place]
        return {place for each in (before, now) if each is not None for place in each.datagrams}

    def write_status(self, ref: ObjectRef) -> Json | None:
        """Return an object's status; None for one of another controller."""
        frame, controller = self._frame, self._setting.controller
        if ref in self._results:
            return self._results[ref].write_status(controller)
        if ref in frame.gateways:
            found = frame.gateways[ref]
            made = write_gateway_status(found.gateway, found.listeners, self._counts, found.address, found.reached)
            verdict = found.certificate.verdict if found.certificate is not None else None
            made["conditions"] += write_tls_conditions(found.gateway, found.listeners, verdict)
            return made
        if ref in frame.sets:
            item = frame.sets[ref]
            own = frame.listeners.get(ref, ())
            return write_set_status(item.item, own, self._counts, item.address, let_in=item.let_in)
        if ref in frame.tls.checked:
            return self._write_tls_policy_status(frame.tls.checked[ref])
        return frame.statuses.get(ref)

    def _write_tls_policy_status(self, checked: TlsPolicyResult) -> Json:
        services = {name for name, _ in list_targets(checked.policy)}
        refs = self._looked_at.find_users((IngressKind.SERVICE, name) for name in services)
        routes = [self._results[ref] for ref in refs if ref in self._results]
        led = {name for each in routes if not services.isdisjoint(each.services) for name in each.gateways}
        gateways = [each.gateway for each in self._frame.gateways.values() if each.gateway.name in led]
        return write_tls_policy_status(checked, gateways, self._setting.controller)

    @property
    def statuses(self) -> dict[ObjectRef, Json]:
        return {ref: made for ref in self.list_objects_with_status() if (made := self.write_status(ref)) is not None}

    def list_objects_with_status(self) -> Iterator[ObjectRef]:
        yield from _list_objects_with_status(self._frame)
        yield from self._results


def _list_objects_with_status(frame: Frame) -> Iterator[ObjectRef]:
    """Yield the objects of a frame whose statuses vipwire writes. A Gateway comes before its ListenerSets."""
    yield from (*frame.statuses, *frame.sets, *frame.gateways, *frame.tls.checked)
