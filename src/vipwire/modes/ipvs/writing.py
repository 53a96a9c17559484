"""What ipvs mode would write for a node and its Services, by an operator's choices. It needs no kernel."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from vipwire.linux.netlink.ipvs import Forwarding, RealServer, VirtualServer
from vipwire.model.net import Family, Prefix
from vipwire.modes.ipvs import render as rendering
from vipwire.modes.ipvs.marks import Marks
from vipwire.modes.ipvs.objects.describe import describe_object
from vipwire.modes.ipvs.objects.names import Object, ObjectKey
from vipwire.modes.ipvs.skeleton import node_objects
from vipwire.plan.node import NodePlan
from vipwire.plan.plan import ServicePlan
from vipwire.reconcile.backend import Rendered


@dataclass(frozen=True, slots=True)
class Settings:
    """The operator's choices: the scheduler of Services that name none, and the addresses never to touch."""

    scheduler: str = "rr"
    exclude: tuple[Prefix, ...] = ()


DEFAULTS: Final = Settings()


class Writing:
    """The objects of one family. `resting`: nothing finishes its connections where there is no kernel."""

    def __init__(self, family: Family, settings: Settings) -> None:
        self.marks = Marks(avoid=0)
        self.resting: Mapping[VirtualServer, Mapping[RealServer, Forwarding]] = {}
        self._settings = settings
        self._manner = rendering.RenderSettings(family, settings.scheduler)

    def render_node(self, node: NodePlan) -> Mapping[ObjectKey, Object]:
        """Render what belongs to no Service."""
        self.marks.avoid = node.masquerade_mark
        return node_objects(node)

    def render(self, plan: ServicePlan) -> Rendered[ObjectKey, Object]:
        """Render one Service."""
        rendered = rendering.render(self._manner, self.marks, plan)
        if not self._settings.exclude:
            return rendered
        return replace(rendered, own={k: v for k, v in rendered.own.items() if not self.is_excluded(k)})

    def is_excluded(self, key: ObjectKey) -> bool:
        """Report whether a virtual server, or that of a real server, is one that we keep our hands off."""
        server = key.server if isinstance(key, RealServer) else key
        return isinstance(server, VirtualServer) and any(
            server.address in prefix for prefix in self._settings.exclude
        )

    def describe(self, key: ObjectKey) -> str:
        """Name an object for a person."""
        return describe_object(key)

    def close(self) -> None:
        """Do nothing: it holds no socket."""
