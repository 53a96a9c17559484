"""A family's backend on tables in memory, and short forms of Services, planned as the proxy plans them."""

from collections.abc import Iterable, Mapping

from tests.fakes.iptables import FakeTables, FakeTool, FakeWitness
from tests.fakes.values import node_plan

from vipwire.model.names import ObjectName
from vipwire.model.service import EndpointSlice, Service
from vipwire.modes.iptables.kernel import IptablesBackend
from vipwire.modes.iptables.rules.names import Key, Rules
from vipwire.modes.iptables.rules.settings import RuleSettings
from vipwire.modes.xtables.tool import Variant
from vipwire.plan.node import NodePlan
from vipwire.plan.planner import Planner
from vipwire.reconcile.reconciler import Reconciler, Report

PLAIN = RuleSettings(counters=False)
"""As on a kernel without nfacct."""


class World:
    """One proxy of one family, which writes into the tables."""

    def __init__(
        self,
        tables: FakeTables | None = None,
        *,
        node: NodePlan | None = None,
        settings: RuleSettings = PLAIN,
        variant: Variant = Variant.LEGACY,
    ) -> None:
        self.node = node or node_plan()
        self.tables = tables or FakeTables()
        tool = FakeTool(self.tables, self.node.family, variant)
        self.backend = IptablesBackend(tool, settings, FakeWitness(self.tables))
        self.reconciler: Reconciler[Key, Rules] = Reconciler(self.backend)
        self.reconciler.desire_node(self.backend.render_node(self.node))
        self._planner = Planner(self.node)
        self._services: dict[ObjectName, Service] = {}
        self._slices: dict[ObjectName, list[EndpointSlice]] = {}

    def put(self, service: Service, *slices: EndpointSlice) -> None:
        self._services[service.name] = service
        self._slices[service.name] = list(slices)
        self._plan([service.name])

    def drop(self, name: ObjectName) -> None:
        self._services.pop(name)
        self._slices.pop(name)
        self._plan([name])

    def sync(self) -> Report[Key]:
        return self.reconciler.sync()

    def chain(self, name: str, table: str = "nat") -> list[str]:
        return self.tables.tables[table][name]

    def _plan(self, names: Iterable[ObjectName]) -> None:
        view: Mapping[ObjectName, Service] = self._services
        for name, change in self._planner.update(names, lambda n: (view.get(n), self._slices.get(n, []))).items():
            self.reconciler.desire(name, change.new)
