"""Plans objects without HAProxy, and reads the plan as one value."""

from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Any

from vipwire.model.problem import Problem
from vipwire.watched_objects.event import Listed, Upserted
from vipwire_l7.ingress.plan.planner import IngressPlanner
from vipwire_l7.plan.plan import Planner, Setting
from vipwire_l7.plan.sites import SitePlan
from vipwire_l7.watch.objects import INGRESS_KINDS, IngressKind, IngressObject
from vipwire_l7.watch.snapshot import Snapshot


@dataclass(frozen=True, slots=True)
class ToldPlan(SitePlan):
    """A plan with its problems."""

    problems: tuple[Problem, ...] = ()


def listed(objects: Iterable[IngressObject] = (), kinds: Iterable[IngressKind] = INGRESS_KINDS) -> Snapshot:
    """Return a snapshot that has listed all kinds, with some objects."""
    kinds = tuple(kinds)
    made = Snapshot(kinds)
    for kind in kinds:
        made.apply(Listed(kind, ()))
    for each in objects:
        made.apply(Upserted(each))
    return made


def plan_all(planner: Planner, snapshot: Snapshot, now: float = 0.0) -> ToldPlan:
    planner.update(snapshot, now)
    plan = planner.kept.sites()
    told: dict[str, Any] = {each.name: getattr(plan, each.name) for each in fields(plan)}
    return ToldPlan(**told, problems=tuple(planner.kept.list_problems()))


def plan_ingresses(*objects: IngressObject, setting: Setting | None = None, now: float = 0.0) -> ToldPlan:
    return plan_all(IngressPlanner(setting or Setting()), listed(objects), now)
