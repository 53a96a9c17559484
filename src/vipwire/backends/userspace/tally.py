"""From the relay's counters, which are by front, to those of Service ports and endpoints. Pure."""

from collections.abc import Iterable

from vipwire.backends.userspace.messages import Counted
from vipwire.backends.userspace.render import front_name
from vipwire.model.names import ServicePortName
from vipwire.model.net import Address
from vipwire.plan.plan import ServicePlan
from vipwire.reconcile.counting import Count, Counts, EndpointName, Open

_NOTHING = Count(connections=0, bytes=0, reply_bytes=0)


def tally(plans: Iterable[ServicePlan], counted: Counted | None, *, endpoints: bool = True) -> Counts:
    """Sum up. Bytes are those of streams and datagrams, without headers; packets a relay does not see."""
    ports: dict[ServicePortName, Count] = {}
    each: dict[EndpointName, Count] = {}
    opened: dict[EndpointName, Open] = {}
    listeners = counted.listeners if counted is not None else {}
    for plan in plans:
        for frontend in plan.frontends:
            for here in (False, True):
                for found in listeners.get(front_name(frontend, here=here), ()):
                    count = Count(connections=found.connections, bytes=found.sent, reply_bytes=found.received)
                    name = EndpointName(frontend.port_name, Address(found.place.address), found.place.port)
                    ports[name.port_name] = ports.get(name.port_name, _NOTHING).plus(count)
                    each[name] = each.get(name, _NOTHING).plus(count)
                    opened[name] = Open(opened.get(name, Open(0, 0)).active + found.open, 0)
    return Counts(ports, each if endpoints else {}, open=opened if endpoints else {})
