"""One way into a Service port: a frontend at its own port, or at a range of ports around it. Pure.

A range is one front and one rule for each chain, whatever its size. Connection tracking tells the relay which port a
client has asked for. An endpoint that keeps that port stands among the front's shares with port 0.
"""

from collections.abc import Iterator
from typing import NamedTuple

from vipwire.model.net import Address, Protocol
from vipwire.modes.xtables.words import ports
from vipwire.plan.node import NodePlan
from vipwire.plan.plan import Frontend, RangeFrontend, ServicePlan, Target
from vipwire.relay.messages import Place

_HERE = " (from this node)"


class Entrance(NamedTuple):
    """A frontend, at its port or, where `wide` is given, at that range."""

    frontend: Frontend
    wide: RangeFrontend | None = None

    @property
    def dport(self) -> str:
        """The ports as rules match them."""
        return ports(*self.span) if self.wide is not None else str(self.frontend.key.port)

    @property
    def span(self) -> tuple[int, int]:
        """The first and the last port of a range; (0, 0) for a single port."""
        return (self.wide.key.first, self.wide.key.last) if self.wide is not None else (0, 0)

    def front(self, *, here: bool = False) -> str:
        """Name its front; `here`: that of clients on this node, where they have one of their own."""
        key = self.wide.key if self.wide is not None else self.frontend.key
        return f"{self.frontend.port_name} {self.frontend.kind.value} {key}{_HERE if here else ''}"

    def place(self, target: Target) -> Place:
        """Name where an endpoint is reached; with port 0 where it keeps the client's."""
        return self._kept(target.address, target.port)

    def serving(self) -> tuple[Place, ...]:
        """Name where old UDP flows may still be answered."""
        return tuple(self._kept(*each) for each in sorted(self.frontend.serving))

    def _kept(self, address: Address, port: int) -> Place:
        return Place(address, 0 if self.wide is not None and port == self.frontend.key.port else port)


def entrances(plan: ServicePlan) -> Iterator[Entrance]:
    """Yield every way into a Service's ports."""
    yield from map(Entrance, plan.frontends)
    yield from (Entrance(wide.frontend, wide) for wide in plan.ranges)


def asks_in_vain(node: NodePlan, entrance: Entrance) -> bool:
    """Report whether a range cannot be served: rules lead to whatever address the interface has.

    A datagram's port is found by the address at which it arrives, and a socket at any address does not tell that.
    """
    return entrance.wide is not None and node.address is None and entrance.frontend.key.protocol is Protocol.UDP
