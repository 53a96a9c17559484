"""An entrance of a Service port: a frontend at its own port, or at a port range around it. Pure.

A range has one front, and one rule for each chain. Connection tracking tells the relay the client's port. An endpoint
that keeps that port has port 0 among the front's shares.
"""

from collections.abc import Iterator
from typing import NamedTuple

from vipwire.model.net import Address, Protocol
from vipwire.modes.xtables.words import format_ports
from vipwire.plan.node import NodePlan
from vipwire.plan.plan import Frontend, RangeFrontend, ServicePlan, Target
from vipwire.relay.messages import SocketAddress

_HERE = " (from this node)"


class Entrance(NamedTuple):
    """A frontend, at its port or, with `wide`, at that range."""

    frontend: Frontend
    wide: RangeFrontend | None = None

    @property
    def dport(self) -> str:
        return format_ports(*self.span) if self.wide is not None else str(self.frontend.key.port)

    @property
    def span(self) -> tuple[int, int]:
        """The first and the last port of a range; (0, 0) for a single port."""
        return (self.wide.key.first, self.wide.key.last) if self.wide is not None else (0, 0)

    def name_front(self, *, here: bool = False) -> str:
        """Name the front; `here`: the separate front of clients on this node."""
        key = self.wide.key if self.wide is not None else self.frontend.key
        return f"{self.frontend.port_name} {self.frontend.kind.value} {key}{_HERE if here else ''}"

    def find_place(self, target: Target) -> SocketAddress:
        """Return an endpoint's place; port 0 if the endpoint keeps the client's port."""
        return self._build_socket_address(target.address, target.port)

    def list_serving_places(self) -> tuple[SocketAddress, ...]:
        """Return the places from which old UDP flows may still get answers."""
        return tuple(self._build_socket_address(*each) for each in sorted(self.frontend.serving))

    def _build_socket_address(self, address: Address, port: int) -> SocketAddress:
        return SocketAddress(address, 0 if self.wide is not None and port == self.frontend.key.port else port)


def list_entrances(plan: ServicePlan) -> Iterator[Entrance]:
    yield from map(Entrance, plan.frontends)
    yield from (Entrance(wide.frontend, wide) for wide in plan.ranges)


def is_never_answered(node: NodePlan, entrance: Entrance) -> bool:
    """Report whether the relay cannot serve a UDP range, because the node has no address.

    Rules then redirect to the interface's address. The relay looks a datagram's port up by its arrival address, which
    a socket at the wildcard address does not tell.
    """
    return entrance.wide is not None and node.address is None and entrance.frontend.key.protocol is Protocol.UDP
