"""Weights of endpoints that start slowly are read from what the objects of a mode deal; nothing else is."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import pytest
from tests.fakes.values import HERE, endpoint, node_plan, port, service, slice_of

from vipwire.inspect.node.family_view import FamilyView
from vipwire.inspect.node.slow_start import grown
from vipwire.linux.netlink.nftables.elements import Element
from vipwire.model.net import Family
from vipwire.model.spread import Spread
from vipwire.modes.ipvs.explain.explainer import IpvsExplainer
from vipwire.modes.ipvs.marks import Marks
from vipwire.modes.ipvs.render import render as ipvs_render
from vipwire.modes.ipvs.skeleton import node_objects as ipvs_objects
from vipwire.modes.nftables.explain.explainer import NftablesExplainer
from vipwire.modes.nftables.table.render import render as nftables_render
from vipwire.modes.nftables.table.skeleton import node_objects as nftables_objects
from vipwire.plan.node import NodePlan
from vipwire.plan.plan import Forward, ServicePlan
from vipwire.plan.planner import Planner
from vipwire.reconcile.backend import Rendered
from vipwire.watched_objects.event import Upserted
from vipwire.watched_objects.store import Store

FAMILY = Family.IPV4


@dataclass(frozen=True)
class Mode:
    """As much of a mode as is asked for here."""

    render: Callable[[ServicePlan], Rendered[Any, Any]]


class Forgetful(NftablesExplainer):
    """Nobody is remembered, and no kernel is asked."""

    def _memory(self, maps: Iterable[str]) -> dict[tuple[str, bytes], Element]:
        del maps
        return {}


def nftables(node: NodePlan) -> tuple[Any, Any, Any]:
    del node
    mode = Mode(lambda plan: nftables_render(FAMILY, plan))
    explainer = Forgetful(FAMILY)
    return mode, explainer, nftables_objects


def ipvs(node: NodePlan) -> tuple[Any, Any, Any]:
    marks = Marks(node.masquerade_mark)
    return (
        Mode(lambda plan: ipvs_render(FAMILY, "rr", marks, plan)),
        IpvsExplainer(FAMILY),
        ipvs_objects,
    )


def weighed(plan: ServicePlan, weights: tuple[int, int]) -> ServicePlan:
    def dealt(action: Any) -> Any:
        return (
            replace(action, spread=Spread(action.spread.algorithm, weights))
            if isinstance(action, Forward)
            else action
        )

    return replace(plan, frontends=tuple(replace(each, action=dealt(each.action)) for each in plan.frontends))


def looked_at(make: Any, weights: tuple[int, int], **annotations: str) -> tuple[FamilyView, Store]:
    """Plan a Service of two endpoints, and have the kernel hold it with these weights."""
    node, store = node_plan(), Store()
    mode, explainer, objects_of = make(node)
    given = tuple((f"vipwire.io/{name.replace('_', '-')}", text) for name, text in annotations.items())
    store.apply(Upserted(service("web", "10.96.0.1", port(80, node_port=30080), annotations=given)))
    store.apply(Upserted(slice_of("web", endpoint("10.1.0.1", HERE), endpoint("10.1.0.2"))))
    planner = Planner(node)
    planner.update(store.take_touched(), store.view)
    observed = dict(objects_of(node))
    for plan in planner.plans.values():
        held = mode.render(weighed(plan, weights))
        observed.update({**held.own, **held.shared})
    side = FamilyView(FAMILY, node, dict(planner.plans), mode, explainer, objects_of(node))
    rendered = {name: mode.render(plan) for name, plan in side.plans.items()}
    return replace(side, rendered=rendered, observed=observed), store


@pytest.mark.parametrize("weights", [(10, 3), (10, 2), (1, 7)])
@pytest.mark.parametrize("make", [nftables, ipvs])
def test_the_weights_of_the_moment_are_found(make: Any, weights: tuple[int, int]) -> None:
    side, store = looked_at(make, weights, slow_start="60s")
    assert side.delta
    assert not grown(side, store, frozenset()).delta


@pytest.mark.parametrize("make", [nftables, ipvs])
def test_without_slow_start_a_difference_stays_one(make: Any) -> None:
    side, store = looked_at(make, (10, 3))
    assert side.delta
    assert grown(side, store, frozenset()).delta == side.delta


@pytest.mark.parametrize("make", [nftables, ipvs])
def test_what_is_as_planned_is_left_alone(make: Any) -> None:
    side, store = looked_at(make, (1, 1), slow_start="60s")
    assert grown(side, store, frozenset()).plans == side.plans
