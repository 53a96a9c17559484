"""Makes counts of Service ports out of the counters of the relay and of the rules. Pure."""

import re
from collections.abc import Iterable, Iterator
from typing import Final, TypeAlias

from vipwire.model.names import ServicePortName
from vipwire.model.net import Address
from vipwire.modes.userspace.entrance import entrances
from vipwire.modes.userspace.names import CHAINS, FILTER, NODEPORT_NON_LOCAL
from vipwire.modes.userspace.rule_words import NO_SUCH_PORT, NO_SUCH_SERVICE, OTHER_SOURCES
from vipwire.modes.xtables.save import counted_rules
from vipwire.plan.plan import FrontendKind, Reason, ServicePlan
from vipwire.reconcile.counts import Count, Counts, EndpointName, OpenConnections, Refusal
from vipwire.relay.messages import RelayCounters

Refused: TypeAlias = tuple[Refusal, ServicePortName | None]

_REFUSAL: Final = re.compile(r'(?:.*?-p (\w+) )?.*?--comment "([^"]*)" .*-j (?:DROP|KUBE-PORTALS-REFUSE)')
_REFUSING: Final = frozenset(CHAINS[FILTER]) - {NODEPORT_NON_LOCAL}
_REASONS: Final = {
    Reason.NO_ENDPOINTS: Refusal.NO_ENDPOINTS,
    Reason.NO_LOCAL_ENDPOINTS: Refusal.NO_LOCAL_ENDPOINTS,
}
_NOTHING: Final = Count(connections=0, bytes=0, reply_bytes=0)


def service_counts(plans: Iterable[ServicePlan], counted: RelayCounters | None, *, endpoints: bool = True) -> Counts:
    """Sum up. Bytes are those of streams and datagrams, without headers; packets a relay does not see."""
    ports: dict[ServicePortName, Count] = {}
    each: dict[EndpointName, Count] = {}
    opened: dict[EndpointName, OpenConnections] = {}
    listeners = counted.listeners if counted is not None else {}
    for plan in plans:
        for entrance in entrances(plan):
            frontend = entrance.frontend
            for here in (False, True):
                for found in listeners.get(entrance.front(here=here), ()):
                    count = Count(connections=found.connections, bytes=found.sent, reply_bytes=found.received)
                    port = found.place.port or frontend.key.port  # one that keeps the client's has the Service's own
                    name = EndpointName(frontend.port_name, Address(found.place.address), port)
                    ports[name.port_name] = ports.get(name.port_name, _NOTHING).plus(count)
                    each[name] = each.get(name, _NOTHING).plus(count)
                    opened[name] = OpenConnections(opened.get(name, OpenConnections(0, 0)).active + found.open, 0)
    return Counts(ports, each if endpoints else {}, open=opened if endpoints else {})


def refusals(plans: Iterable[ServicePlan], saved: str) -> dict[Refused, int]:
    """Sum up what the rules have refused and dropped, by what their comments say; `saved` is of iptables-save -c."""
    meant = dict(_comments(plans))
    found: dict[Refused, int] = {}
    for packets, chain, rule in counted_rules(saved):
        refusing = _REFUSAL.match(rule) if chain in _REFUSING else None
        reason = meant.get((refusing[1] or "", refusing[2])) if refusing else None
        if reason is not None:
            found[reason] = found.get(reason, 0) + packets
    return found


def _comments(plans: Iterable[ServicePlan]) -> Iterator[tuple[tuple[str, str], Refused]]:
    """Yield what the comment of a rule for a protocol means."""
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
