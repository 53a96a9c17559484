"""Converts the counters of the relay and of the rules to counts of Service ports. Pure."""

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from vipwire.model.net import Address
from vipwire.modes.userspace.entrance import list_entrances
from vipwire.modes.userspace.names import (
    CHAINS,
    FILTER,
    NO_SUCH_PORT,
    NO_SUCH_SERVICE,
    NODEPORT_NON_LOCAL,
    OTHER_SOURCES,
)
from vipwire.modes.xtables.counted import counted_rules
from vipwire.plan.plan import FrontendKind, Reason, ServicePlan
from vipwire.reconcile.counts import Counts, EndpointName, Measure, Owner, Refusal
from vipwire.relay.messages import RelayCounters

_REFUSAL: Final = re.compile(r'(?:.*?-p (\w+) )?.*?--comment "([^"]*)" .*-j (?:DROP|KUBE-PORTALS-REFUSE)')
_REFUSING: Final = frozenset(CHAINS[FILTER]) - {NODEPORT_NON_LOCAL}
_REASONS: Final = {
    Reason.NO_ENDPOINTS: Refusal.NO_ENDPOINTS,
    Reason.NO_LOCAL_ENDPOINTS: Refusal.NO_LOCAL_ENDPOINTS,
}


def count_by_service(
    plans: Sequence[ServicePlan], relay: RelayCounters | None, saved: str, *, endpoints: bool
) -> Counts:
    """Count the bytes that the relay carried, without headers; a relay sees no packets.

    `saved` is the output of `iptables-save -c`; a rule's comment names the Service whose packets it rejects or drops.
    """
    counts = Counts(endpoints=endpoints)
    listeners = relay.listeners if relay is not None else {}
    for entrance in (each for plan in plans for each in list_entrances(plan)):
        frontend = entrance.frontend
        for found in (each for here in (False, True) for each in listeners.get(entrance.name_front(here=here), ())):
            port = found.place.port or frontend.key.port  # an endpoint that keeps the client's port has port 0
            name = EndpointName(frontend.port_name, Address(found.place.address), port)
            counts.add_endpoint(Measure.CONNECTIONS, name, found.connections)
            counts.add_endpoint(Measure.BYTES, name, found.sent)
            counts.add_endpoint(Measure.REPLY_BYTES, name, found.received)
            if endpoints:
                counts.add(Measure.ACTIVE, name, found.open)
                counts.add(Measure.INACTIVE, name, 0)
    meant = dict(_list_comments(plans))
    for packets, chain, rule in counted_rules(saved):
        refusing = _REFUSAL.match(rule) if chain in _REFUSING else None
        refusal = meant.get((refusing[1] or "", refusing[2])) if refusing else None
        if refusal is not None:
            counts.add(*refusal, packets)
    return counts


def _list_comments(plans: Iterable[ServicePlan]) -> Iterator[tuple[tuple[str, str], tuple[Refusal, Owner]]]:
    yield ("", NO_SUCH_SERVICE), (Refusal.UNALLOCATED_CLUSTER_IP, None)
    for plan in plans:
        yield ("", f"{plan.name} {NO_SUCH_PORT}"), (Refusal.UNDEFINED_PORT, None)
        for frontend in plan.frontends:
            name, limited = frontend.port_name, Refusal.SOURCE_RANGE
            protocol = name.protocol.label
            for reason, refusal in _REASONS.items():
                yield (protocol, f"{name} {reason.value}"), (refusal, name)
            if frontend.kind is FrontendKind.NODE_PORT:
                limited = Refusal.NODE_PORT_SOURCE_RANGE
            yield (protocol, f"{name} {OTHER_SOURCES} to the {frontend.kind.value}"), (limited, name)
