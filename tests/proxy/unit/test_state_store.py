"""What the store knows after which events, and what it says has to be planned again."""

import tracemalloc

import pytest
from tests.fakes.values import endpoint, ips, named, port, service, slice_of

from vipwire.model.names import ObjectName
from vipwire.model.net import Family, Prefix
from vipwire.model.node import Node, ServiceCIDR
from vipwire.model.problem import Problem
from vipwire.model.service import EndpointSlice
from vipwire.watched_objects.event import Deleted, Event, Kind, Listed, Upserted
from vipwire.watched_objects.store import Store

WEB, DB = named("web"), named("db")
NODE = ObjectName("", "node-1")


def after(*events: Event) -> Store:
    """Make a store that took events and has nothing dirty."""
    store = Store()
    for event in events:
        store.apply(event)
    store.take_touched()
    store.node_changed = False
    return store


def is_dirty(store: Store) -> bool:
    return store.dirty


def problems(store: Store) -> tuple[Problem, ...]:
    return store.problems


def piece(name: str, of: str = "web", *addresses: str) -> EndpointSlice:
    return slice_of(of, *(endpoint(address) for address in addresses), name=name)


def slices_of(store: Store, name: ObjectName) -> list[str]:
    return [item.name.name for item in store.view(name)[1]]


def test_nothing_may_be_programmed_before_every_kind_was_listed() -> None:
    store = Store()
    assert store.waiting == set(Kind)
    for kind in Kind:
        assert kind in store.waiting
        store.apply(Listed(kind, ()))
    assert store.waiting == frozenset()


def test_changes_before_the_list_do_not_end_the_wait() -> None:
    store = after(Upserted(service("web")))
    assert Kind.SERVICE in store.waiting


def test_a_service_is_dirty_once_in_the_order_of_first_changes() -> None:
    store = after()
    for event in (Upserted(service("web")), Upserted(service("db")), Upserted(service("web", "10.96.0.9"))):
        store.apply(event)
    assert is_dirty(store)
    assert tuple(store.take_touched()) == (WEB, DB)
    assert not is_dirty(store)
    assert not store.take_touched()


def test_what_did_not_change_is_not_dirty() -> None:
    store = after(Upserted(service("web")), Upserted(piece("a", "web", "10.1.0.1")))
    store.apply(Upserted(service("web")))
    store.apply(Upserted(piece("a", "web", "10.1.0.1")))
    store.apply(Deleted(Kind.SERVICE, named("never")))
    store.apply(Deleted(Kind.ENDPOINT_SLICE, named("never")))
    assert not store.dirty


def test_a_relist_adds_changes_and_removes_and_leaves_the_rest_alone() -> None:
    same, other, gone = service("same"), service("other"), service("gone")
    store = after(Listed(Kind.SERVICE, (same, other, gone)))
    new = service("new")
    store.apply(Listed(Kind.SERVICE, (same, service("other", "10.96.0.7"), new)))
    assert set(store.take_touched()) == {other.name, gone.name, new.name}
    assert set(store.services) == {same.name, other.name, new.name}


def test_the_last_slice_of_a_service_can_go() -> None:
    store = after(Upserted(piece("a")))
    store.apply(Deleted(Kind.ENDPOINT_SLICE, named("a")))
    assert tuple(store.take_touched()) == (WEB,)
    assert slices_of(store, WEB) == []
    store.apply(Deleted(Kind.ENDPOINT_SLICE, named("a")))
    assert not store.dirty


def test_the_newest_trigger_of_a_services_slices_counts() -> None:
    def at(name: str, seconds: float | None) -> EndpointSlice:
        return EndpointSlice(named(name), WEB, piece("a").family, triggered=seconds)

    store = after(*map(Upserted, [at("a", 5.0), at("b", 7.0), at("c", None)]))
    assert store.triggered(WEB) == 7.0
    assert store.triggered(DB) is None


@pytest.mark.parametrize(
    "event",
    [
        Upserted(Node("node-1", ips("192.168.0.3"))),
        Upserted(Node("node-2")),
        Deleted(Kind.NODE, NODE),
        Listed(Kind.NODE, ()),
        Upserted(ServiceCIDR("kubernetes", (Prefix.parse("10.98.0.0/16"),))),
        Deleted(Kind.SERVICE_CIDR, ObjectName("", "kubernetes")),
        Listed(Kind.SERVICE_CIDR, ()),
    ],
)
def test_a_change_of_nodes_and_ranges_is_seen_and_makes_no_service_dirty(event: Event) -> None:
    store = after(
        Upserted(Node("node-1", ips("192.168.0.2"))),
        Upserted(ServiceCIDR("kubernetes", (Prefix.parse("10.96.0.0/16"),))),
    )
    store.apply(event)
    assert store.node_changed
    assert not store.dirty


@pytest.mark.parametrize(
    "event",
    [Upserted(Node("node-1")), Listed(Kind.NODE, (Node("node-1"),)), Deleted(Kind.NODE, ObjectName("", "other"))],
)
def test_a_node_said_again_is_no_change(event: Event) -> None:
    store = after(Upserted(Node("node-1")))
    store.apply(event)
    assert not store.node_changed


def test_the_ranges_come_by_name() -> None:
    second, first = (ServiceCIDR(name, (Prefix.parse("10.96.0.0/16"),)) for name in ("b", "a"))
    assert after(Upserted(second), Upserted(first)).service_cidrs == (first, second)


BAD_PORT = Problem("Service", WEB, "spec.ports[1].port", "is 0")
BAD_IP = Problem("Service", WEB, "spec.externalIPs[0]", "is no address")
BAD_FILE = Problem("Manifest", ObjectName("", "web.yaml"), "line 3", "does not parse")
BAD_ENDPOINTS = Problem("Endpoints", WEB, "subsets[0].ports[0].port", "is 0")


def test_a_problem_is_told_once_as_long_as_it_lasts_and_again_when_it_comes_back() -> None:
    store = Store()
    assert store.apply(Upserted(service("web"), (BAD_PORT,))) == (BAD_PORT,)
    assert store.apply(Upserted(service("web", "10.96.0.2"), (BAD_PORT, BAD_IP))) == (BAD_IP,)
    assert problems(store) == (BAD_PORT, BAD_IP)
    assert store.apply(Upserted(service("web"))) == ()
    assert problems(store) == ()
    assert store.apply(Upserted(service("web"), (BAD_PORT,))) == (BAD_PORT,)


def test_a_problem_said_twice_in_one_event_is_told_once() -> None:
    assert Store().apply(Upserted(service("web"), (BAD_PORT, BAD_PORT))) == (BAD_PORT,)


def test_a_deletion_may_bring_problems_and_may_end_them() -> None:
    store = after(Upserted(service("web")))
    assert store.apply(Deleted(Kind.SERVICE, WEB, (BAD_PORT,))) == (BAD_PORT,)
    assert problems(store) == (BAD_PORT,)
    assert store.apply(Deleted(Kind.SERVICE, WEB)) == ()
    assert problems(store) == ()


def test_a_relist_tells_only_new_problems_and_ends_those_it_does_not_name() -> None:
    store = after(Listed(Kind.SERVICE, (service("web"),), (BAD_PORT,)))
    assert store.apply(Listed(Kind.SERVICE, (service("web"),), (BAD_PORT, BAD_IP))) == (BAD_IP,)
    assert store.apply(Listed(Kind.ENDPOINT_SLICE, ())) == ()
    assert problems(store) == (BAD_PORT, BAD_IP)
    assert store.apply(Listed(Kind.SERVICE, (service("web"),))) == ()
    assert problems(store) == ()


def test_the_same_words_about_two_objects_are_two_problems() -> None:
    store = after(Upserted(service("web"), (BAD_PORT,)))
    other = BAD_PORT._replace(object=DB)
    assert store.apply(Upserted(service("db"), (other,))) == (other,)


def test_a_listed_problem_ends_with_the_next_event_about_the_object() -> None:
    store = after(Listed(Kind.SERVICE, (service("web"),), (BAD_PORT,)))
    store.apply(Upserted(service("web", "10.96.0.1", port(81))))
    assert problems(store) == ()


def test_the_problem_of_a_file_ends_with_the_file() -> None:
    store = after(Listed(Kind.SERVICE, (), (BAD_FILE,)))
    store.apply(Deleted(Kind.SERVICE, BAD_FILE.object))
    assert problems(store) == ()
    assert store.apply(Deleted(Kind.SERVICE, BAD_FILE.object, (BAD_FILE,))) == (BAD_FILE,)
    assert store.apply(Listed(Kind.SERVICE, (), (BAD_FILE,))) == ()
    assert problems(store) == (BAD_FILE,)


def test_the_problem_of_endpoints_is_spoken_of_by_their_first_slice() -> None:
    first, second = piece("web:0:IPv4"), piece("web:1:IPv4")
    listed = Listed(Kind.ENDPOINT_SLICE, (first, second), (BAD_ENDPOINTS,))
    for store in (after(listed), after(Upserted(first, (BAD_ENDPOINTS,)), Upserted(second))):
        assert store.apply(Upserted(second)) == ()
        assert problems(store) == (BAD_ENDPOINTS,)
        assert store.apply(Upserted(first, (BAD_ENDPOINTS,))) == ()
        assert store.apply(Upserted(first)) == ()
        assert problems(store) == ()


def test_very_many_endpoints_of_a_family_are_told_and_few_enough_again() -> None:
    store = Store()
    store.node_changed = False

    def hold(name: str, count: int) -> None:
        store.apply(Upserted(slice_of(name, *(endpoint(f"10.{at >> 8}.{at & 255}.1") for at in range(count)))))

    hold("a", 600)
    hold("b", 400)
    assert (store.crowded, store.node_changed) == (frozenset(), False)
    hold("b", 401)
    assert store.crowded == {Family.IPV4}
    assert store.node_changed
    store.node_changed = False
    hold("b", 301)
    assert store.crowded == {Family.IPV4}, "around the limit nothing changes"
    assert not store.node_changed
    store.apply(Deleted(Kind.ENDPOINT_SLICE, slice_of("b").name))
    assert (store.crowded, store.node_changed) == (frozenset(), True)


def test_the_store_tells_a_service_that_changed_from_one_of_which_endpoints_did() -> None:
    store = after(Upserted(service("web")), Upserted(piece("web-a", "web", "10.0.0.1")), Upserted(service("db")))
    store.apply(Upserted(piece("web-a", "web", "10.0.0.2")))
    store.apply(Deleted(Kind.SERVICE, DB))
    store.apply(Upserted(piece("db-a", "db", "10.0.0.3")))
    assert store.touched == 2
    assert store.take_touched() == {WEB: False, DB: True}
    assert (store.touched, store.take_touched()) == (0, {})


def test_a_slice_takes_little_room_beside_itself() -> None:
    pieces = [piece(f"s{number}-a", f"s{number}", "10.0.0.1") for number in range(1000)]
    store = Store()
    tracemalloc.start()
    try:
        for each in pieces:
            store.apply(Upserted(each))
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held / len(pieces) < 280
