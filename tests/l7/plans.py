"""Plans objects without HAProxy, and reads the plan as one value."""

import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from pathlib import Path
from types import FrameType
from typing import Any

import vipwire
from vipwire.model.problem import Problem
from vipwire.watched_objects.event import Listed, Upserted
from vipwire_l7.ingress.plan.planner import IngressPlanner
from vipwire_l7.plan.plan import Planner, Setting
from vipwire_l7.plan.sites import SitePlan
from vipwire_l7.watch.objects import INGRESS_KINDS, IngressKind, IngressObject
from vipwire_l7.watch.snapshot import Snapshot

OURS = str(Path(vipwire.__file__).parent)


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
    plan = planner.kept.build_site_plan()
    told: dict[str, Any] = {each.name: getattr(plan, each.name) for each in fields(plan)}
    return ToldPlan(**told, problems=tuple(planner.kept.list_problems()))


def plan_ingresses(*objects: IngressObject, setting: Setting | None = None, now: float = 0.0) -> ToldPlan:
    return plan_all(IngressPlanner(setting or Setting()), listed(objects), now)


def count_calls(act: Callable[[], object]) -> int:
    """Count the calls of vipwire's functions."""
    calls = 0

    def note(frame: FrameType, event: str, _: object) -> None:
        nonlocal calls
        calls += event == "call" and frame.f_code.co_filename.startswith(OURS)

    sys.setprofile(note)
    try:
        act()
    finally:
        sys.setprofile(None)
    return calls


def count_steps(act: Callable[[], object]) -> int:
    """Count the steps of Python's machine: what is asked of each of all things for each is twice as much."""
    steps = 0

    def note(frame: FrameType, event: str, _: object) -> Any:
        nonlocal steps
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        steps += event == "opcode"
        return note

    sys.settrace(note)
    try:
        act()
    finally:
        sys.settrace(None)
    return steps
