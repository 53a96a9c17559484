"""The laws of plan, store and reconciler: whatever comes in whatever order."""

from collections.abc import Iterable, Sequence
from random import Random
from typing import TypeAlias

from hypothesis import given
from hypothesis import strategies as st
from tests.fakes.kernel import DictBackend
from tests.fakes.values import HERE, endpoint, planned, slice_of
from tests.proxy.laws.worlds import (
    NAMES,
    SLICE_NAMES,
    SPACES,
    Space,
    World,
    node_plans,
    packets_for,
    services,
    slices,
    worlds,
)

from vipwire.model.names import ObjectName, ServicePortName
from vipwire.model.net import Address, Family
from vipwire.model.service import EndpointSlice
from vipwire.modes.nftables.table.render import render_service
from vipwire.modes.nftables.table.skeleton import build_node_objects
from vipwire.plan.frontends import list_claimed_keys
from vipwire.plan.node import NodePlan
from vipwire.plan.plan import Forward, Frontend, FrontendKey, Pool, RangeKey, ServicePlan
from vipwire.plan.planner import Planner
from vipwire.plan.resolve import Answered, Dropped, Plan, Rejected, Untouched, resolve_packet
from vipwire.plan.topology import categorize, list_candidates, usual_endpoints
from vipwire.reconcile.delta import apply_delta, compute_delta
from vipwire.reconcile.reconciler import Reconciler
from vipwire.watched_objects.event import Deleted, Event, Kind, Listed, Upserted
from vipwire.watched_objects.store import Store

mappings = st.dictionaries(st.integers(0, 8), st.integers(0, 3) | st.none())


@given(mappings, mappings)
def test_patching_with_the_difference_gives_what_was_wanted(
    have: dict[int, int | None], want: dict[int, int | None]
) -> None:
    delta = compute_delta(have, want)
    assert apply_delta(have, delta) == want
    assert not (delta.added.keys() & delta.changed.keys() | delta.changed.keys() & delta.removed.keys())
    assert bool(delta) is (have != want)


@given(SPACES.flatmap(lambda space: st.tuples(node_plans(space), st.lists(slices(space), max_size=2))))
def test_the_usual_endpoints_are_those_of_the_long_way(drawn: tuple[NodePlan, list[EndpointSlice]]) -> None:
    node, found = drawn
    for port in (port for piece in found for port in piece.ports):
        name = ServicePortName(NAMES[0], port.name, port.protocol)
        usual = usual_endpoints(name, node, found)
        long = categorize(list_candidates(name, node.family, found, node.name), node)
        assert usual in (None, long)


def test_a_slice_of_ready_endpoints_is_usual() -> None:
    piece = slice_of("web", endpoint("10.2.0.2"), endpoint("10.2.0.1"), endpoint("10.1.0.1", node=HERE))
    name = ServicePortName(piece.service, piece.ports[0].name, piece.ports[0].protocol)
    node = NodePlan(Family.IPV4, name=HERE)
    assert usual_endpoints(name, node, [piece]) == categorize(list_candidates(name, Family.IPV4, [piece], HERE), node)


def pools(plan: ServicePlan) -> list[tuple[Frontend, Pool]]:
    actions = [
        (frontend, action) for frontend in plan.frontends for action in (frontend.action, frontend.short_circuit)
    ]
    return [(frontend, action.pool) for frontend, action in actions if isinstance(action, Forward)]


@given(worlds())
def test_pools_are_sorted_without_duplicates_and_never_empty(world: World) -> None:
    for plan in world.planner().plans.values():
        for _, pool in pools(plan):
            assert pool
            ends = [(target.address, target.port) for target in pool]
            assert ends == sorted(set(ends))


@given(worlds())
def test_nobody_is_in_a_pool_who_cannot_answer(world: World) -> None:
    for name, plan in world.planner().plans.items():
        for frontend, pool in pools(plan):
            able = {
                (endpoint.address, port.port)
                for piece in world.view(name)[1]
                for port in piece.ports
                if (port.name, port.protocol) == (frontend.port_name.port, frontend.port_name.protocol)
                for endpoint in piece.endpoints
                if endpoint.ready or (endpoint.serving and endpoint.terminating)
            }
            assert {(target.address, target.port) for target in pool} <= able


@given(worlds(ranges=True))
def test_one_frontend_has_one_service_and_one_cluster_ip_one_owner(world: World) -> None:
    plans = world.planner().plans
    keys = [frontend.key for plan in plans.values() for frontend in plan.frontends]
    assert len(keys) == len(set(keys))
    owned = [address for plan in plans.values() for address in plan.cluster_ips]
    assert len(owned) == len(set(owned))
    wide = [(name, each.key) for name, plan in plans.items() for each in plan.ranges]
    single = [(name, each.key) for name, plan in plans.items() for each in plan.frontends]
    for name, key in wide:
        assert not any(overlap(key, other) for whose, other in wide + single if whose != name)
    owners = {address: name for name, plan in plans.items() for address in plan.cluster_ips}
    for plan in plans.values():
        for lost, winner in plan.lost:
            assert winner != plan.name
            if lost.address in owners:
                assert winner == owners[lost.address]
            else:  # the winner asks for it, too; a range among them may itself have been lost to a third
                assert any(overlap(lost, other) for other in list_claimed_keys(world.node, world.services[winner]))


def overlap(one: FrontendKey | RangeKey, other: FrontendKey | RangeKey) -> bool:
    """Tell whether two claims are of the same port of the same address."""
    return one[:2] == other[:2] and one[2] <= other[-1] and other[2] <= one[-1]


@given(worlds(ranges=True))
def test_own_objects_of_services_never_collide_and_shared_ones_agree(world: World) -> None:
    node = build_node_objects(world.node)
    own: set[object] = set(node)
    shared: dict[object, object] = {}
    for plan in world.planner().plans.values():
        rendered = render_service(world.space.family, plan)
        assert not own & rendered.own.keys()
        own |= rendered.own.keys()
        for key, value in rendered.shared.items():
            assert shared.setdefault(key, value) == value
    assert not own & shared.keys()


@given(data=st.data(), world=worlds())
def test_every_packet_has_an_outcome(data: st.DataObject, world: World) -> None:
    plan = Plan(world.node, dict(world.planner().plans.items()))
    outcome = resolve_packet(plan, data.draw(packets_for(world, plan.frontends)))
    assert isinstance(outcome, Answered | Dropped | Rejected | Untouched)
    if isinstance(outcome, Answered):
        assert outcome.masqueraded <= {target.address for target in outcome.pool}


# Events, and what they leave.


def events(space: Space) -> st.SearchStrategy[Event]:
    one_service, one_slice = services(space), slices(space)
    return st.one_of(
        one_service.map(Upserted),
        one_slice.map(Upserted),
        one_slice.map(Upserted),
        st.builds(Deleted, st.just(Kind.SERVICE), st.sampled_from(NAMES)),
        st.builds(Deleted, st.just(Kind.ENDPOINT_SLICE), st.sampled_from(SLICE_NAMES)),
        st.lists(one_service, max_size=3, unique_by=lambda item: item.name).map(
            lambda items: Listed(Kind.SERVICE, tuple(items))
        ),
        st.lists(one_slice, max_size=3, unique_by=lambda item: item.name).map(
            lambda items: Listed(Kind.ENDPOINT_SLICE, tuple(items))
        ),
    )


def subject(event: Event) -> tuple[Kind, ObjectName]:
    match event:
        case Upserted(item):
            name = item.name
            assert isinstance(name, ObjectName)
            return Kind(type(item).__name__), name
        case Deleted(kind, name):
            return kind, name
    raise AssertionError("a list is about many")


def from_scratch(store: Store, node: NodePlan) -> dict[ObjectName, ServicePlan]:
    planner = Planner(node)
    planner.update(store.services, store.view)
    return dict(planner.plans)


Step: TypeAlias = Event | NodePlan | None
"""An event, another node, or a sync."""


@st.composite
def histories(draw: st.DrawFn) -> tuple[NodePlan, list[Step]]:
    space = draw(SPACES)
    steps = st.one_of(events(space), events(space), st.none(), node_plans(space))
    return draw(node_plans(space)), draw(st.lists(steps, max_size=12))


@given(histories())
def test_planning_what_changed_is_planning_everything(history: tuple[NodePlan, list[Step]]) -> None:
    node, steps = history
    store, planner = Store(), Planner(node)
    believed: dict[ObjectName, ServicePlan] = {}
    for step in [*steps, None]:
        if isinstance(step, NodePlan):
            changes = planner.move(step, store.view)
        elif step is None:
            changed = store.take_touched()
            changes = planner.update(changed, store.view, 0.0, changed)
        else:
            store.apply(step)
            continue
        for name, change in changes.items():
            assert believed.get(name) == change.old != change.new
            believed[name] = change.new  # type: ignore[assignment]
            if change.new is None:
                del believed[name]
    assert believed == planner.plans == from_scratch(store, planner.node)


@given(SPACES.flatmap(lambda space: st.tuples(node_plans(space), st.lists(events(space)))), st.randoms())
def test_the_order_of_events_about_different_objects_does_not_matter(
    drawn: tuple[NodePlan, list[Event]], random: Random
) -> None:
    node, all_events = drawn
    single = {subject(event): event for event in all_events if not isinstance(event, Listed)}
    assert plans_after(single.values(), node) == plans_after(random.sample(list(single.values()), len(single)), node)


def plans_after(some: Iterable[Event], node: NodePlan) -> dict[ObjectName, ServicePlan]:
    store, planner = Store(), Planner(node)
    for event in some:
        store.apply(event)
        changed = store.take_touched()
        planner.update(changed, store.view, 0.0, changed)
    return dict(planner.plans)


# A kernel that is meddled with, refuses and fails. Each address belongs to one Service at a time.

ADDRESSES = [Address(bytes((10, 96, 0, last))) for last in range(6)]
owners = st.lists(st.sampled_from([None, *NAMES]), min_size=len(ADDRESSES), max_size=len(ADDRESSES))
garbage = st.dictionaries(
    st.sampled_from([*(address.hex() for address in ADDRESSES), "node", "size 1", "size 2", "foreign"]),
    st.sampled_from(["other", "shared", "14", *(str(name) for name in NAMES)]),
)
refused = st.frozensets(st.sampled_from([address.hex() for address in ADDRESSES]), max_size=2)


def desired(owning: Sequence[ObjectName | None]) -> dict[ObjectName, ServicePlan]:
    return {
        name: planned(name.name, *(a for a, owner in zip(ADDRESSES, owning, strict=True) if owner == name))
        for name in {owner for owner in owning if owner is not None}
    }


def objects_of(kernel: DictBackend, plans: dict[ObjectName, ServicePlan]) -> dict[str, str]:
    wanted = {"node": "14"}
    for plan in plans.values():
        rendered = kernel.render(plan)
        wanted |= {**rendered.own, **rendered.shared}
    return wanted


def wish(reconciler: Reconciler[str, str], plans: dict[ObjectName, ServicePlan]) -> None:
    for name in NAMES:
        reconciler.desire(name, plans.get(name))


@given(garbage, owners)
def test_from_any_garbage_one_sync_converges_and_the_next_is_empty(
    held: dict[str, str], owning: list[ObjectName | None]
) -> None:
    kernel, plans = DictBackend(held), desired(owning)
    reconciler: Reconciler[str, str] = Reconciler(kernel)
    reconciler.desire_node({"node": "14"})
    wish(reconciler, plans)
    reconciler.sync()
    assert kernel.held == objects_of(kernel, plans)
    commits = len(kernel.deltas)
    reconciler.distrust()
    reconciler.sync()
    assert len(kernel.deltas) == commits <= 1


Move: TypeAlias = tuple[list[ObjectName | None], frozenset[str], dict[str, str] | None, bool]
"""Who owns what from now on, what the kernel refuses, what others do to it, and whether it answers."""


@given(st.lists(st.tuples(owners, refused, garbage | st.none(), st.sampled_from([True, True, False])), max_size=6))
def test_after_any_trouble_one_retry_brings_everything_in_order(moves: list[Move]) -> None:
    kernel = DictBackend()
    reconciler: Reconciler[str, str] = Reconciler(kernel)
    reconciler.desire_node({"node": "14"})
    plans: dict[ObjectName, ServicePlan] = {}
    for owning, keys, meddled, answers in moves:
        plans = desired(owning)
        wish(reconciler, plans)
        kernel.refused = set(keys)
        kernel.fails = "" if answers else "no answer"
        if meddled is not None:
            kernel.meddle(lambda held, meddled=meddled: (held.clear(), held.update(meddled)))  # type: ignore[misc]
        try:
            reconciler.verify()
            reconciler.sync()
        except OSError:
            reconciler.distrust()
            continue
        refusing = reconciler.isolated
        wanted = objects_of(kernel, {name: plan for name, plan in plans.items() if name not in refusing})
        assert wanted.items() <= kernel.held.items() or refusing
        for address in ADDRESSES:
            assert kernel.held.get(address.hex()) in {None, *map(str, NAMES)}
    kernel.refused, kernel.fails = set(), ""
    reconciler.retry()
    reconciler.sync()
    assert kernel.held == objects_of(kernel, plans)
    assert reconciler.isolated == {}
    commits = len(kernel.deltas)
    reconciler.distrust()
    reconciler.sync()
    assert len(kernel.deltas) == commits
