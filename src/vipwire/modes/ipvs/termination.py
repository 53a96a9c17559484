"""Graceful termination: keeps a removed real server with weight 0 until its connections have ended.

Pure bookkeeping; `now` is seconds of a monotonic clock. Each look costs a kernel request per virtual server: servers
that begin to drain get an early look of their own, and looks at all servers take at most a twentieth of the time.

TCP real servers drain; UDP ones only while the endpoint serves; SCTP ones go at once, as in kube-proxy.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from vipwire.linux.netlink.ipvs import RealServer, VirtualServer
from vipwire.model.net import Address, Protocol
from vipwire.modes.ipvs.marks import is_among
from vipwire.modes.ipvs.objects.names import Object, ObjectKey, SetEntry
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

    def begin(self, real: RealServer, now: float, seconds: int | None) -> None:
        """Start to drain a real server, for at most `seconds`."""
        self._until.setdefault(real.server, {}).setdefault(real, None if seconds is None else now + seconds)
        self._begun[real.server] = None

    def end(self, real: RealServer) -> None:
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

    def servers(self, now: float) -> Mapping[VirtualServer, tuple[RealServer, ...]]:
        """Return the real servers to look at now, by virtual server: all draining ones, or the new ones."""
        wanted = self._until if now >= self._look_at else self._begun
        return {server: tuple(self._until[server]) for server in wanted}

    def expired(self, real: RealServer, now: float) -> bool:
        until = self._until.get(real.server, {}).get(real)
        return until is not None and now >= until

    def record_look(self, began: float, now: float) -> None:
        """Note that the result of `servers` at time `began` has been looked at."""
        if began >= self._look_at:
            self._look_at = now + max(LOOK_SECONDS, 20 * (now - began))
        self._begun.clear()


_DATAGRAMS = frozenset({Protocol.UDP, Protocol.SCTP})


@dataclass(slots=True)
class TerminationPolicy:
    """vipwire's virtual servers, each with its termination time."""

    _servers: set[VirtualServer] = field(default_factory=set)
    _seconds: dict[VirtualServer, int] = field(default_factory=dict)
    _serving: dict[VirtualServer, frozenset[tuple[Address, int]]] = field(default_factory=dict)

    def __contains__(self, server: VirtualServer) -> bool:
        return server in self._servers

    def note(self, plan: ServicePlan, own: Mapping[ObjectKey, Object], seconds: int | None) -> None:
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
            *(each.serving for each in plan.frontends), *map(_left_alone, plan.ranges)
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

    def seconds(self, real: RealServer) -> int | None:
        """Return the termination time; None: until the last connection has ended."""
        return self._seconds.get(real.server)


def keeps_server(frontend: Frontend, action: Action) -> bool:
    """Report whether a frontend keeps its virtual server: it has endpoints, or may have connections of draining ones.

    Local packets meet IPVS before the filter rules, and IPVS without real servers answers UDP with EPERM. The rules
    refuse better, so a UDP virtual server goes when no endpoint serves any more.
    """
    return isinstance(action, Forward) or frontend.key.protocol is Protocol.TCP or bool(frontend.serving)


def _left_alone(wide: RangeFrontend) -> frozenset[tuple[Address, int]]:
    """Return a range's endpoints that keep the client's port, as real servers with port 0."""
    return frozenset((address, 0) for address, port in wide.frontend.serving if port == wide.frontend.key.port)
