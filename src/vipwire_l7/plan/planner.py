"""Whoever plans: Ingresses, Gateways or both."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from vipwire.model.names import ObjectName
from vipwire_l7.plan.plan import Plan
from vipwire_l7.plan.sites import SitePlan
from vipwire_l7.watch.objects import IngressKind
from vipwire_l7.watch.snapshot import Snapshot

CONTROLLER = "vipwire.io/ingress"


@dataclass(frozen=True, slots=True)
class Setting:
    """The operator's choices for Ingresses. `controller` is that of our IngressClasses; `zone` is ours, if known.

    With `hosts_apart` a host is one namespace's, with all its paths.
    """

    class_name: str = "vipwire"
    controller: str = CONTROLLER
    without_class: bool = False
    zone: str = ""
    hosts_apart: bool = False


class Planner(Protocol):
    """Plans what HAProxy shall serve, from the objects of some kinds."""

    @property
    def zone(self) -> str:
        """The zone that we are in, if known."""

    def plan(self, snapshot: Snapshot, now: float, refused: Collection[str] = ()) -> SitePlan:
        """Plan everything but `refused` frontends. `now` in seconds since the epoch, for certificates."""

    def wants(self, snapshot: Snapshot, kind: IngressKind, name: ObjectName) -> bool:
        """Report whether an object that no plan has named yet may be one to plan."""

    def moved(self) -> bool:
        """Report whether what is planned from, beside objects and the time, is another than at the last plan."""


@runtime_checkable
class KeepingPlanner(Planner, Protocol):
    """A planner that keeps its plan, and plans what has changed alone."""

    kept: Plan

    def update(self, snapshot: Snapshot, now: float, refused: Collection[str] = ()) -> None:
        """Plan what has changed since the last time, in `kept`."""
