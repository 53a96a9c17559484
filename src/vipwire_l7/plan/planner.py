"""The interface of planners: for Ingresses, for Gateways, or for both."""

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Protocol

from vipwire_l7.plan.limits import MOST, Most
from vipwire_l7.plan.plan import Plan
from vipwire_l7.plan.sites import SitePlan
from vipwire_l7.watch.snapshot import Snapshot

CONTROLLER = "vipwire.io/ingress"


@dataclass(frozen=True, slots=True)
class Setting:
    """The operator's choices for Ingresses.

    `controller` is that of this controller's IngressClasses, `zone` this node's.

    With `hosts_apart` a host belongs to one namespace, with all its paths.
    """

    class_name: str = "vipwire"
    controller: str = CONTROLLER
    without_class: bool = False
    zone: str = ""
    hosts_apart: bool = False
    limits: Most = field(default_factory=lambda: MOST)


class Planner(Protocol):
    """Plans HAProxy's configuration from the objects of some kinds."""

    @property
    def zone(self) -> str:
        """This node's zone, if known."""

    kept: Plan
    """The current plan."""

    def update(self, snapshot: Snapshot, now: float, refused: Collection[str] = ()) -> None:
        """Plan what changed since the last call, and update `kept`. `refused` frontends are left out.

        `now` is in seconds since the epoch: the validity of certificates may change the plan.
        """

    def plan(self, snapshot: Snapshot, now: float, refused: Collection[str] = ()) -> SitePlan:
        """Update the plan and return it as one value."""
