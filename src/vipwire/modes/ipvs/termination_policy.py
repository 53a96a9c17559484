"""Decides which virtual servers are ours, and which of their real servers terminate gracefully, for how long.

One of TCP may: its connections go on. One of UDP may as long as its endpoint serves, for instance while it
terminates; a flow to one that does not is better taken elsewhere at once. SCTP's go at once, as kube-proxy has it.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from vipwire.linux.netlink.ipvs import RealServer, VirtualServer
from vipwire.model.net import Address, Protocol
from vipwire.modes.ipvs.marks import is_among
from vipwire.modes.ipvs.objects.names import Entry, Object, ObjectKey
from vipwire.plan.plan import RangeFrontend, ServicePlan

_DATAGRAMS = frozenset({Protocol.UDP, Protocol.SCTP})


@dataclass(slots=True)
class TerminationPolicy:
    """The termination time of each rendered Service, until its virtual servers go."""

    _servers: set[VirtualServer] = field(default_factory=set)
    _seconds: dict[VirtualServer, int] = field(default_factory=dict)
    _serving: dict[VirtualServer, frozenset[tuple[Address, int]]] = field(default_factory=dict)

    def __contains__(self, server: VirtualServer) -> bool:
        return server in self._servers

    def note(self, plan: ServicePlan, own: Mapping[ObjectKey, Object], seconds: int | None) -> None:
        """Store a Service and its objects. `seconds` is how long its connections may go on at most."""
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
            if isinstance(key, Entry) and isinstance(mark, int) and mark and key.element.protocol in _DATAGRAMS
        }
        serving: frozenset[tuple[Address, int]] = frozenset().union(
            *(each.serving for each in plan.frontends), *map(_left_alone, plan.ranges)
        )
        for server in servers:
            if is_among(server.mark, marks) if server.mark else server.protocol in _DATAGRAMS:
                self._serving[server] = serving

    def committed(self, added: Iterable[ObjectKey], removed: Iterable[ObjectKey]) -> None:
        """Update the virtual servers by a commit; those that are gone are forgotten."""
        self._servers.update(key for key in added if isinstance(key, VirtualServer))
        for key in removed:
            if isinstance(key, VirtualServer):
                self._servers.discard(key)
                self._seconds.pop(key, None)
                self._serving.pop(key, None)

    def may_finish(self, real: RealServer) -> bool:
        """Report whether a real server that leaves may finish what it carries."""
        serving = self._serving.get(real.server)
        if serving is not None:
            return (real.address, real.port) in serving
        return real.server.protocol not in _DATAGRAMS

    def seconds(self, real: RealServer) -> int | None:
        """Return how long at most; None if until the last connection has ended."""
        return self._seconds.get(real.server)


def _left_alone(wide: RangeFrontend) -> frozenset[tuple[Address, int]]:
    """Name the endpoints of a range that keep the client's port as real servers have them: with port 0."""
    return frozenset((address, 0) for address, port in wide.frontend.serving if port == wide.frontend.key.port)
