"""A large map is read by its keys: the same as its listing, and a listing where the keys cannot be told."""

from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest
from tests.fakes.own_network import own_network, run
from tests.fakes.values import HERE, endpoint, node_plan, port, service, slice_of

from vipwire.linux.netlink.nftables.generations import Generations
from vipwire.linux.netlink.nftables.wire import MessageType
from vipwire.linux.netlink.socket import NETLINK_NETFILTER, NetlinkSocket
from vipwire.model.net import Family
from vipwire.model.service import Endpoint, Service, TrafficPolicy
from vipwire.modes.nftables.kernel import NftablesBackend
from vipwire.modes.nftables.pooled import PooledBackend
from vipwire.modes.nftables.table.names import CHAIN, SET, Object, ObjectKey
from vipwire.modes.nftables.table.read import INDEXED
from vipwire.plan.plan import ServicePlan
from vipwire.plan.planner import Planner
from vipwire.reconcile.backend import Rendered
from vipwire.reconcile.delta import Delta
from vipwire.reconcile.reconciler import Reconciler
from vipwire.watched_objects.event import Upserted
from vipwire.watched_objects.store import Store

pytestmark = pytest.mark.kernel
LISTED, BY_KEY = 1 << 30, 1
ENDPOINTS = tuple(endpoint(f"10.1.0.{number}", HERE if number % 2 else "elsewhere") for number in range(1, 8))


def services() -> Iterator[Service]:
    """Make Services of every kind of pool: plain, in turn, remembered, by weight, Local at a node port."""
    yield service("plain", "10.96.0.1", port(80, node_port=30080))
    yield service("turns", "10.96.0.2", annotations=(("vipwire.io/algorithm", "round-robin"),))
    yield service("sticky", "10.96.0.3", affinity_seconds=600)
    yield service("weighed", "10.96.0.4", annotations=(("vipwire.io/weights", '{"10.1.0.1": 3}'),))
    yield service(
        "local",
        "10.96.0.5",
        port(80, node_port=30081),
        external_policy=TrafficPolicy.LOCAL,
        affinity_seconds=10,
        annotations=(("vipwire.io/algorithm", "round-robin"),),
    )


class Asking(NetlinkSocket):
    """Notes how many elements were asked for by their keys, and how many sets were listed one datagram at a time."""

    asked = listed = 0

    def dump(self, kind: int, payload: bytes, size: int = 1 << 20) -> Iterator[memoryview]:
        self.listed += kind == MessageType.GETSETELEM
        return super().dump(kind, payload, size)

    def request_answers(self, kind: int, payload: bytes, count: int, size: int = 512) -> list[bytes]:
        self.asked += count
        return super().request_answers(kind, payload, count, size)


@pytest.fixture
def asking() -> Iterator[Asking]:
    with own_network():
        yield Asking(NETLINK_NETFILTER)


@pytest.fixture
def backend(asking: Asking) -> Iterator[NftablesBackend]:
    """Program them."""
    with closing(NftablesBackend(Family.IPV4, sock=asking)) as made:
        objects = dict(made.render_node(node_plan()))
        for plan in plans():
            rendered = made.render(plan)
            objects.update({**rendered.own, **rendered.shared})
        made.commit(Delta(added=objects))
        yield made


def plans(*endpoints: Endpoint) -> list[ServicePlan]:
    planner, store = Planner(node_plan()), Store()
    for each in services():
        store.apply(Upserted(each))
        store.apply(Upserted(slice_of(each.name.name, *(endpoints or ENDPOINTS))))
    planner.update(store.take_touched(), store.view)
    return list(planner.plans.values())


def read(backend: NftablesBackend, large: int) -> dict[ObjectKey, Object]:
    """Read the table, asking by keys from so many elements on."""
    backend.large = large
    return backend.observe()


def test_a_map_read_by_its_keys_is_as_it_is_listed(backend: NftablesBackend, asking: Asking) -> None:
    listed = read(backend, LISTED)
    assert not asking.asked
    assert len([key for key in listed if key[0] == "service-endpoints"]) == 7 + 7 + 9, "of three Services"
    assert read(backend, BY_KEY) == listed
    assert asking.asked == len([key for key in listed if key[0] in INDEXED])


@pytest.mark.parametrize("removed", ["10.96.0.1 . tcp . 80 . 0:3", ""])
@pytest.mark.parametrize("added", ["10.96.0.99 . tcp . 80 . 0:3 : 10.9.9.9 . 80", ""])
def test_what_others_have_added_and_removed_is_seen(backend: NftablesBackend, removed: str, added: str) -> None:
    before = read(backend, BY_KEY)
    if removed:
        run(f"nft delete element ip vipwire service-endpoints {{ {removed} }}")
    if added:
        run(f"nft add element ip vipwire service-endpoints {{ {added} }}")
    after = read(backend, BY_KEY)
    assert len(before) - len(after) == bool(removed) - bool(added)
    assert after == read(backend, LISTED)


def test_another_value_is_seen(backend: NftablesBackend) -> None:
    before = read(backend, BY_KEY)
    slot = "10.96.0.1 . tcp . 80 . 0:3"
    run(f"nft delete element ip vipwire service-endpoints {{ {slot} }}")
    run(f"nft add element ip vipwire service-endpoints {{ {slot} : 10.9.9.9 . 80 }}")
    after = read(backend, BY_KEY)
    assert sum(before[key] != after[key] for key in before) == 1


SLOT = "10.96.0.1 . tcp . 80 . 0"


class RefusedBackend(PooledBackend):
    """The kernel refuses the Service `more`, whose element has no set."""

    def render(self, plan: ServicePlan) -> Rendered[ObjectKey, Object]:
        rendered = super().render(plan)
        refused: dict[ObjectKey, Object] = {("no-such-set", bytes(4)): b""} if plan.name.name == "more" else {}
        return Rendered({**rendered.own, **refused}, rendered.shared)


def reconcile(backend: NftablesBackend) -> Reconciler[ObjectKey, Object]:
    """Adopt the Services of the kernel."""
    reconciler: Reconciler[ObjectKey, Object] = Reconciler(RefusedBackend(backend))
    reconciler.desire_node(backend.render_node(node_plan()))
    for plan in plans():
        reconciler.desire(plan.name, plan)
    adopted = reconciler.sync()
    assert (adopted.added, adopted.changed, adopted.removed) == (0, 0, 0)
    return reconciler


@pytest.mark.parametrize("large", [LISTED, BY_KEY])
@pytest.mark.parametrize(
    "meddling",
    [
        (),
        (f"delete {SLOT}:3",),
        (f"delete {SLOT}:1",),
        (f"delete {SLOT}:7",),
        (f"add {SLOT}:8 : 10.9.9.9 . 80",),
        (f"add {SLOT}:9 : 10.9.9.9 . 80", "add 10.96.0.99 . tcp . 80 . 0:3 : 10.9.9.9 . 80"),
        (f"delete {SLOT}:2", f"add {SLOT}:2 : 10.9.9.9 . 80", f"delete {SLOT}:5"),
        ("delete 10.96.0.2 . tcp . 80 . 0:1", f"delete {SLOT}:1", f"add {SLOT}:1 : 10.9.9.9 . 80"),
        (f"delete {SLOT}:1", f'add {SLOT}:1 comment "theirs" : 10.1.0.1 . 80'),
        (f"delete {SLOT}:3", f'add {SLOT}:3 comment "theirs" : 10.9.9.9 . 80'),
    ],
)
@pytest.mark.parametrize("refused", [False, True])
def test_pools_that_others_have_changed_are_repaired(
    backend: NftablesBackend, large: int, meddling: tuple[str, ...], *, refused: bool
) -> None:
    before = read(backend, large)
    reconciler = reconcile(backend)
    for words in meddling:
        verb, element = words.split(" ", 1)
        run(f"nft {verb} element ip vipwire service-endpoints {{ {element} }}")
    assert reconciler.verify() is bool(meddling)
    more = replaced("10.97.0.1")
    if refused:
        reconciler.desire(more.name, more)
    assert bool(reconciler.sync().repaired) is bool(meddling)
    assert list(reconciler.isolated) == [more.name] * refused
    assert read(backend, large) == before


def test_pools_that_shrink_while_others_commit_are_no_repair(backend: NftablesBackend) -> None:
    reconciler = reconcile(backend)
    for plan in plans(*ENDPOINTS[:-1]):
        reconciler.desire(plan.name, plan)
    run("nft add table ip others")
    assert reconciler.verify()
    assert reconciler.sync().repaired == []


def test_a_map_that_grows_beyond_one_request_is_read_as_well(backend: NftablesBackend) -> None:
    added = {
        key: value
        for number in range(100, 200)
        for key, value in backend.render(replaced(f"10.97.0.{number}")).own.items()
    }
    backend.commit(Delta(added=added))
    assert read(backend, BY_KEY) == read(backend, LISTED)


def replaced(address: str) -> ServicePlan:
    """Plan a Service at another address."""
    store, planner = Store(), Planner(node_plan())
    store.apply(Upserted(service("more", address)))
    store.apply(Upserted(slice_of("more", *ENDPOINTS)))
    (change,) = planner.update(store.take_touched(), store.view).values()
    assert change.new is not None
    return change.new


def test_what_is_listed_ahead_is_not_listed_again(backend: NftablesBackend, asking: Asking) -> None:
    expected = read(backend, LISTED)
    every, asking.listed = asking.listed, 0
    backend.worthwhile = 7
    backend.read_ahead()
    assert read(backend, LISTED) == expected
    large = {name for name, _ in expected if sum(key[0] == name for key in expected) >= backend.worthwhile}
    assert large
    assert asking.listed == every - len(large - {CHAIN, SET})


def test_what_others_change_after_it_was_listed_is_seen(backend: NftablesBackend) -> None:
    backend.worthwhile = 1
    backend.read_ahead()
    run("nft delete element ip vipwire service-endpoints { 10.96.0.1 . tcp . 80 . 0:3 }")
    changed = read(backend, LISTED)
    assert changed == read(backend, LISTED)


def test_without_a_table_there_is_nothing_to_list_ahead(asking: Asking) -> None:
    with closing(NftablesBackend(Family.IPV4, sock=asking)) as backend:
        backend.read_ahead()
        assert backend.observe() == {}


class OfABusyNode(Generations):
    """Another program commits again and again, then pauses."""

    commits = 40

    def observe(self) -> int:
        self.commits = max(self.commits - 1, 0)
        return super().observe() + self.commits


class Sized(Generations):
    """Notes how many elements the last commit had."""

    elements = 0

    @contextmanager
    def pause_during_own_commit(self, elements: int) -> Iterator[None]:
        self.elements = elements
        yield


@pytest.mark.usefixtures("backend")
def test_a_commit_is_as_large_as_its_elements() -> None:
    with closing(Sized()) as sized, closing(NftablesBackend(Family.IPV4, sized)) as other:
        reconciler, before = reconcile(other), len(other.observe())
        for plan in plans():
            reconciler.desire(plan.name, None)
        reconciler.sync()
        assert sized.elements == before - len(other.observe())


@pytest.mark.usefixtures("backend")
def test_a_table_is_read_although_others_commit_all_the_time() -> None:
    with closing(NftablesBackend(Family.IPV4)) as calm, closing(NftablesBackend(Family.IPV4, OfABusyNode())) as busy:
        assert set(busy.observe()) == set(calm.observe()) != set()


class Frugal(Generations):
    """Does not ask after a commit that the kernel has taken as one that nobody else came before."""

    def count_own(self, commits: int) -> None:
        del commits
        pytest.fail("asked for what the transaction has told")


def test_the_kernel_is_not_asked_after_a_commit_and_yet_those_of_others_are_noticed() -> None:
    with own_network(), closing(NftablesBackend(Family.IPV4, Frugal())) as backend:
        assert backend.observe() == {}
        backend.commit(Delta(added=dict(backend.render_node(node_plan()))))
        backend.commit(Delta(added=dict(replaced_objects(backend, "10.97.0.1"))))
        assert not backend.changed()
        known = backend.observe()
    assert known


def test_a_commit_is_taken_although_others_have_committed_and_that_is_noticed(backend: NftablesBackend) -> None:
    backend.observe()
    run("nft add table ip others")
    added = replaced_objects(backend, "10.97.0.1")
    backend.commit(Delta(added=added))
    assert backend.changed()
    assert added.items() <= backend.observe().items()
    assert not backend.changed()


def replaced_objects(backend: NftablesBackend, address: str) -> dict[ObjectKey, Object]:
    """Render a Service at another address, without what it shares."""
    return dict(backend.render(replaced(address)).own)
