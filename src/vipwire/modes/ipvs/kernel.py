"""ipvs mode's backend: reads and writes IPVS, kube-ipvs0, ipsets and iptables. One instance serves one family.

The kernel has no transaction over all of these, so a commit goes in steps. It adds in this order:

    sets and their elements ▸ chains ▸ virtual and real servers ▸ rules of ranges ▸ VIPs

It removes in the opposite order. If the kernel refuses a step, vipwire undoes the earlier steps and raises the error.
IPVS sends no notifications, so `changed` reads everything and compares.
"""

import contextlib
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator

from vipwire.errors import CommitError
from vipwire.linux.netlink.ipvs import Command, Forwarding, Method, RealServer, VirtualServer
from vipwire.model.net import Address, Family
from vipwire.model.problem import Problem
from vipwire.modes.ipvs.counts import read_counts
from vipwire.modes.ipvs.marks import choose_routing_mark, is_among
from vipwire.modes.ipvs.mode import LACKS
from vipwire.modes.ipvs.objects.device import Device, read_socket_sources
from vipwire.modes.ipvs.objects.direct_return import Pods
from vipwire.modes.ipvs.objects.iptables_tool import ChainTool
from vipwire.modes.ipvs.objects.names import (
    BESIDE,
    MARKING,
    PORT_PROTOCOLS,
    MarkRule,
    Object,
    ObjectKey,
    Receiver,
    Set,
    SetEntry,
    Vip,
    VipRoute,
    owning_entries,
    set_name,
)
from vipwire.modes.ipvs.objects.parts import DeltaByKind, invert_delta, partition_delta
from vipwire.modes.ipvs.objects.policy_routing import PolicyRouting
from vipwire.modes.ipvs.objects.servers import IpvsServers, ServerCommand, include_resting_servers
from vipwire.modes.ipvs.objects.sets import Sets
from vipwire.modes.ipvs.render import DEFAULTS, IpvsSettings, Writing
from vipwire.modes.ipvs.skeleton import KUBE_PROXYS, build_node_objects
from vipwire.modes.ipvs.termination import DrainingMarks, GracefulTermination, TerminationPolicy
from vipwire.modes.xtables.save import ChainName
from vipwire.plan.annotations import find_ineffective
from vipwire.plan.node import NodePlan
from vipwire.plan.plan import ServicePlan
from vipwire.reconcile.backend import Rendered
from vipwire.reconcile.counts import Counts
from vipwire.reconcile.delta import Delta, SentBytes

Objects = dict[ObjectKey, Object]
_SOCKETS_SECONDS = 10.0


class IpvsBackend(Writing):
    """IPVS of one family, in the network namespace of its creation. Raise UnsupportedError without IPVS."""

    def __init__(
        self, family: Family, settings: IpvsSettings = DEFAULTS, clock: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__(family, settings)
        self._clock = clock
        self._servers = IpvsServers(family)
        self._device, self._sets, self._tool = Device(family), Sets(family), ChainTool(family)
        self._policy_routing, self._pods = PolicyRouting(family), Pods(family)
        self._terminating = GracefulTermination()
        self._draining = DrainingMarks(family, self._terminating)
        self._terminations = TerminationPolicy()
        self._direct = set_name(family, Set.DIRECT_RETURN)
        self._chains = KUBE_PROXYS.union(
            key for key in build_node_objects(NodePlan(family)) if isinstance(key, ChainName)
        )
        self._lingering: set[Address] = set()
        """Addresses that stay on kube-ipvs0 while local sockets use them."""
        self._look_at = 0.0
        self._receiving: set[Receiver] = set()
        """Pods that keep a VIP for open connections only."""
        self._left: Objects | None = None

    def require(self) -> None:
        self._sets.require()
        self._tool.require()

    @property
    def variant(self) -> str:
        """The kernel's engine that holds the rules: `nft` or `legacy`."""
        return self._tool.variant

    def close(self) -> None:
        """Close the sockets; the kernel's objects stay."""
        for part in (self._servers, self._device, self._sets, self._policy_routing):
            part.close()

    def render(self, plan: ServicePlan) -> Rendered[ObjectKey, Object]:
        rendered = super().render(plan)
        self._terminations.record_plan(plan, rendered.own, plan.wishes.drain_seconds)
        return rendered

    def find_shortcomings(self, plan: ServicePlan) -> tuple[Problem, ...]:
        return tuple(find_ineffective(plan.name, plan.wishes, LACKS))

    def read_counts(self, plans: Iterable[ServicePlan], *, endpoints: bool = True) -> Counts:
        return read_counts(self.family, self._tool, plans, self.marks, endpoints=endpoints)

    def changed(self) -> bool:
        return self._left is None or self._read_objects() != self._left

    def observe(self) -> Objects:
        """Read all objects of vipwire and no others.

        A real server with weight 0 counts as draining, also if an earlier process set the weight.
        """
        self._left = self._read_objects(adopt=True)
        return dict(self._left)

    def commit(self, delta: Delta[ObjectKey, Object]) -> SentBytes:
        """Apply a difference; return the bytes sent. If the kernel refuses a step, undo the earlier ones."""
        try:
            size = self._apply_delta(delta)
        except (CommitError, OSError):
            with contextlib.suppress(CommitError, OSError):
                self._apply_delta(invert_delta(delta), drain=False)
            self._left = None
            raise
        self._terminations.record_commit(delta.added, delta.removed)
        if self._left is not None:
            delta.apply_to(self._left)
        return size

    def housekeeping_due(self) -> float | None:
        """Return the seconds until the next `housekeep`; None if nothing drains."""
        now = self._clock()
        due = self._terminating.due(now)
        if not self._lingering:
            return due
        look = max(0.0, self._look_at - now)
        return look if due is None else min(due, look)

    def housekeep(self) -> None:
        now = self._clock()
        gone: list[ServerCommand] = []
        for server, reals in self._terminating.servers_to_check(now).items():
            busy = {(s.address, s.port) for s in self._servers.read_real_servers(server) if s.active or s.inactive}
            gone += (
                ServerCommand(Command.DEL_DEST, real, Forwarding(0))
                for real in reals
                if (real.address, real.port) not in busy
                or self._terminating.has_expired(real, now)
                or not self._terminations.may_finish(real)
            )
        self._servers.apply(gone)
        for change in gone:
            if isinstance(change.key, RealServer):
                self._terminating.end_draining(change.key)
        ended = self._draining.take_ended()
        self._servers.apply(self._yield_removals(ended, drain=False))
        self._sets.delete_entries(ended.entries.removed)
        self._release_unused()
        self._terminating.record_look(now, self._clock())
        if self._lingering and now >= self._look_at:
            self._device.remove_addresses(self._drop_used_addresses(self._lingering))

    def _find_unused_addresses(self, parts: DeltaByKind) -> list[Address]:
        """Return the addresses that may leave kube-ipvs0: those to which no local socket is bound.

        kube-proxy puts external and load balancer IPs there. A process that connects to one has that address as its
        source.
        """
        gone = {vip.address for vip in parts.vips.removed}
        routed = gone & {route.address for route in parts.routes.added}
        return [*(gone - routed), *self._drop_used_addresses(routed)] if routed else list(gone)

    def _drop_used_addresses(self, addresses: set[Address]) -> list[Address]:
        used = read_socket_sources() & addresses
        self._lingering = (self._lingering - addresses) | used
        self._look_at = self._clock() + _SOCKETS_SECONDS
        return list(addresses - used)

    def _release_unused(self) -> None:
        """Remove a VIP from Pods to which IPVS sends none of its connections any more."""
        if not self._receiving:
            return
        draining = {(self._find_vip(each.server), each.address) for each in self._terminating}
        gone = {each for each in self._receiving if (each.vip, each.pod) not in draining}
        self._pods.release((each.pod, each.vip) for each in gone)
        self._receiving -= gone

    def _find_vip(self, server: VirtualServer) -> Address:
        """Return the address of a virtual server; the virtual server of a mark has its range's address."""
        ranges = (key.address for (key, _), mark in self.marks.given.items() if mark == server.mark)
        return next((each for each in ranges if each), server.address) if server.mark else server.address

    def delete(self) -> bool:
        """Remove all objects of this family; report whether any existed."""
        self._draining.clear()
        found = self._read_objects()
        self._apply_delta(Delta(removed=found), drain=False)
        self._sets.destroy_sets([BESIDE[self.family]])  # an interrupted replacement leaves it
        return self._device.delete_device() or bool(found)

    def _apply_delta(self, delta: Delta[ObjectKey, Object], *, drain: bool = True) -> SentBytes:
        parts = partition_delta(delta)
        self._draining.reuse_marks(parts)
        if drain and self._left is not None:
            self._draining.begin_draining(parts, self._left, self.marks.avoid)
        size = sum(
            self._sets.replace(name.set, spec, keeps=old is not None)
            for name, (old, spec) in parts.sets.changed.items()
            if spec and not spec.limits  # a set as others made it is not made again to undo a commit
        )
        size += self._sets.create_sets({name.set: spec for name, spec in parts.sets.added.items() if spec})
        size += self._sets.add_entries(parts.entries.written)
        leaving = Delta(removed=parts.chains.removed)
        size += self._tool.write(Delta(parts.chains.added, parts.chains.changed))
        size += self._servers.apply(self._yield_additions(parts))
        self._pods.prepare({(key.pod, key.vip): method for key, method in parts.receivers.written.items()})
        size += self._policy_routing.add_routes([each.address for each in parts.routes.added])
        size += self._policy_routing.add_marks([each.mark for each in parts.mark_rules.added])
        size += self._tool.write_rules(Delta(parts.rules.added, parts.rules.changed))
        size += self._device.add_addresses([vip.address for vip in parts.vips.added])
        self._lingering -= {vip.address for vip in parts.vips.added}
        size += self._device.remove_addresses(self._find_unused_addresses(parts))
        size += self._policy_routing.remove_marks([each.mark for each in parts.mark_rules.removed])
        size += self._policy_routing.remove_routes([each.address for each in parts.routes.removed])
        size += self._tool.write_rules(Delta(removed=parts.rules.removed))
        size += self._servers.apply(self._yield_removals(parts, drain=drain))
        self._receiving -= parts.receivers.added.keys()
        self._receiving |= parts.receivers.removed.keys()
        self._release_unused()
        size += self._tool.write(leaving)
        size += self._sets.delete_entries(parts.entries.removed)
        return size + self._sets.destroy_sets([name.set for name in parts.sets.removed])

    def _yield_additions(self, parts: DeltaByKind) -> Iterator[ServerCommand]:
        """Yield the additions.

        Real servers directly follow their virtual server, which refuses packets without any.
        """
        reals: dict[VirtualServer, list[ServerCommand]] = defaultdict(list)
        for real, forwarding in parts.reals.added.items():
            known = real in self._terminating
            self._terminating.end_draining(real)
            reals[real.server].append(
                ServerCommand(Command.SET_DEST if known else Command.NEW_DEST, real, forwarding)
            )
        for key, scheduling in parts.servers.added.items():
            yield ServerCommand(Command.NEW_SERVICE, key, scheduling)
            yield from reals.pop(key, ())
        for key, (_, scheduling) in parts.servers.changed.items():
            yield ServerCommand(Command.SET_SERVICE, key, scheduling)
        for changes in reals.values():
            yield from changes
        for real, (_, forwarding) in parts.reals.changed.items():
            yield ServerCommand(Command.SET_DEST, real, forwarding)

    def _yield_removals(self, parts: DeltaByKind, *, drain: bool) -> Iterator[ServerCommand]:
        servers = parts.servers.removed
        now = self._clock()
        for real, forwarding in parts.reals.removed.items():
            if real.server in servers:
                continue  # the kernel deletes it with its virtual server
            if drain and self._terminations.may_finish(real):
                self._terminating.begin_draining(real, now, self._terminations.seconds_for(real))
                if forwarding.weight:
                    yield ServerCommand(Command.SET_DEST, real, forwarding._replace(weight=0))
            else:
                yield ServerCommand(Command.DEL_DEST, real, forwarding)
        self._terminating.forget_servers(servers)
        for server, scheduling in servers.items():
            yield ServerCommand(Command.DEL_SERVICE, server, scheduling)

    def _read_objects(self, *, adopt: bool = False) -> Objects:
        objects: Objects = self._sets.read()
        owned = self._build_ownership_test(objects)
        services = self._servers.read_services()
        ours = {
            key
            for key in services
            if (key in self._terminations or owned(key)) and not self.is_excluded(key)
            if key not in self._draining
        }
        objects = {key: value for key, value in objects.items() if key not in self._draining}
        objects.update((key, services[key][0]) for key in ours)
        rows = list(self._servers.read_rows(ours))
        self.resting = include_resting_servers(rows)
        for row in rows:
            if row.forwarding.weight or not (adopt or row.real in self._terminating):
                objects[row.real] = row.forwarding
            elif row.real not in self._terminating:
                self._terminating.begin_draining(row.real, self._clock(), self._terminations.seconds_for(row.real))
        bound, routed = self._device.addresses(), set[Address]()
        if marks := self._policy_routing.list_marks():  # without marks no packet reaches the routes
            objects.update((MarkRule(mark), None) for mark in marks)
            routed.update(self._policy_routing.list_routes())
        self._lingering |= routed.intersection(bound) if adopt else set()
        objects.update((VipRoute(address), None) for address in routed)
        objects.update((Vip(address), None) for address in bound if address not in self._lingering)
        objects.update(self._read_receivers(objects, adopt=adopt))
        chains, rules = self._tool.read(self._chains)
        return objects | dict[ObjectKey, Object](chains.items()) | dict[ObjectKey, Object](rules.items())

    def _read_receivers(self, objects: Objects, *, adopt: bool) -> Iterator[tuple[Receiver, Method]]:
        """Read the Pods that receive for VIPs, except those that do so for open connections only."""
        mark, entries = choose_routing_mark(self.marks.avoid), objects.items()
        vips = {
            key.element.address
            for key, value in entries
            if isinstance(key, SetEntry) and key.set == self._direct and value == mark
        }
        draining = {(self._find_vip(each.server), each.address) for each in self._terminating} if vips else ()
        for (pod, vip), how in self._pods.read().items() if vips else ():
            receiver = Receiver(pod, vip)
            if adopt and (vip, pod) in draining:
                self._receiving.add(receiver)
            if vip in vips and receiver not in self._receiving:
                yield receiver, how

    def _build_ownership_test(self, objects: Objects) -> Callable[[VirtualServer], bool]:
        places: set[tuple[int, Address, int]] = set()
        ports: set[tuple[int, int]] = set()
        for which, element in owning_entries(self.family, objects):
            if which in PORT_PROTOCOLS:
                ports.add((PORT_PROTOCOLS[which], element.port))
            else:
                places.add((element.protocol, element.address, element.port))
        marking = {set_name(self.family, which) for which in MARKING}
        marks = {
            value
            for key, value in objects.items()
            if isinstance(key, SetEntry) and key.set in marking and isinstance(value, int)
        }

        def test(server: VirtualServer) -> bool:
            if server.mark:
                return is_among(server.mark, marks)
            return server[:3] in places or (server.protocol, server.port) in ports

        return test
