"""Graceful termination: keeps a removed real server with weight 0 until its connections have ended.

Pure bookkeeping; `now` is seconds of a monotonic clock. Each look costs a kernel request per virtual server: servers
that begin to drain get an early look of their own, and looks at all servers take at most a twentieth of the time.

TCP real servers drain; UDP ones only while the endpoint serves; SCTP ones go at once, as in kube-proxy.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from vipwire.linux.netlink.ipvs import RealServer, Scheduling, VirtualServer
from vipwire.model.net import Address, Family, Protocol
from vipwire.modes.ipvs.marks import is_among
from vipwire.modes.ipvs.objects.names import MARKING, Object, ObjectKey, Set, SetEntry, set_name
from vipwire.modes.ipvs.objects.parts import DeltaByKind
from vipwire.plan.plan import Action, Forward, Frontend, RangeFrontend, ServicePlan

LOOK_SECONDS = 1.0


@dataclass(slots=True)
class GracefulTermination:
    """The draining real servers, each with its deadline (None: until its last connection has ended)."""

    _until: dict[VirtualServer, dict[RealServer, float | None]] = field(default_factory=dict)
    _begun: dict[VirtualServer, None] = field(default_factory=dict)
    _look_at: float = 0.0

    def __contains__(self, real: RealServer) -> bool:
        return real in self._until.get(real.server, ())

    def __iter__(self) -> Iterator[RealServer]:
        return (real for reals in self._until.values() for real in reals)

    def begin_draining(self, real: RealServer, now: float, seconds: int | None) -> None:
        """Start to drain a real server, for at most `seconds`."""
        self._until.setdefault(real.server, {}).setdefault(real, None if seconds is None else now + seconds)
        self._begun[real.server] = None

    def end_draining(self, real: RealServer) -> None:
        if reals := self._until.get(real.server):
            reals.pop(real, None)
            if not reals:
                self.forget_servers((real.server,))

    def forget_servers(self, servers: Iterable[VirtualServer]) -> None:
        for server in servers:
            self._until.pop(server, None)
            self._begun.pop(server, None)

    def due(self, now: float) -> float | None:
        """Return the seconds until the next look; None if nothing drains."""
        if self._begun:
            return 0.0
        return max(0.0, self._look_at - now) if self._until else None

    def servers_to_check(self, now: float) -> Mapping[VirtualServer, tuple[RealServer, ...]]:
        """Return the real servers to look at now, by virtual server: all draining ones, or the new ones."""
        wanted = self._until if now >= self._look_at else self._begun
        return {server: tuple(self._until[server]) for server in wanted}

    def has_expired(self, real: RealServer, now: float) -> bool:
        until = self._until.get(real.server, {}).get(real)
        return until is not None and now >= until

    def record_look(self, began: float, now: float) -> None:
        """Note that the result of `servers_to_check` at time `began` has been looked at."""
        if began >= self._look_at:
            self._look_at = now + max(LOOK_SECONDS, 20 * (now - began))
        self._begun.clear()


_FOR_INSIDE: Final = frozenset({Set.DIRECT_RETURN, Set.RANGES})


class DrainingMarks:
    """The draining virtual servers of marks that their frontends lost, until their open connections have ended.

    A new traffic policy can take a pool or a mark from a frontend, and IPVS drops packets of connections without a
    virtual server. So vipwire sets the weights to 0. An element of a set that no rule reads marks the virtual server
    as vipwire's across restarts. Each has its scheduling and this element.
    """

    def __init__(self, family: Family, terminating: GracefulTermination) -> None:
        self._terminating = terminating
        self._sets = {set_name(family, which): which for which in MARKING}
        self._names = {True: set_name(family, Set.RANGES), False: set_name(family, Set.RANGES_LOCAL)}
        self._entries: dict[VirtualServer, SetEntry] = {}
        self._scheduling: dict[VirtualServer, Scheduling] = {}

    def __contains__(self, key: ObjectKey) -> bool:
        return key in self._entries or key in self._entries.values()

    def clear(self) -> None:
        self._entries.clear()
        self._scheduling.clear()

    def reuse_marks(self, parts: DeltaByKind) -> None:
        """Turn additions of virtual servers that still drain into changes."""
        for server in [each for each in parts.servers.added if each in self._entries]:
            parts.servers.changed[server] = (self._scheduling[server], parts.servers.added.pop(server))
            self._forget_mark(server, parts)

    def begin_draining(self, parts: DeltaByKind, left: Mapping[ObjectKey, Object], masquerade: int) -> None:
        """Take the virtual servers that should drain out of the removals."""
        drains = {real.server for real in parts.reals.removed} | {real.server for real in self._terminating}
        gone = [
            (entry, mark)
            for entry, mark in parts.entries.removed.items()
            if mark and self._is_still_served(entry, parts, left)
        ]
        gone += [(entry, old) for entry, (old, _) in parts.entries.changed.items() if entry.set in self._sets]
        # The first port of a range is a frontend, too: keep only marks of the range.
        for entry, mark in sorted(gone, key=lambda each: each[0].set not in self._names.values()):
            named = SetEntry(self._names[self._sets[entry.set] in _FOR_INSIDE], entry.element)
            used = named in left and named not in parts.entries.removed
            if used or named in parts.entries.added:
                continue
            for each in (mark, mark ^ masquerade):
                server = VirtualServer(0, Address(b""), 0, each)
                if server in parts.servers.removed and server in drains:
                    self._keep_mark(server, named, mark, parts)

    def _is_still_served(self, entry: SetEntry, parts: DeltaByKind, left: Mapping[ObjectKey, Object]) -> bool:
        """Report whether a frontend that loses this mark is still served by other means."""
        place = entry.element
        server = VirtualServer(place.protocol, place.address, place.port)
        others = (SetEntry(name, place) for name in self._sets)
        return entry.set in self._sets and (
            (server in left and server not in parts.servers.removed)
            or any(
                each in parts.entries.added or (each in left and each not in parts.entries.removed) for each in others
            )
        )

    def _keep_mark(self, server: VirtualServer, named: SetEntry, mark: int, parts: DeltaByKind) -> None:
        self._scheduling[server], self._entries[server] = parts.servers.removed.pop(server), named
        parts.entries.removed.pop(named, None)
        parts.entries.added[named] = mark

    def _forget_mark(self, server: VirtualServer, parts: DeltaByKind) -> None:
        entry = self._entries.pop(server)
        del self._scheduling[server]
        if entry not in self._entries.values() and entry not in parts.entries.added:
            parts.entries.removed[entry] = 0

    def take_ended(self) -> DeltaByKind:
        """Return the removals of virtual servers whose connections have ended, and forget them."""
        parts, busy = DeltaByKind(), {real.server for real in self._terminating}
        for server in [each for each in self._entries if each not in busy]:
            parts.servers.removed[server] = self._scheduling[server]
            self._forget_mark(server, parts)
        return parts


_DATAGRAMS = frozenset({Protocol.UDP, Protocol.SCTP})


@dataclass(slots=True)
class TerminationPolicy:
    """vipwire's virtual servers, each with its termination time."""

    _servers: set[VirtualServer] = field(default_factory=set)
    _seconds: dict[VirtualServer, int] = field(default_factory=dict)
    _serving: dict[VirtualServer, frozenset[tuple[Address, int]]] = field(default_factory=dict)

    def __contains__(self, server: VirtualServer) -> bool:
        return server in self._servers

    def record_plan(self, plan: ServicePlan, own: Mapping[ObjectKey, Object], seconds: int | None) -> None:
        """Store a Service and its objects; `seconds` limits the termination of its connections."""
        servers = [key for key in own if isinstance(key, VirtualServer)]
        self._servers.update(servers)
        for server in servers:
            if seconds is None:
                self._seconds.pop(server, None)
            else:
                self._seconds[server] = seconds
        marks = {
            mark
            for key, mark in own.items()
            if isinstance(key, SetEntry) and isinstance(mark, int) and mark and key.element.protocol in _DATAGRAMS
        }
        serving: frozenset[tuple[Address, int]] = frozenset().union(
            *(each.serving for each in plan.frontends), *map(_find_kept_ports, plan.ranges)
        )
        for server in servers:
            if is_among(server.mark, marks) if server.mark else server.protocol in _DATAGRAMS:
                self._serving[server] = serving

    def record_commit(self, added: Iterable[ObjectKey], removed: Iterable[ObjectKey]) -> None:
        self._servers.update(key for key in added if isinstance(key, VirtualServer))
        for key in removed:
            if isinstance(key, VirtualServer):
                self._servers.discard(key)
                self._seconds.pop(key, None)
                self._serving.pop(key, None)

    def may_finish(self, real: RealServer) -> bool:
        """Report whether a real server that leaves may keep its connections."""
        serving = self._serving.get(real.server)
        if serving is not None:
            return (real.address, real.port) in serving
        return real.server.protocol not in _DATAGRAMS

    def seconds_for(self, real: RealServer) -> int | None:
        """Return the termination time; None: until the last connection has ended."""
        return self._seconds.get(real.server)


def keeps_server(frontend: Frontend, action: Action) -> bool:
    """Report whether a frontend keeps its virtual server: it has endpoints, or may have connections of draining ones.

    Local packets meet IPVS before the filter rules, and IPVS without real servers answers UDP with EPERM. The rules
    refuse better, so a UDP virtual server goes when no endpoint serves any more.
    """
    return isinstance(action, Forward) or frontend.key.protocol is Protocol.TCP or bool(frontend.serving)


def _find_kept_ports(wide: RangeFrontend) -> frozenset[tuple[Address, int]]:
    """Return a range's endpoints that keep the client's port, as real servers with port 0."""
    return frozenset((address, 0) for address, port in wide.frontend.serving if port == wide.frontend.key.port)
