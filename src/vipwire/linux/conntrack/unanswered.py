"""Finds the flows that wait for an answer of an endpoint that was ejected. Pure.

DNAT is decided by the first packet of a flow, and the kernel remembers a SYN without an answer for two minutes. So
a client that repeats it, or begins anew from the same port, would meet the silent endpoint again. Without the flow
its next packet meets the rules, which choose among the others. A flow that was answered is left alone.
"""

from collections.abc import Iterable, Iterator

from vipwire.linux.netlink.conntrack import STATUS_SEEN_REPLY, Flow
from vipwire.model.net import Address, Family, Protocol, family_of
from vipwire.model.value import Value
from vipwire.plan.plan import Forward, ServicePlan
from vipwire.plan.planner import PlanChange

Place = tuple[int, Address, int]
"""Protocol, address and port of an endpoint, as a flow has them."""


class Unanswered(Value, frozen=True):
    """Decides which flows to these endpoints are to go. `destination_ports` are the frontends'; None for any."""

    endpoints: frozenset[Place]
    destination_ports: frozenset[int] | None = None

    def __call__(self, flow: Flow) -> bool:
        """Report whether this flow came by way of a Service and has no answer."""
        return (
            not flow.status & STATUS_SEEN_REPLY
            and not flow.zone
            and (flow.protocol, flow.reply_source, flow.reply_source_port) in self.endpoints
            and (flow.reply_source, flow.reply_source_port) != (flow.destination, flow.destination_port)
        )

    def families(self) -> tuple[Family, ...]:
        """Name the families in which there can be such flows."""
        present = {family_of(address) for _, address, _ in self.endpoints}
        return tuple(family for family in Family if family in present)

    def protocols(self) -> tuple[Protocol, ...]:
        """Name their protocols."""
        return tuple(sorted({Protocol(protocol) for protocol, _, _ in self.endpoints}))

    def ports(self) -> frozenset[int] | None:
        """Name the destination ports that they can have; None for any."""
        return self.destination_ports


def waiting_in_vain(changes: Iterable[PlanChange]) -> Unanswered:
    """Collect what Services that want ejection have left out of their pools."""
    endpoints: set[Place] = set()
    ports: set[int] = set()
    ranges = False
    for old, new in changes:
        if old is not None and new is not None and new.wishes.eject_after is not None:
            gone = _used(old) - _used(new)
            endpoints |= gone
            ranges |= bool(gone and old.ranges)
            ports |= {frontend.key.port for frontend in old.frontends} if gone else set()
    return Unanswered(frozenset(endpoints), None if ranges else frozenset(ports))


def _used(plan: ServicePlan) -> frozenset[Place]:
    return frozenset(_places(plan))


def _places(plan: ServicePlan) -> Iterator[Place]:
    """Yield the places that new connections go to, wherever they come from."""
    for frontend in (*plan.frontends, *(wide.frontend for wide in plan.ranges)):
        for action in (frontend.action, frontend.short_circuit):
            if isinstance(action, Forward):
                protocol = int(frontend.key.protocol)
                yield from ((protocol, target.address, target.port) for target in action.pool)
