"""Keeps the plan of one family up to date, Service by Service.

An event re-plans its Service and the few that contend with it for an address. Between events, time (`slow_start`) and
unanswered connections (`ejection`) change plans. `now` is the caller's monotonic clock in seconds.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Final, NamedTuple

from vipwire.model.names import ObjectName, ServicePortName
from vipwire.model.problem import Problem
from vipwire.model.service import EndpointSlice, Service
from vipwire.plan.annotations import Wishes, read_wishes
from vipwire.plan.claims import Claimant, Claims
from vipwire.plan.ejection import EjectionPolicy, Ejections, EndpointKey
from vipwire.plan.frontends import ejectable_endpoints, list_claimed_keys, plan_service, select_family
from vipwire.plan.node import NodePlan
from vipwire.plan.plan import FrontendKey, ServicePlan, list_endpoint_places
from vipwire.plan.slow_start import SlowStart


class LeadingServices:
    """The Services with an endpoint at each place, for modes that connect sockets to endpoints directly.

    A change costs time proportional to its Service.
    """

    def __init__(self) -> None:
        self._at: dict[FrontendKey, frozenset[ObjectName]] = {}

    def replace(self, name: ObjectName, old: ServicePlan | None, new: ServicePlan | None) -> None:
        before, after = (set(list_endpoint_places(plan)) if plan is not None else set() for plan in (old, new))
        alone = frozenset((name,))  # one set for all endpoints saves memory
        for place in before - after:
            if rest := self._at[place] - alone:
                self._at[place] = rest
            else:
                del self._at[place]
        for place in after - before:
            others = self._at.get(place)
            self._at[place] = alone if others is None else others | alone

    def leading_to(self, places: Iterable[FrontendKey]) -> set[ObjectName]:
        return set().union(*(self._at.get(place, ()) for place in places)) if self._at else set()


Ejected = Mapping[ObjectName, frozenset[EndpointKey]]
"""The ejected endpoints of each Service that has any."""

NOBODY: Final[Ejected] = MappingProxyType({})
_ANY: Final[Mapping[ObjectName, bool]] = MappingProxyType({})
_NO_PORTS: Final[Mapping[ServicePortName, frozenset[EndpointKey]]] = MappingProxyType({})


class PlanChange(NamedTuple):
    """One Service's plan before and after; None: not proxied."""

    old: ServicePlan | None
    new: ServicePlan | None


View = Callable[[ObjectName], tuple[Service | None, Sequence[EndpointSlice]]]


class Planner:
    """The plans of all Services for one family and this node."""

    def __init__(self, node: NodePlan) -> None:
        self._node = node
        self.ejected_elsewhere: Ejected = NOBODY
        """Ejections of the proxy's process, if a read-only command plans here; the next planning applies them."""
        self._claims = Claims(node.addresses, node.api_servers)
        self._leading = LeadingServices()
        self._slow_start = SlowStart()
        self.ejections = Ejections()
        self._plans: dict[ObjectName, ServicePlan] = {}
        self.plans: Mapping[ObjectName, ServicePlan] = MappingProxyType(self._plans)

    @property
    def node(self) -> NodePlan:
        return self._node

    def move(self, node: NodePlan, view: View, now: float = 0.0) -> dict[ObjectName, PlanChange]:
        """Adopt a changed node or configuration: re-plan everything. Return the result of `update`."""
        self._node = node
        self._claims = Claims(node.addresses, node.api_servers)
        return self.update(tuple(self._plans), view, now)

    def due(self) -> float | None:
        """Return when time alone changes a plan; None if never."""
        grows, returns = self._slow_start.due(), self.ejections.due()
        return grows if returns is None else returns if grows is None else min(grows, returns)

    def raise_weights(self, view: View, now: float) -> dict[ObjectName, PlanChange]:
        """Re-plan the changes of slow start, which are weights only. Return the result of `update`."""
        due = self._slow_start.take_due(now)
        return self.update(due, view, now) if due else {}

    def readmit(self, view: View, now: float) -> dict[ObjectName, PlanChange]:
        """Re-plan Services with an endpoint whose ejection ended. Return the result of `update`."""
        due = self.ejections.bring_back(now)
        return self.update(due, view, now) if due else {}

    def update(
        self, names: Iterable[ObjectName], view: View, now: float = 0.0, themselves: Mapping[ObjectName, bool] = _ANY
    ) -> dict[ObjectName, PlanChange]:
        """Re-plan changed Services and their rivals. Return every plan that differs from before.

        If `themselves` is False for a Service, only its endpoints changed, and its claims stay.
        """
        wanted = list(dict.fromkeys(names))
        if not wanted:
            return {}
        concerned: dict[ObjectName, None] = dict.fromkeys(wanted)
        for name in wanted:
            service, _ = view(name)
            if name not in self._plans and (
                service is None or not select_family(self._node.family, service.cluster_ips)
            ):
                del concerned[name]  # still nothing of this family
                continue
            if name in self._plans and not themselves.get(name, True):
                continue
            if rivals := self._find_rivals(name, service):
                concerned.update(dict.fromkeys(rivals))
        changed: dict[ObjectName, PlanChange] = {}
        for name in concerned:
            old, plan = self._plans.get(name), self._plan_or_report(name, *view(name), now)
            if plan == old:
                continue
            changed[name] = PlanChange(old, plan)
            if self._node.direct:
                self._leading.replace(name, old, plan)
            if plan is None:
                del self._plans[name]
            else:
                self._plans[name] = plan
        return changed

    def _find_rivals(self, name: ObjectName, service: Service | None) -> set[ObjectName]:
        """Replace a Service's claims; return the others whose frontends or endpoints may change."""
        before = set(self._claims.list_places(name) if self._node.direct else ())
        try:
            rivals = self._claim_keys(name, service)
        except Exception:  # noqa: BLE001  # the plan says why
            rivals = self._claims.remove(name)
        if self._node.direct:
            rivals |= self._leading.leading_to(before.symmetric_difference(self._claims.list_places(name)))
        return rivals

    def _claim_keys(self, name: ObjectName, service: Service | None) -> set[ObjectName]:
        cluster_ips = select_family(self._node.family, service.cluster_ips) if service is not None else ()
        if service is None or not cluster_ips:
            return self._claims.remove(name)
        return self._claims.replace(
            Claimant(service.created, name), list_claimed_keys(self._node, service), cluster_ips
        )

    def _plan_or_report(
        self, name: ObjectName, service: Service | None, slices: Sequence[EndpointSlice], now: float
    ) -> ServicePlan | None:
        """Plan a Service. If planning fails by a bug, the old plan stays, with a problem."""
        try:
            return self._plan_service(name, service, slices, now)
        except Exception as error:  # noqa: BLE001  # an error in one Service must not stop the others
            what = f"cannot be planned ({type(error).__name__}: {error}); its rules stay"
            problem = Problem("Service", name, "", what[:400])
            return replace(self._plans.get(name, ServicePlan(name)), problems=(problem,))

    def _plan_service(
        self, name: ObjectName, service: Service | None, slices: Sequence[EndpointSlice], now: float
    ) -> ServicePlan | None:
        if service is None or not select_family(self._node.family, service.cluster_ips):
            self._slow_start.forget(name)
            self.ejections.keep_service(name, None, {}, now)
            return None
        asked = read_wishes(service)
        ejected = self._update_ejection(service, slices, asked, now)
        plan = plan_service(self._node, service, slices, lambda key: self._claims.find_holder(name, key), ejected)
        if asked.slow_start is None:
            self._slow_start.forget(name)
        else:
            plan = self._slow_start.lower_weights(plan, asked.slow_start, now)
        if plan.node_port_addresses or self._node.direct:
            plan = self._resolve_claims(plan)
        node, held = self._node, self._claims
        owned = tuple([a for a in plan.cluster_ips if held.owns(name, a) and not node.leads_to_host(a)])
        return plan if owned == plan.cluster_ips else replace(plan, cluster_ips=owned)

    def _resolve_claims(self, plan: ServicePlan) -> ServicePlan:
        node_ports = (frontend.key for frontend in plan.frontends if frontend.key.address is None)
        places = (key._replace(address=each) for key in node_ports for each in plan.node_port_addresses)
        found = [*self._claims.find_contested(places)]
        if self._node.direct:
            found += self._claims.find_claimed(list_endpoint_places(plan))
        contested = tuple(dict.fromkeys(found))
        return replace(plan, contested=contested) if contested else plan

    def _update_ejection(
        self, service: Service, slices: Sequence[EndpointSlice], asked: Wishes, now: float
    ) -> frozenset[EndpointKey]:
        """Pass a Service's endpoints to ejection if it asks for it; return the ejected ones."""
        if asked.eject_after is None:
            return self.ejections.keep_service(service.name, None, _NO_PORTS, now)
        if (known := self.ejected_elsewhere.get(service.name)) is not None:
            return known
        policy = EjectionPolicy(asked.eject_after, asked.eject_for, asked.eject_at_most)
        return self.ejections.keep_service(
            service.name, policy, ejectable_endpoints(self._node, service, slices, asked), now
        )
