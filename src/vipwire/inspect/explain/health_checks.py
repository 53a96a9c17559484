"""Health checks of Services: what vipwire itself answers at this node's addresses, beside all frontends.

A frontend comes first: the kernel translates its packets before they could come to a socket of this node.
"""

from collections.abc import Iterator

from vipwire.inspect.node.situation import Situation
from vipwire.model.net import Protocol, is_loopback
from vipwire.plan.plan import joint_health_check
from vipwire.plan.resolve import Packet
from vipwire.proxy.serve.service_health import ServiceHealthCheck
from vipwire.proxy.sync.node_plan import health_check_prefixes

Check = tuple[int, ServiceHealthCheck]
"""A port, and what is answered there."""


def health_checks(situation: Situation) -> Iterator[Check]:
    """List the health checks that the plans ask for."""
    for name in sorted({name for side in situation.sides for name in side.plans}):
        check = joint_health_check(side.plans.get(name) for side in situation.sides)
        if check is not None:
            yield check.port, ServiceHealthCheck(name, check.local_endpoints)


def answers_checks(situation: Situation, packet: Packet) -> bool:
    """Report whether health checks are answered where a packet goes, if no rule keeps it from there."""
    here = packet.to_node or packet.destination in situation.vips
    if not here or (is_loopback(packet.destination) and not packet.from_node):
        return False
    chosen = health_check_prefixes(situation.config)
    return not chosen or any(packet.destination in prefix for prefix in chosen)


def checks_at(situation: Situation, packet: Packet) -> tuple[ServiceHealthCheck, ...]:
    """Return for whom vipwire answers a packet that no frontend takes.

    Of several Services that ask for one port, which only manifests can, the last that came to it is answered for.
    """
    if packet.protocol is not Protocol.TCP or not answers_checks(situation, packet):
        return ()
    return tuple(check for port, check in health_checks(situation) if port == packet.port)
