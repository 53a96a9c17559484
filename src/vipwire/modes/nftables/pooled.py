"""Nftables mode for the reconciler: the slots of a pool are one object. See `table.blocks`."""

from collections.abc import Iterable

from vipwire.modes.nftables.kernel import NftablesBackend
from vipwire.modes.nftables.table.blocks import Planned
from vipwire.modes.nftables.table.names import Block, Object, ObjectKey
from vipwire.modes.nftables.table.render import render_service
from vipwire.plan.plan import ServicePlan
from vipwire.reconcile.backend import Rendered


class PooledBackend:
    """A backend of nftables mode that renders and reads the slots of each pool as one block."""

    prompt = True

    def __init__(self, backend: NftablesBackend) -> None:
        self._backend = backend
        self._planned: Planned = {}
        self.render_node, self.changed, self.commit = backend.render_node, backend.changed, backend.commit
        self.lacks_room, self.enlarge = backend.lacks_room, backend.enlarge

    def render(self, plan: ServicePlan) -> Rendered[ObjectKey, Object]:
        return render_service(self._backend.family, plan, blocks=True)

    def expect(self, wanted: Iterable[Rendered[ObjectKey, Object]]) -> None:
        planned: Planned = {}
        for each in wanted:
            for (name, key), value in each.own.items():
                if isinstance(value, Block):
                    planned.setdefault(name, []).append((key, value))
        self._planned = planned

    def observe(self) -> dict[ObjectKey, Object]:
        planned, self._planned = self._planned, {}
        return self._backend.observe(planned)
