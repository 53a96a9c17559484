"""A machine announces addresses once its proxy serves, where nobody else answers, and while there is a carrier."""

import asyncio
import contextlib
import copy
import json
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from tests.fakes.own_network import run
from tests.up.kernel.test_cluster_controllers_announce import V4, hardware, neighbour, until_it_knows

from vipwire.errors import VipwireError, raise_ungrouped
from vipwire.kube.errors import ApiError, UnreachableError
from vipwire.kube.resource import ObjectReader
from vipwire.model.names import ObjectName
from vipwire.watched_objects.event import Listed, Upserted
from vipwire_up.announcing.announced import Announced
from vipwire_up.announcing.choose import View
from vipwire_up.announcing.claims import Claims
from vipwire_up.announcing.keeper import AddressKeeper
from vipwire_up.announcing.kinds import RESOURCES, AnnounceKind, Balanced, Machine
from vipwire_up.api.kinds.event import EVENTS
from vipwire_up.api.kinds.service import SERVICES
from vipwire_up.api.objects.errors import store_full

pytestmark = pytest.mark.kernel
READERS = {resource.kind: ObjectReader(resource) for resource in RESOURCES}
OWN, ADDRESS = "vipwire-announcer-n1", "vipwire-address-192-0-2-77"


class Leases:
    """Leases in memory, for one machine that has a Service to announce."""

    def __init__(self) -> None:
        self.stored: dict[str, Any] = {}
        self.told: list[str] = []
        self.serves, self.asked = True, 0
        self.failure: ApiError | UnreachableError | None = None
        self._emit: Callable[[Any], None] = lambda _: None
        self._written = asyncio.Event()

    async def read(self, resource: Any, namespace: str, name: str) -> Any:
        if resource is SERVICES:
            return {"metadata": {"namespace": namespace, "name": name, "uid": "1"}}
        return copy.deepcopy(self.stored.get(name))

    async def read_newest(self, resource: Any, namespace: str, name: str) -> Any:
        if isinstance(self.failure, UnreachableError):
            raise self.failure
        return await self.read(resource, namespace, name)

    async def create(self, resource: Any, namespace: str, value: Any) -> Any:
        if resource is EVENTS:
            self.told.append(value["reason"])
            self._written.set()
            return value
        return await self.replace(resource, namespace, value)

    async def replace(self, _resource: Any, namespace: str, value: Any, *, subresource: str = "") -> Any:
        del subresource
        self._written.set()
        if self.failure is not None:
            raise self.failure
        version = int(value["metadata"].get("resourceVersion", "0")) + 1
        made = copy.deepcopy(value)
        made["metadata"] |= {"namespace": namespace, "resourceVersion": str(version)}
        self.stored[made["metadata"]["name"]] = made
        found = READERS[AnnounceKind.LEASE].read(json.dumps(made).encode(), "").object
        assert found is not None
        self._emit(Upserted(found))
        self._written.set()
        return copy.deepcopy(made)

    async def list(self, resource: Any, namespace: str = "") -> Any:
        raise NotImplementedError

    async def edit(self, resource: Any, namespace: str, name: str, edit: Any, *, subresource: str = "") -> Any:
        raise NotImplementedError

    async def delete(self, resource: Any, namespace: str, name: str) -> None:
        raise NotImplementedError

    async def follow(self, emit: Callable[[Any], None]) -> None:
        self._emit = emit
        service = Balanced(ObjectName("default", "web"), (V4,), local=False, interface="", wanted=())
        emit(Listed(AnnounceKind.SERVICE, (service,)))
        emit(Listed(AnnounceKind.SLICE, ()))
        emit(Listed(AnnounceKind.NODE, (Machine("n1", ready=True, labels=frozenset(), excluded=False),)))
        emit(Listed(AnnounceKind.LEASE, ()))
        await asyncio.Event().wait()

    def proxy(self) -> bool:
        self.asked += 1
        self._written.set()
        return self.serves

    async def until(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(60):
            while not holds():
                self._written.clear()
                await self._written.wait()

    async def until_held(self, name: str, holder: str) -> None:
        await self.until(lambda: name in self.stored and self.stored[name]["spec"]["holderIdentity"] == holder)


@contextlib.asynccontextmanager
async def announcing(leases: Leases) -> AsyncIterator[tuple[Claims, AddressKeeper]]:
    """Run the keeper of addresses of n1 on the interface `near`."""

    def now() -> datetime:
        return datetime(2026, 1, 1, tzinfo=UTC)

    claims = Claims(leases, "n1", "near", now)
    view = View()
    announced = Announced(leases, "n1", "near", now, view.services_at)
    keeper = AddressKeeper(claims, view, announced, "near", leases.proxy)
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(keeper.run(leases.follow, lambda: None))
        yield claims, keeper
        running.cancel()


async def test_a_machine_whose_interface_has_no_carrier_gives_its_addresses_up_at_once() -> None:
    with neighbour() as there:
        leases = Leases()
        async with announcing(leases) as (claims, _):
            await leases.until_held(ADDRESS, "n1")
            await until_it_knows(there, V4, hardware(), asks=True)
            run(f"{there} ip link set far down")
            await leases.until_held(OWN, "")
            assert not claims.may_announce()
            run(f"{there} ip link set far up")
            await leases.until_held(OWN, "n1")
            await until_it_knows(there, V4, hardware(), asks=True)


async def test_a_machine_announces_nothing_before_its_proxy_has_programmed_its_rules() -> None:
    with neighbour():
        leases = Leases()
        leases.serves = False
        async with announcing(leases) as (claims, _):
            await leases.until(lambda: leases.asked > 1)
            assert not leases.stored
            assert not claims.may_announce()
            leases.serves = True
            await leases.until_held(ADDRESS, "n1")


async def test_a_machine_that_cannot_renew_its_lease_says_so_and_whether_it_is_silent() -> None:
    with neighbour() as there:
        leases = Leases()
        async with announcing(leases) as (claims, keeper):
            await leases.until_held(ADDRESS, "n1")
            assert (keeper.trouble, keeper.note) == ("", "")
            leases.failure = store_full("etcd is full")
            await leases.until(lambda: "etcd is full" in keeper.note)
            until = claims.until
            await leases.until(lambda: claims.until > until)  # by reading
            assert keeper.trouble == ""
            run(f"{there} ip neigh flush all")
            await until_it_knows(there, V4, hardware(), asks=True)
            leases.failure = UnreachableError("no majority")
            await leases.until(lambda: keeper.trouble == "silent: no majority")
            assert keeper.note == ""
            leases.failure = None
            await leases.until(lambda: (keeper.trouble, keeper.note) == ("", ""))


async def test_an_address_that_somebody_else_answers_for_is_announced_once_nobody_does() -> None:
    with neighbour() as there:
        leases = Leases()
        run(f"{there} ip addr add {V4}/24 dev far")
        async with announcing(leases):
            await leases.until(lambda: "AddressConflict" in leases.told)
            assert "AddressAnnounced" not in leases.told
            run(f"{there} ip addr del {V4}/24 dev far")
            await leases.until(lambda: "AddressAnnounced" in leases.told)
            await until_it_knows(there, V4, hardware(), asks=True)


def test_an_interface_that_another_one_has_replaced_is_begun_anew_with() -> None:
    """Its sockets are those of the interface that has gone: whoever supervises it runs it again."""

    async def scenario() -> None:
        leases = Leases()
        with raise_ungrouped():
            async with asyncio.timeout(60), announcing(leases):
                await leases.until_held(OWN, "n1")
                run("ip link del near")
                await leases.until_held(OWN, "")
                run("ip link add near type veth peer name other")
                await asyncio.Event().wait()

    with neighbour(), pytest.raises(VipwireError, match="a new interface has the name near"):
        asyncio.run(scenario())
