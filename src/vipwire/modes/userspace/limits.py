"""Lists what a Service may ask for that userspace mode lacks, and what is done instead. Pure."""

from collections.abc import Iterator
from typing import Final

from vipwire.model.net import Protocol
from vipwire.model.problem import Problem
from vipwire.modes.lacks import only_in_ipvs
from vipwire.modes.userspace.entrance import Entrance
from vipwire.modes.userspace.settings import Bind, Choices
from vipwire.plan.annotations import PREFIX, Lack, field_of, in_vain
from vipwire.plan.node import NodePlan
from vipwire.plan.plan import ServicePlan

_RESTS: Final = "a relay has its own rule: after 3 failures in a row an endpoint rests for 10 s"
LACKS: Final = (
    *only_in_ipvs("a relay makes a connection of its own to the endpoint"),
    *(Lack(wish, _RESTS) for wish in ("eject_after", "eject_for", "eject_at_most", "eject_udp")),
)
"""Whatever the operator has chosen."""
_WITHOUT_RULES: Final = (
    Lack("port_ranges", "needs rules, and --userspace-bind does without: only the port itself is served"),
)


def shortcomings(node: NodePlan, choices: Choices, plan: ServicePlan) -> Iterator[Problem]:
    """Compare what a plan asks for with what listeners and rules can do."""
    lacks = LACKS if choices.bind is Bind.RULES else (*LACKS, *_WITHOUT_RULES)
    yield from in_vain(plan.name, plan.wishes, lacks)
    if any(asks_in_vain(node, Entrance(wide.frontend, wide)) for wide in plan.ranges):
        why = "of UDP needs an address of this node, which has none of the family: only the port itself is served"
        yield Problem("Service", plan.name, field_of(f"{PREFIX}port-range"), why)


def asks_in_vain(node: NodePlan, entrance: Entrance) -> bool:
    """Report whether a range cannot be served: rules lead to whatever address the interface has.

    A datagram's port is found by the address at which it arrives, and a socket at any address does not tell that.
    """
    return entrance.wide is not None and node.address is None and entrance.frontend.key.protocol is Protocol.UDP
