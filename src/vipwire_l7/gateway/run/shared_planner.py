"""Plans Ingresses and Gateways for one HAProxy: each planner as it is alone, and both plans as one. Pure.

They meet nowhere but in the pools and certificates of the same Services and Secrets: Ingresses come in at the
operator's own addresses, Gateways at others (`GatewaySetting.reserved`).
"""

from collections.abc import Collection
from dataclasses import replace

from vipwire.model.names import ObjectName
from vipwire_l7.gateway.plan.planner import GatewayPlanner
from vipwire_l7.plan.planner import Planner
from vipwire_l7.plan.sites import SitePlan
from vipwire_l7.watch.objects import IngressKind
from vipwire_l7.watch.snapshot import Snapshot


class SharedPlanner:
    """Both planners. What each is not concerned with is the other's affair."""

    def __init__(self, ingress: Planner, gateway: GatewayPlanner) -> None:
        self._ingress, self._gateway = ingress, gateway

    @property
    def zone(self) -> str:
        """The zone that we are in, if known."""
        return self._gateway.zone

    def plan(self, snapshot: Snapshot, now: float, refused: Collection[str] = ()) -> SitePlan:
        """Plan everything."""
        return joined(self._ingress.plan(snapshot, now, refused), self._gateway.plan(snapshot, now, refused))

    def wants(self, snapshot: Snapshot, kind: IngressKind, name: ObjectName) -> bool:
        """Report whether either may plan an object that no plan has named yet."""
        return self._ingress.wants(snapshot, kind, name) or self._gateway.wants(snapshot, kind, name)

    def moved(self) -> bool:
        """Report whether either is to plan from something else than before."""
        return self._ingress.moved() or self._gateway.moved()


def joined(ingress: SitePlan, gateway: SitePlan) -> SitePlan:
    """Put a plan of Ingresses and one of Gateways together. What has the same name is the same."""
    pools = {each.name: each for each in (*ingress.pools, *gateway.pools)}
    certificates = {each.name: each for each in gateway.certificates}
    for each in ingress.certificates:
        askers = certificates[each.name].askers if each.name in certificates else ()
        certificates[each.name] = replace(each, askers=(*each.askers, *askers))
    return replace(
        gateway,
        routes=(*ingress.routes, *gateway.routes),
        pools=tuple(pools.values()),
        choices=ingress.choices,
        certificates=tuple(certificates.values()),
        default=ingress.default,
        admitted=ingress.admitted,
        problems=(*ingress.problems, *gateway.problems),
        named=ingress.named | gateway.named,
    )
