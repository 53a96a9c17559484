"""Plans Ingresses and Gateways for one HAProxy: each planner as it is alone, and both plans as one. Pure.

They meet nowhere but in the pools and certificates of the same Services and Secrets: Ingresses come in at the
operator's own addresses, Gateways at others (`GatewaySetting.reserved`).
"""

from collections.abc import Collection
from dataclasses import fields, replace

from vipwire_l7.gateway.plan.planner import GatewayPlanner
from vipwire_l7.plan.plan import Plan
from vipwire_l7.plan.planner import Planner
from vipwire_l7.plan.sites import SitePlan
from vipwire_l7.watch.snapshot import Snapshot


class SharedPlanner:
    """Both planners. What each is not concerned with is the other's affair."""

    def __init__(self, ingress: Planner, gateway: GatewayPlanner) -> None:
        self._ingress, self._gateway = ingress, gateway
        self.kept = Plan()

    @property
    def zone(self) -> str:
        """The zone that we are in, if known."""
        return self._gateway.zone

    def plan(self, snapshot: Snapshot, now: float, refused: Collection[str] = ()) -> SitePlan:
        """Plan everything."""
        self.update(snapshot, now, refused)
        plans = [each.plan(snapshot, now, refused) for each in (self._ingress, self._gateway)]
        return self.kept.sites(plans[0].named | plans[1].named, plans[0].admitted)

    def update(self, snapshot: Snapshot, now: float, refused: Collection[str] = ()) -> None:
        """Plan what has changed since the last time, in `kept`."""
        both = (self._ingress, self._gateway)
        for each in both:
            each.update(snapshot, now, refused)
        for change in [each.kept.take_change() for each in both]:
            for table in (each.name for each in fields(change)):
                for key in getattr(change, table):
                    found = [plan[key] for each in both if key in (plan := getattr(each.kept, table))]
                    getattr(self.kept, table).put(key, found[0] if found else None)
                    if table == "certificates" and len(found) > 1:
                        askers = (*found[0].askers, *found[1].askers)
                        self.kept.certificates.put(key, replace(found[0], askers=askers))
        self.kept.frontends.arrange(self._gateway.kept.frontends)
