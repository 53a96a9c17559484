"""Finds the UDP frontends whose flows a change of plans may have made stale.

Where serving endpoints only came, every flow stays valid; unless there had been none: then flows were not translated.
"""

from collections.abc import Iterable, Iterator

from vipwire.linux.conntrack.stale import UdpEndpoint, UdpFrontend
from vipwire.model.net import Protocol
from vipwire.plan.plan import Frontend, ServicePlan
from vipwire.plan.planner import PlanChange


def udp_frontends(plans: Iterable[ServicePlan | None]) -> dict[UdpFrontend, frozenset[UdpEndpoint]]:
    """Collect the UDP frontends of some plans with their serving endpoints."""
    return {
        (frontend.key.address, frontend.key.port): frontend.serving
        for plan in plans
        if plan is not None
        for frontend in ((*_of_ranges(plan), *plan.frontends) if plan.ranges else plan.frontends)
        if frontend.key.protocol is Protocol.UDP
    }


def _of_ranges(plan: ServicePlan) -> Iterator[Frontend]:
    """Yield a frontend for each port of a range: a flow goes to one of them."""
    from vipwire.plan.resolve import at_port  # noqa: PLC0415  # few Services have ranges

    for wide in plan.ranges:
        if wide.key.protocol is Protocol.UDP:
            for port in range(wide.key.first, wide.key.last + 1):
                yield at_port(wide, port)


def _may_have_udp(changes: Iterable[PlanChange]) -> bool:
    for change in changes:
        for plan in change:
            if plan is not None and (plan.ranges or Protocol.UDP in [each.key.protocol for each in plan.frontends]):
                return True
    return False


def suspect_frontends(changes: Iterable[PlanChange]) -> dict[UdpFrontend, frozenset[UdpEndpoint]]:
    """Collect the frontends whose flows have to be looked at, with the endpoints that still serve them."""
    changes = tuple(changes)
    if not _may_have_udp(changes):
        return {}
    before = udp_frontends([change.old for change in changes])
    after = udp_frontends([change.new for change in changes])
    nobody: frozenset[UdpEndpoint] = frozenset()
    return {
        frontend: after.get(frontend, nobody)
        for frontend in {**before, **after}
        if not (before.get(frontend) and before[frontend] <= after.get(frontend, nobody))
    }
