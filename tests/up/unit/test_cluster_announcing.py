"""Addresses that move: who should have which, and that no two machines have one at a time whatever fails when."""

import asyncio
import copy
import itertools
import random
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from vipwire.kube.errors import ApiError, UnreachableError
from vipwire.kube.lease import build_lease
from vipwire.kube.resource import ObjectReader
from vipwire.model.names import ObjectName
from vipwire_up.announcing.choose import View, choose_machine
from vipwire_up.announcing.claims import SECONDS, Claims
from vipwire_up.announcing.kinds import (
    LEASE_ADDRESS,
    RESOURCES,
    AnnounceKind,
    Balanced,
    Held,
    Machine,
    Placed,
)
from vipwire_up.api.objects.errors import store_full
from vipwire_up.api.objects.object import encode
from vipwire_up.api.objects.resource import Object, Resource

NODES = ("n1", "n2", "n3")
SKEWS = {"n1": 0.0, "n2": 1e6, "n3": -3600.0}
"""How far the machines' clocks are off, in seconds."""
ADDRESSES = tuple(f"192.0.2.{number}" for number in range(1, 31))
NAME = ObjectName("default", "web")
READERS = {resource.kind: ObjectReader(resource) for resource in RESOURCES}


def test_addresses_are_spread_evenly_and_few_move() -> None:
    many = [f"10.0.{high}.{low}" for high in range(4) for low in range(250)]
    before = {address: choose_machine(address, NODES) for address in many}
    for node in NODES:
        assert 250 < list(before.values()).count(node) < 420
    without = {address: choose_machine(address, NODES[:2]) for address in many}
    assert all(without[address] == node for address, node in before.items() if node != "n3")
    assert choose_machine("10.0.0.1", ()) == ""


def machine(name: str, *labels: tuple[str, str], ready: bool = True, excluded: bool = False) -> Machine:
    return Machine(name, ready, frozenset(labels), excluded)


def balanced(
    *wanted: tuple[str, str], name: ObjectName = NAME, addresses: str = "a", local: bool = False, interface: str = ""
) -> Balanced:
    return Balanced(name, tuple(addresses), local, interface, wanted)


BOTH = (machine("n1"), machine("n2"))


@pytest.mark.parametrize(
    ("machines", "service", "nodes", "able"),
    [
        (BOTH, balanced(), (), {"n1", "n2"}),
        ((machine("n1", ready=False), machine("n2")), balanced(), (), {"n2"}),
        ((machine("n1", excluded=True), machine("n2")), balanced(), (), {"n2"}),
        (BOTH, balanced(local=True), ("n1",), {"n1"}),
        (BOTH, balanced(local=True), (), {""}),
        ((machine("n1", ("rack", "a")), machine("n2")), balanced(("rack", "a")), (), {"n1"}),
        (BOTH, balanced(interface="eth1"), (), {"n2"}),
        ((machine("n1"), machine("n3")), balanced(), (), {"n1"}),
    ],
)
def test_who_may_announce(
    machines: tuple[Machine, ...], service: Balanced, nodes: tuple[str, ...], able: set[str]
) -> None:
    view = View()
    view.machines = {each.name: each for each in machines}
    view.services[NAME] = service
    view.slices[NAME] = Placed(NAME, NAME, frozenset(nodes))
    assert view.choose_holders({"n1": "eth0", "n2": "eth1"})["a"] in able


def test_services_that_share_an_address_share_the_machine() -> None:
    view = View()
    view.machines = {each: machine(each) for each in NODES}
    other = ObjectName("default", "other")
    view.services = {NAME: balanced(local=True), other: balanced(name=other, addresses="ab", local=True)}
    view.slices = {
        NAME: Placed(NAME, NAME, frozenset(("n1", "n2"))),
        other: Placed(other, other, frozenset(("n2", "n3"))),
    }
    assert view.choose_holders(dict.fromkeys(NODES, "eth0"))["a"] == "n2"
    assert view.services_at("a") == [other, NAME]


def read(kind: AnnounceKind, value: dict[str, Any]) -> Any:
    return READERS[kind].read(encode(value), "").object


def test_objects_are_read_as_far_as_they_matter() -> None:
    meta = {"name": "web", "namespace": "default", "annotations": {"announce.vipwire.io/from": "rack=a, edge"}}
    ingress = {"loadBalancer": {"ingress": [{"ip": "192.0.2.1"}]}}
    spec = {"type": "LoadBalancer", "externalTrafficPolicy": "Local"}
    service = {"metadata": meta, "spec": spec, "status": ingress}
    found = read(AnnounceKind.SERVICE, service)
    assert (found.addresses, found.local, found.wanted) == (("192.0.2.1",), True, (("rack", "a"), ("edge", "")))
    for other in ({"type": "ClusterIP"}, {"type": "LoadBalancer", "loadBalancerClass": "others"}):
        assert read(AnnounceKind.SERVICE, service | {"spec": other}) is None
    lease = {"metadata": {"name": "n1", "namespace": "kube-node-lease"}, "spec": {"holderIdentity": "n1"}}
    assert read(AnnounceKind.LEASE, lease) is None
    labelled = {"name": "s", "namespace": "default", "labels": {"kubernetes.io/service-name": "web"}}
    ends = [{"nodeName": "n1", "conditions": {"ready": True}}, {"nodeName": "n2", "conditions": {"ready": False}}]
    assert read(AnnounceKind.SLICE, {"metadata": labelled, "endpoints": ends}).nodes == {"n1"}


class World:
    """A store in memory, whose requests fail before or after they are done, and which tells of changes late."""

    def __init__(self, chance: random.Random) -> None:
        self.chance, self.now = chance, 0.0
        self.leases: dict[str, Object] = {}
        self.history: list[Object] = []
        self._versions = itertools.count(1)
        self.unreachable: set[str] = set()
        self.full = False

    def store(self, value: Object) -> Object:
        if self.full:
            raise store_full("database space exceeded")
        value = copy.deepcopy(value)
        value["metadata"]["resourceVersion"] = str(next(self._versions))
        value["metadata"]["namespace"] = "kube-system"
        self.leases[value["metadata"]["name"]] = value
        self.history.append(value)
        return copy.deepcopy(value)


class Objects:
    """The world as a machine reaches it."""

    def __init__(self, world: World, node: str) -> None:
        self._world, self._node = world, node

    async def _passed(self) -> None:
        """Let time pass and others act on the way; perhaps lose the message."""
        for _ in range(self._world.chance.randrange(4)):
            await asyncio.sleep(0)
        if self._node in self._world.unreachable or self._world.chance.random() < 0.03:
            raise UnreachableError("lost")

    async def read(self, _resource: Resource, _namespace: str, name: str) -> Object | None:
        await self._passed()
        found = copy.deepcopy(self._world.leases.get(name))
        await self._passed()
        return found

    read_newest = read

    async def create(self, _resource: Resource, _namespace: str, value: Object) -> Object:
        await self._passed()
        if value["metadata"]["name"] in self._world.leases:
            raise ApiError(409, "AlreadyExists", "there is one")
        made = self._world.store(value)
        await self._passed()
        return made

    async def replace(self, _resource: Resource, _namespace: str, value: Object, *, subresource: str = "") -> Object:
        del subresource
        await self._passed()
        if self._world.full:  # etcd refuses before it compares
            raise store_full("database space exceeded")
        found = self._world.leases.get(value["metadata"]["name"])
        if found is None:
            raise ApiError(404, "NotFound", "there is none")
        if found["metadata"]["resourceVersion"] != value["metadata"]["resourceVersion"]:
            raise ApiError(409, "Conflict", "it has changed")
        made = self._world.store(value)
        await self._passed()
        return made

    async def list(self, _resource: Resource, _namespace: str = "") -> list[Object]:
        raise NotImplementedError

    async def edit(self, *_: Any, **__: Any) -> Object:
        raise NotImplementedError

    async def delete(self, *_: Any) -> None:
        raise NotImplementedError


class Peer:
    def __init__(self, world: World, node: str) -> None:
        self.world, self.node, self.heard = world, node, 0
        self._skew = SKEWS[node]
        self.claims = Claims(Objects(world, node), node, "eth0", self.time, clock=lambda: world.now + self._skew)

    def time(self) -> datetime:
        return datetime.fromtimestamp(self.world.now + self._skew, UTC)

    def hear(self) -> None:
        """Read some of the changes, in their order."""
        if self.node in self.world.unreachable:
            return
        until = self.world.chance.randint(self.heard, len(self.world.history))
        for value in self.world.history[self.heard : until]:
            found = read(AnnounceKind.LEASE, value)
            assert isinstance(found, Held)
            self.claims.record_lease(found)
        self.heard = until

    async def renew(self) -> None:
        while True:
            done = await _tried(self.claims.renew_own_lease())
            await _ticks(self.world, SECONDS / 5 if done else 0.1)

    async def settle(self) -> None:
        while True:
            self.hear()
            alive = self.claims.machines_alive()
            for address in ADDRESSES[:3]:
                wanted = choose_machine(address, alive)
                mine = address in self.claims.mine
                if wanted == self.node and not mine:
                    await _tried(self.claims.take_address(address))
                elif mine and wanted not in ("", self.node):
                    await _tried(self.claims.give_address(address, wanted))
            await _ticks(self.world, 0.1)

    def announces(self) -> set[str]:
        return self.claims.mine if self.claims.may_announce() else set()


async def _tried(step: Any) -> bool:
    try:
        await step
    except (ApiError, UnreachableError):
        return False
    return True


async def _ticks(world: World, seconds: float) -> None:
    until = world.now + seconds
    while world.now < until:  # noqa: ASYNC110  # a clock that the test moves
        await asyncio.sleep(0)


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 6))])
async def test_no_two_machines_announce_one_address_whatever_fails(seed: int) -> None:
    chance = random.Random(seed)  # noqa: S311  # a test's
    world = World(chance)
    peers, owned = [Peer(world, node) for node in NODES], 0
    async with asyncio.TaskGroup() as tasks:
        running = [tasks.create_task(work) for peer in peers for work in (peer.renew(), peer.settle())]
        while world.now < 120:
            world.now += chance.choice((0.01, 0.02, 0.05))
            if chance.random() < 0.02:
                world.unreachable = {node for node in NODES if chance.random() < 0.4}
            if chance.random() < 0.005:
                world.full = chance.random() < 0.4
            if chance.random() < 0.002:
                world.now += chance.uniform(0, 5)  # all machines stood still
            await asyncio.sleep(0)
            for address in ADDRESSES[:3]:
                having = [peer.node for peer in peers if address in peer.announces()]
                assert len(having) <= 1, f"{address} at {world.now}: {having}"
                owned += len(having)
        for task in running:
            task.cancel()
    assert owned > 1000


class Steady(Objects):
    """The world as a machine reaches it that loses no message, but answers when it is told to."""

    def __init__(self, world: World) -> None:
        super().__init__(world, "n1")
        self.lost: ApiError | None = None
        self.meanwhile: Callable[[], object] = lambda: None
        """What happens between a write and its answer."""

    async def _passed(self) -> None:
        return

    async def replace(self, resource: Resource, namespace: str, value: Object, *, subresource: str = "") -> Object:
        made = await super().replace(resource, namespace, value, subresource=subresource)
        meanwhile, self.meanwhile = self.meanwhile, lambda: None
        meanwhile()
        lost, self.lost = self.lost, None
        if lost is not None:
            raise lost
        return made


def steady() -> tuple[World, Steady, Claims]:
    world = World(random.Random(0))  # noqa: S311  # a test's
    objects = Steady(world)
    date = datetime(2026, 1, 1, tzinfo=UTC)
    return world, objects, Claims(objects, "n1", "eth0", lambda: date, clock=lambda: world.now)


async def test_a_renewal_whose_answer_is_lost_costs_no_address() -> None:
    """The Lease is read again. That it is still this machine's says that nobody has fenced it."""

    world, objects, claims = steady()
    await claims.renew_own_lease()
    assert await claims.take_address("192.0.2.1")
    objects.lost = ApiError(504, "Timeout", "the server may have made the change")
    world.now += SECONDS / 5
    with pytest.raises(ApiError):
        await claims.renew_own_lease()
    world.now += 0.1
    await claims.renew_own_lease()
    assert claims.may_announce()
    assert claims.mine == {"192.0.2.1"}


async def test_a_machine_keeps_its_addresses_while_the_store_is_full() -> None:
    world, _, claims = steady()
    await claims.renew_own_lease()
    assert await claims.take_address("192.0.2.1")
    world.full = True
    for _ in range(50):
        world.now += 0.2
        with pytest.raises(ApiError, match="database space exceeded"):
            await claims.renew_own_lease()
        assert claims.may_announce()
    world.now += 0.5
    assert not claims.may_announce()  # it reads no more
    with pytest.raises(ApiError):
        await claims.renew_own_lease()
    assert claims.may_announce()
    world.full = False
    await claims.renew_own_lease()
    assert claims.mine == {"192.0.2.1"}


async def test_a_machine_that_was_fenced_before_the_store_was_full_is_silent() -> None:
    world, _, claims = steady()
    await claims.renew_own_lease()
    fenced = copy.deepcopy(world.leases["vipwire-announcer-n1"])
    fenced["spec"]["holderIdentity"] = ""
    world.store(fenced)
    world.full = True
    with pytest.raises(ApiError):
        await claims.renew_own_lease()
    assert not claims.may_announce()


async def test_a_machine_that_was_fenced_while_an_answer_was_lost_has_no_address_any_more() -> None:
    world, objects, claims = steady()
    await claims.renew_own_lease()
    assert await claims.take_address("192.0.2.1")
    objects.lost = ApiError(504, "Timeout", "the server may have made the change")
    with pytest.raises(ApiError):
        await claims.renew_own_lease()
    fenced = copy.deepcopy(world.leases["vipwire-announcer-n1"])
    fenced["spec"]["holderIdentity"] = ""
    world.store(fenced)
    await claims.renew_own_lease()
    assert claims.mine == set()


def lease(version: int, life: str, begun: float) -> Held:
    return Held(
        ObjectName("kube-system", "vipwire-announcer-n2"), "n2", SECONDS, str(version), "eth0", "", life, begun
    )


@pytest.mark.parametrize(
    ("life", "begun", "ends"),
    [
        ("a", 100.4, 0.4 + SECONDS),  # it was begun soon after the one before it, and came late
        ("a", 190.0, 1.5 + SECONDS),  # its process was asleep
        ("a", 99.0, 1.5 + SECONDS),
        ("a", float("nan"), 1.5 + SECONDS),
        ("b", 100.4, 1.5 + SECONDS),  # another process, with another clock
        ("", 0.0, 1.5 + SECONDS),
    ],
)
def test_a_renewal_that_comes_late_counts_from_when_it_was_begun(life: str, begun: float, ends: float) -> None:
    """What a leader of etcd that died had taken may be made by the next one."""
    world, _, claims = steady()
    claims.record_lease(lease(1, "a", 100.0))
    world.now = 1.5
    claims.record_lease(lease(2, life, begun))
    world.now = ends - 0.01
    assert set(claims.machines_alive()) == {"n2"}
    world.now = ends + 0.01
    assert claims.machines_alive() == {}


def test_an_address_that_an_announcing_machine_gives_is_known_as_given() -> None:
    """It need not be probed for. One that was taken from a machine, or that a restart finds, must be."""
    name = ObjectName("kube-system", "vipwire-address-192-0-2-1")

    def held_by(*holders: str) -> set[str]:
        _, _, claims = steady()
        for version, holder in enumerate(holders):
            claims.record_lease(Held(name, holder, 1.0, str(version), "", "192.0.2.1"))
        return claims.given

    assert held_by("n2", "n1") == {"192.0.2.1"}
    assert held_by("n1") == held_by("", "n1") == held_by("n2", "n1", "n2") == held_by("n2", "", "n1") == set()


async def test_an_address_that_was_given_is_still_so_when_it_is_taken() -> None:
    """It is announced at once then: whoever gave it answers for a second only."""

    world, _, claims = steady()
    await claims.renew_own_lease()
    lease = build_lease("vipwire-address-192-0-2-1", "n2", 2, datetime(2026, 1, 1, tzinfo=UTC))
    lease["metadata"]["annotations"] = {LEASE_ADDRESS: "192.0.2.1"}
    for holder in ("n2", "n1"):
        lease["spec"]["holderIdentity"] = holder
        claims.record_lease(read(AnnounceKind.LEASE, world.store(lease)))
    assert await claims.take_address("192.0.2.1")
    assert claims.given == {"192.0.2.1"}


async def test_a_machine_that_leaves_is_given_no_address_and_is_not_taken_for_silent() -> None:
    world, objects, leaving = steady()
    await leaving.renew_own_lease()
    assert await leaving.take_address("192.0.2.1")
    await leaving.mark_as_leaving()
    other = Claims(objects, "n2", "eth0", lambda: datetime(2026, 1, 1, tzinfo=UTC), clock=lambda: world.now)
    await other.renew_own_lease()
    for value in world.history:
        found = read(AnnounceKind.LEASE, value)
        other.record_lease(found)
    assert set(other.machines_alive()) == {"n2"}
    assert not await other.take_address("192.0.2.1")  # it announces until it gives it
    assert leaving.may_announce()


@pytest.mark.parametrize("late", [False, True])
async def test_news_that_comes_before_the_answer_of_a_write_is_not_forgotten(*, late: bool) -> None:
    """Else the address could not be taken when its next owner is lost: its Lease would be another than is known."""
    place = "vipwire-address-192-0-2-1"

    world, objects, claims = steady()
    await claims.renew_own_lease()
    assert await claims.take_address("192.0.2.1")
    first = read(AnnounceKind.LEASE, world.leases[place])

    def taken() -> None:
        """Let the next owner take it, as it does with what it is given; the watch is quicker than the answer."""
        given = world.leases[place]
        world.store(given)
        for value in world.history[-2:]:
            claims.record_lease(read(AnnounceKind.LEASE, value))
        if late:
            claims.record_lease(first)

    objects.meanwhile = taken
    await claims.give_address("192.0.2.1", "n2")
    assert claims.holder("192.0.2.1") == "n2"
    claims.record_lease(
        Held(ObjectName("kube-system", "vipwire-announcer-n2"), "", 2.0, "99", "", "")
    )  # it was fenced
    assert await claims.take_address("192.0.2.1")
    assert claims.given == set()  # it must be probed for


async def test_a_gift_that_fails_is_made_again() -> None:
    """Else nobody would announce the address: its owner is alive, and does not want it."""

    world, objects, claims = steady()
    await claims.renew_own_lease()
    assert await claims.take_address("192.0.2.1")
    objects.lost = ApiError(500, "ServerTimeout", "try again")
    with pytest.raises(ApiError):
        await claims.give_address("192.0.2.1", "n2")
    assert claims.mine == set()
    assert claims.addresses_named_here() == ["192.0.2.1"]
    claims.record_lease(read(AnnounceKind.LEASE, world.leases["vipwire-address-192-0-2-1"]))
    assert claims.addresses_named_here() == []


OWN, OTHERS, PLACE = "vipwire-announcer-n1", "vipwire-announcer-n2", "vipwire-address-192-0-2-1"


def store_lease(world: World, name: str, holder: str) -> Held:
    """Write a Lease as another machine does; return what the watch tells of it."""
    value = build_lease(name, holder, SECONDS, datetime(2026, 1, 1, tzinfo=UTC))
    if name == PLACE:
        value["metadata"]["annotations"] = {LEASE_ADDRESS: "192.0.2.1"}
    found = read(AnnounceKind.LEASE, world.store(value))
    assert isinstance(found, Held)
    return found


async def test_a_machine_that_was_silent_takes_each_address_again() -> None:
    world, _, claims = steady()
    assert claims.seconds_until_next_end() == SECONDS / 4
    await claims.renew_own_lease()
    assert await claims.take_address("192.0.2.1")
    world.now = 1.5
    assert not claims.may_announce()
    await claims.renew_own_lease()
    assert (claims.may_announce(), claims.mine) == (True, set())


async def test_a_machine_whose_lease_is_deleted_is_silent_at_once() -> None:
    world, _, claims = steady()
    await claims.renew_own_lease()
    assert await claims.take_address("192.0.2.1")
    claims.record_lease(store_lease(world, PLACE, "n2"))
    assert claims.mine == set()
    claims.record_lease(store_lease(world, PLACE, "n1"))
    assert await claims.take_address("192.0.2.1")
    claims.forget_lease(PLACE)
    assert (claims.mine, claims.holder("192.0.2.1")) == (set(), "")
    del world.leases[OWN]
    with pytest.raises(ApiError):
        await claims.renew_own_lease()
    assert not claims.may_announce()


async def test_a_machine_resigns_its_own_lease_and_no_other() -> None:
    world, _, claims = steady()
    await claims.release_own_lease()
    assert world.history == []
    await claims.renew_own_lease()
    assert await claims.take_address("192.0.2.1")
    await claims.release_own_lease()
    assert (claims.may_announce(), claims.mine, world.leases[OWN]["spec"]["holderIdentity"]) == (False, set(), "")
    written = len(world.history)
    await claims.release_own_lease()
    assert len(world.history) == written


async def test_a_new_process_does_not_announce_by_the_lease_of_the_one_before() -> None:
    world, objects, before = steady()
    await before.renew_own_lease()
    await before.mark_as_leaving()
    world.leases[OWN]["metadata"]["annotations"]["example.com/mine"] = "kept"
    after = Claims(objects, "n1", "eth0", lambda: datetime(2026, 1, 1, tzinfo=UTC), clock=lambda: world.now)
    world.full = True
    with pytest.raises(ApiError):
        await after.renew_own_lease()
    with pytest.raises(ApiError):
        await after.renew_own_lease()
    assert not after.may_announce()
    world.full = False
    await after.renew_own_lease()
    notes = world.leases[OWN]["metadata"]["annotations"]
    assert (notes.get("example.com/mine"), "vipwire.io/leaving" in notes) == ("kept", False)


async def test_an_address_that_is_taken_while_this_machine_is_fenced_is_not_its() -> None:
    _, objects, claims = steady()
    await claims.renew_own_lease()
    assert await claims.take_address("192.0.2.1")
    objects.meanwhile = claims.stop_announcing
    assert not await claims.take_address("192.0.2.1")
    assert claims.mine == set()


async def test_what_another_machine_has_taken_first_is_no_error() -> None:
    world, objects, claims = steady()
    await claims.renew_own_lease()
    held = store_lease(world, PLACE, "n2")
    assert not await claims.take_address("192.0.2.1")  # its creation is refused
    claims.record_lease(held)
    for code in (403, 404, 409):
        objects.lost = ApiError(code, "", "it has it already")
        await claims.give_address("192.0.2.1", "n1")
        claims.record_lease(read(AnnounceKind.LEASE, world.leases[PLACE]))
    for code in (404, 409):
        objects.lost = ApiError(code, "", "it was quicker")
        assert not await claims.take_address("192.0.2.1")
        claims.record_lease(read(AnnounceKind.LEASE, world.leases[PLACE]))


@pytest.mark.parametrize("renewed", [False, True])
async def test_a_silent_machine_is_fenced_unless_it_has_renewed_unheard(*, renewed: bool) -> None:
    world, objects, claims = steady()
    claims.record_lease(store_lease(world, OTHERS, "n2"))
    claims.record_lease(store_lease(world, PLACE, "n2"))
    if renewed:
        store_lease(world, OTHERS, "n2")
    for _ in range(12):
        await claims.renew_own_lease()
        world.now += 0.2
    objects.meanwhile = lambda: setattr(world, "now", world.now + 0.7)  # the store is slow, for others as well
    await claims.renew_own_lease()
    assert not await claims.take_address("192.0.2.1")
    world.now += SECONDS / 4
    assert await claims.take_address("192.0.2.1") != renewed
    assert world.leases[OTHERS]["spec"]["holderIdentity"] == ("n2" if renewed else "")
