"""Adds what the programs have counted to what nftables' rules have: no connection is counted by both. Pure.

The programs count where a socket is given an endpoint; rules count what connection tracking translates, which a
direct connection is not.
"""

from collections.abc import Iterable

from vipwire.model.names import ServicePortName
from vipwire.model.net import Family
from vipwire.modes.ebpf.layout import read_endpoint
from vipwire.modes.ebpf.render import places
from vipwire.plan.plan import ServicePlan
from vipwire.reconcile.counts import Count, Counts, EndpointName


def counts(
    family: Family,
    plans: Iterable[ServicePlan],
    counted: Iterable[tuple[bytes, int]],
    rules: Counts,
    *,
    endpoints: bool,
) -> Counts:
    """Add pairs of a frontend and an endpoint, as the programs counted them, to the counts of the rules."""
    names = {
        place: frontend.port_name
        for plan in plans
        for frontend in plan.frontends
        for place in places(plan, frontend.key)
    }
    ports: dict[ServicePortName, Count] = dict(rules.ports)
    by_endpoint: dict[EndpointName, Count] = dict(rules.endpoints)
    size = family.bits // 8 + 4
    for pair, connections in counted:
        name = names.get(pair[:size])
        if name is None:
            continue
        made = Count(connections=connections)
        ports[name] = ports[name].plus(made) if name in ports else made
        if endpoints:
            endpoint = EndpointName(name, *read_endpoint(pair[size:]))
            by_endpoint[endpoint] = by_endpoint[endpoint].plus(made) if endpoint in by_endpoint else made
    return Counts(ports, by_endpoint, rules.refusals, rules.open)
