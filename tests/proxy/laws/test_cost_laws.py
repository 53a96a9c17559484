"""An event costs what its own Service costs, however many there are: counted in the interpreter's steps, not in time.

From the store to what is given to the kernel, in each mode whose objects belong to one Service. Loops inside of
Python's own C code are not seen.
"""

import gc
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from tests.fakes.iptables import FakeTables, FakeTool, FakeWitness
from tests.fakes.values import endpoint, ip, node_plan, port, service, slice_of

import vipwire
from vipwire.model.net import Family, Protocol
from vipwire.model.service import Service, TrafficPolicy
from vipwire.modes.ebpf import render as ebpf
from vipwire.modes.ebpf.layout import split_delta
from vipwire.modes.iptables.kernel import IptablesBackend
from vipwire.modes.iptables.rules.settings import RuleSettings
from vipwire.modes.ipvs import render as ipvs
from vipwire.modes.ipvs.marks import Marks
from vipwire.modes.ipvs.objects.parts import partition_delta
from vipwire.modes.ipvs.termination import TerminationPolicy
from vipwire.modes.nftables.table import render as nftables
from vipwire.modes.nftables.table.script import build_operations
from vipwire.modes.nftables.table.skeleton import build_node_objects
from vipwire.plan.node import NodePlan
from vipwire.plan.plan import ServicePlan
from vipwire.plan.planner import Planner
from vipwire.reconcile.backend import Backend, Rendered
from vipwire.reconcile.delta import Delta
from vipwire.reconcile.reconciler import Reconciler
from vipwire.watched_objects.event import Deleted, Event, Kind, Listed, Upserted
from vipwire.watched_objects.store import Store

pytestmark = pytest.mark.slow

NEXT = pytest.mark.parametrize("number", [1_500, 1_501, 1_502], ids=["affinity", "external IP", "node port"])
"""Which Service comes and goes."""
OURS = str(Path(vipwire.__file__).parent)


class Written:
    """A backend whose kernel takes everything that is written and whom nobody disturbs."""

    def observe(self) -> dict[Any, Any]:
        return {}

    def changed(self) -> bool:
        return False


class Nftables(Written):
    """nftables mode up to the operations of a transaction."""

    def render_node(self, node: NodePlan) -> dict[Any, Any]:
        return dict(build_node_objects(node))

    def render(self, plan: ServicePlan) -> Rendered[Any, Any]:
        return nftables.render_service(Family.IPV4, plan)

    def commit(self, delta: Delta[Any, Any]) -> int:
        return sum(len(step.operation.payload) for step in build_operations(Family.IPV4, delta))


class Ebpf(Nftables):
    """ebpf mode up to what is given to the maps: a contested node port is rendered anew with who contests it."""

    def render(self, plan: ServicePlan) -> Rendered[Any, Any]:
        rules = super().render(plan)
        return Rendered({**rules.own, **ebpf.render_service(Family.IPV4, plan)}, rules.shared)

    def commit(self, delta: Delta[Any, Any]) -> int:
        theirs, ours = split_delta(delta)
        return super().commit(theirs) + len(ours)


class Ipvs(Written):
    """ipvs mode up to what is given to each part of the kernel."""

    def __init__(self) -> None:
        self._marks, self._leaving = Marks(0x4000), TerminationPolicy()

    def render_node(self, node: NodePlan) -> dict[Any, Any]:
        del node
        return {}

    def render(self, plan: ServicePlan) -> Rendered[Any, Any]:
        rendered = ipvs.render_service(Family.IPV4, "rr", self._marks, plan)
        self._leaving.record_plan(plan, rendered.own, None)
        return rendered

    def commit(self, delta: Delta[Any, Any]) -> int:
        parts = partition_delta(delta)
        return sum(self._leaving.may_finish(real) for real in parts.reals.removed)


def iptables() -> IptablesBackend:
    tables = FakeTables()
    return IptablesBackend(FakeTool(tables), RuleSettings(counters=False), FakeWitness(tables))


class World:
    """So many Services of several kinds, in the kernel."""

    def __init__(self, backend: Backend[Any, Any], count: int) -> None:
        self.store = Store()
        self.planner = Planner(node_plan(addresses=(ip("192.168.0.2"),), direct=True))
        self.reconciler: Reconciler[Any, Any] = Reconciler(backend)
        self.reconciler.desire_node(backend.render_node(self.planner.node))
        self.store.apply(Listed(Kind.SERVICE, tuple(map(of_number, range(count)))))
        pods = (
            slice_of(f"s{number}", *(endpoint(f"10.1.{number // 250}.{number % 250 + 1}") for _ in range(2)))
            for number in range(count)
        )
        self.store.apply(Listed(Kind.ENDPOINT_SLICE, tuple(pods)))
        self.follow()

    def follow(self, *events: Event) -> None:
        for event in events:
            self.store.apply(event)
        for name, change in self.planner.update(self.store.take_touched(), self.store.view).items():
            self.reconciler.desire(name, change.new)
        self.planner.raise_weights(self.store.view, 0.0)
        self.reconciler.sync()


def of_number(number: int) -> Service:
    """Every third has affinity, a node port, or an external IP that it shares with others; ports are all over."""
    first = number * 7_919 % 60_000 + 1
    fields: dict[str, Any] = {"affinity_seconds": 60} if number % 3 == 0 else {}
    if number % 3 == 1:
        fields = {"external_ips": (ip("198.51.100.1"),), "external_policy": TrafficPolicy.LOCAL}
    ports = [port(first, node_port=30_000 + number * 37 % 2_767 if number % 3 == 2 else 0)]
    if number % 7 == 0:
        ports.append(port(first, "dns", Protocol.UDP))
    return service(f"s{number}", f"10.96.{number // 250}.{number % 250 + 1}", *ports, **fields)


def comes_and_goes(number: int) -> Iterator[Event]:
    """A Service comes, gets another endpoint, and goes."""
    new = of_number(number)
    yield Upserted(new)
    yield Upserted(slice_of(new.name.name, endpoint("10.2.0.1"), endpoint("10.2.0.2")))
    yield Upserted(slice_of(new.name.name, endpoint("10.2.0.1"), endpoint("10.2.0.3"), endpoint("10.2.0.4")))
    yield Deleted(Kind.SERVICE, new.name)
    yield Deleted(Kind.ENDPOINT_SLICE, slice_of(new.name.name).name)


def counted(work: Callable[[], None]) -> int:
    """Count the lines that our own code goes through, a turn of a loop in one line among them."""
    found = 0

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal found
        if not frame.f_code.co_filename.startswith(OURS):
            return None
        found += event == "line"
        return trace

    before = sys.gettrace()
    gc.disable()  # what is finalized meanwhile is of other tests
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
        gc.enable()
    return found


def cost(backend: Backend[Any, Any], count: int, number: int) -> list[int]:
    """Let a Service come, change and go among so many others; count each event by itself."""
    world = World(backend, count)
    for event in comes_and_goes(number):  # what is remembered of one such Service, is from now on
        world.follow(event)
    return [counted(partial(world.follow, event)) for event in comes_and_goes(number)]


@NEXT
@pytest.mark.parametrize("mode", [Nftables, Ebpf, Ipvs])
def test_an_event_takes_the_same_steps_among_ten_services_and_among_a_thousand(
    mode: Callable[[], Backend[Any, Any]], number: int
) -> None:
    few, many = cost(mode(), 10, number), cost(mode(), 1_000, number)
    assert all(found > 20 for found in few), "something was done"
    assert many == few


@NEXT
def test_in_the_tree_of_iptables_mode_an_event_takes_hardly_more_steps(number: int) -> None:
    few, many = cost(iptables(), 10, number), cost(iptables(), 1_000, number)
    assert all(found <= 3 * before for before, found in zip(few, many, strict=True)), f"{few} steps, {many} steps"
