"""One IP family as commands see it: its plans, the objects that the mode renders, and those in the kernel."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from vipwire.model.names import ObjectName
from vipwire.model.net import Family
from vipwire.modes.spec import Mode
from vipwire.plan.ejection import EndpointKey
from vipwire.plan.node import NodePlan
from vipwire.plan.plan import ServicePlan
from vipwire.plan.resolve import Plan
from vipwire.reconcile.backend import Rendered
from vipwire.reconcile.delta import Delta, compute_delta
from vipwire.reconcile.explainer import Explainer

EjectedUntil = dict[ObjectName, dict[EndpointKey, float]]
"""The ejected endpoints of each Service, and the end of each ejection in seconds since the epoch."""


@dataclass(frozen=True)
class FamilyView:
    """One family, planned and observed. `observed` is None if reading failed for the reason in `obstacle`.

    `remains` names objects in vipwire's place that this version cannot read, such as another version's table.
    """

    family: Family
    node: NodePlan
    plans: Mapping[ObjectName, ServicePlan]
    mode: Mode | None = None
    explainer: Explainer[Any, Any, Any] | None = None
    node_objects: Mapping[Any, Any] = field(default_factory=dict)
    rendered: Mapping[ObjectName, Rendered[Any, Any]] = field(default_factory=dict)
    observed: Mapping[Any, Any] | None = None
    obstacle: str = ""
    remains: str = ""
    ejected: EjectedUntil = field(default_factory=dict)

    def list_ejected(self, service: ObjectName) -> Mapping[EndpointKey, float]:
        return self.ejected.get(service, {})

    @cached_property
    def plan(self) -> Plan:
        services: dict[object, ServicePlan] = {}
        services.update(self.plans.items())
        return Plan(self.node, services)

    @cached_property
    def wanted(self) -> dict[Any, Any]:
        wanted = dict(self.node_objects)
        for rendered in self.rendered.values():
            wanted.update(rendered.own)
            wanted.update(rendered.shared)
        return wanted

    @cached_property
    def delta(self) -> Delta[Any, Any] | None:
        """The changes that a sync would make; None if the kernel could not be read."""
        return None if self.observed is None else compute_delta(self.observed, self.wanted)

    def compute_drift(self, name: ObjectName) -> Delta[Any, Any] | None:
        """Return the changes of a sync for one Service; None if unknown. Removed objects belong to no Service."""
        if self.delta is None:
            return None
        rendered = self.rendered.get(name, Rendered())
        return self.restrict_delta(self.delta, (*rendered.own, *rendered.shared))

    @staticmethod
    def restrict_delta(delta: Delta[Any, Any], keys: Iterable[Any]) -> Delta[Any, Any]:
        made: Delta[Any, Any] = Delta()
        for key in keys:
            if key in delta.added:
                made.added[key] = delta.added[key]
            elif key in delta.changed:
                made.changed[key] = delta.changed[key]
            elif key in delta.removed:
                made.removed[key] = delta.removed[key]
        return made
