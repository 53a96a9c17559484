"""Plans Ingresses and Gateways for one HAProxy, and merges both plans. Pure.

The plans share only the pools and certificates of the same Services and Secrets: Ingresses use the operator's
addresses, Gateways use others (`GatewaySetting.reserved`).
"""

from collections.abc import Collection
from dataclasses import fields, replace

from vipwire_l7.gateway.plan.planner import GatewayPlanner
from vipwire_l7.plan.plan import Plan
from vipwire_l7.plan.planner import Planner
from vipwire_l7.plan.sites import SitePlan
from vipwire_l7.watch.snapshot import Snapshot


class SharedPlanner:
    """Runs both planners. Each ignores the objects of the other."""

    def __init__(self, ingress: Planner, gateway: GatewayPlanner) -> None:
        self._ingress, self._gateway = ingress, gateway
        self.kept = Plan()

    @property
    def zone(self) -> str:
        return self._gateway.zone

    def plan(self, snapshot: Snapshot, now: float, refused: Collection[str] = ()) -> SitePlan:
        self.update(snapshot, now, refused)
        plans = [each.plan(snapshot, now, refused) for each in (self._ingress, self._gateway)]
        return self.kept.sites(plans[0].named | plans[1].named, plans[0].admitted)

    def update(self, snapshot: Snapshot, now: float, refused: Collection[str] = ()) -> None:
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
