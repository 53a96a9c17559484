"""Whoever plans: Ingresses, Gateways or both."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Protocol

from vipwire_l7.plan.plan import Plan
from vipwire_l7.plan.sites import SitePlan
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

    kept: Plan
    """The plan as it is kept."""

    def update(self, snapshot: Snapshot, now: float, refused: Collection[str] = ()) -> None:
        """Plan what has changed since the last time, in `kept`, but for `refused` frontends.

        `now` in seconds since the epoch, for certificates: time alone may change a plan.
        """

    def plan(self, snapshot: Snapshot, now: float, refused: Collection[str] = ()) -> SitePlan:
        """Update the plan and write it down."""
