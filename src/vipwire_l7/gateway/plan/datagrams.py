"""Turns a UDPRoute into weighted Services, for the relay that serves UDP in HAProxy's place. Pure.

A backend that cannot be resolved keeps its weight: the relay drops its datagrams (UDPRoute, backendRefs).
"""

from collections.abc import Iterator

from vipwire_l7.gateway.plan.kinds.objects import RouteObject, no
from vipwire_l7.gateway.plan.matching.unsupported import Unsupported
from vipwire_l7.gateway.plan.rules import Read
from vipwire_l7.gateway.plan.targets import Targets, weight_of
from vipwire_l7.gateway.watch import rule_wire
from vipwire_l7.plan.policy import Policy
from vipwire_l7.plan.sites import Pool

Shares = tuple[tuple[Pool | None, int], ...]


def shares_of(route: RouteObject, targets: Targets, read: Read) -> Shares:
    """Read a route's rules.

    The first rule that can be served gets all clients, since a UDPRoute's rules have no matches.
    """
    found: Shares = ()
    for index, rule in enumerate(route.spec.rules):
        try:
            shares = tuple(_shares(route, rule, targets, read))
        except Unsupported as error:
            read.failed[index] = str(error)
        else:
            found = found or shares
    return found


def _shares(
    route: RouteObject, rule: rule_wire.RouteRule, targets: Targets, read: Read
) -> Iterator[tuple[Pool | None, int]]:
    for ref in rule.backend_refs:
        weight = weight_of(ref)
        found, verdict = targets.resolve(route, ref)
        pool = None
        if found is not None and found[0].external:
            verdict = no(
                "BackendNotFound",
                f"the Service {found[0].name} has the type ExternalName, which UDPRoutes do not support",
            )
        elif found is not None:
            service, port = found
            pool = Pool(f"udp:{service.name}:{port.number}", service.name, port, Policy())
        read.note(verdict)
        if weight:
            yield pool, weight
