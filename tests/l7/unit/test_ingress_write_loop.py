"""Writers of statuses and Services look for what is to be written when something has changed, and not else."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, cast

import msgspec
import pytest
from aiohttp import web

from vipwire.kube.access.access import Access, load_access
from vipwire.kube.errors import ApiError
from vipwire.kube.gateway_addresses import CONTROLLER
from vipwire.kube.objects import FencedObjects
from vipwire.kube.write_loop import Pauses, WriteLoop
from vipwire.model.names import ObjectName
from vipwire.watched_objects.event import Upserted
from vipwire_l7.gateway.plan.kinds.objects import GatewaySetting
from vipwire_l7.gateway.plan.merged_statuses import GatewayStatuses
from vipwire_l7.gateway.run.app import GatewayParts
from vipwire_l7.gateway.run.service_writer import ServiceWriter
from vipwire_l7.gateway.watch.kinds import RESOURCES, WITH_INGRESS
from vipwire_l7.haproxy.layout import Layout
from vipwire_l7.ingress.plan.planner import IngressPlanner
from vipwire_l7.ingress.served import IngressStatuses
from vipwire_l7.plan.plan import Setting
from vipwire_l7.run.desired import Desired
from vipwire_l7.run.rates import Rate
from vipwire_l7.run.status_writer import StatusWriter
from vipwire_l7.watch.objects import INGRESS_KINDS, BackendService, GatewayObject, Ingress, IngressKind
from vipwire_l7.watch.snapshot import Snapshot

EDGE, WEB = ObjectName("default", "edge"), ObjectName("default", "web")
ROUTE = IngressKind.HTTP_ROUTE, WEB
PARENT = {"parentRef": {"name": "edge"}, "controllerName": CONTROLLER, "conditions": []}
TURNS = 50


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ask whether anything has changed at each turn of the event loop."""
    monkeypatch.setattr("vipwire.kube.write_loop._EVERY", 0.0)


async def turns() -> None:
    for _ in range(TURNS):
        await asyncio.sleep(0)


def gateway(content: str = "", status: Any = None) -> Upserted[Any]:
    return declared(IngressKind.GATEWAY, EDGE, content, "1", status)


def declared(kind: IngressKind, name: ObjectName, content: Any, version: str, status: Any) -> Upserted[Any]:
    text = msgspec.json.encode(status)
    made = GatewayObject(kind, name, content, uid="u-1", api_version="v1", version=version, written_status=text)
    return Upserted(made, ())


async def refuse(code: int) -> None:
    raise ApiError(code, "", "refused")


class Look:
    """A loop of one kind, and a writer that counts."""

    def __init__(self) -> None:
        self.snapshot, self.wanted, self.leads, self.count = Snapshot(RESOURCES), object(), True, 0
        access = load_access(None, "http://127.0.0.1:1", environ={})  # nobody is asked
        changes = partial(self.snapshot.count_events, (IngressKind.GATEWAY,))
        self.loop = WriteLoop[str](access, "test", lambda: self.leads, changes, Pauses(3600.0, conflict=0.0))

    async def keep(self, _objects: FencedObjects, wanted: object) -> None:
        assert wanted is self.wanted
        self.count += 1

    async def looked(self, act: Callable[[], None] = lambda: None) -> int:
        """Do something; return how often the writer looked afterwards."""
        before = self.count
        act()
        await turns()
        return self.count - before

    def want(self) -> None:
        self.wanted = object()

    def lead(self, *, leads: bool) -> None:
        self.leads = leads


@contextlib.asynccontextmanager
async def looking() -> AsyncIterator[Look]:
    look = Look()
    task = asyncio.ensure_future(look.loop.run(lambda: look.wanted, look.keep))
    assert await look.looked() == 1, "at first"
    assert await look.looked() == 0, "and then it rests"
    yield look
    task.cancel()


async def test_a_writer_looks_once_for_each_change() -> None:
    async with looking() as look:
        assert await look.looked(look.want) == 1
        assert await look.looked(lambda: look.snapshot.apply(gateway())) == 1
        assert await look.looked(lambda: look.snapshot.apply(gateway(status={}))) == 1, (
            "others write statuses as well"
        )
        assert await look.looked(lambda: look.snapshot.apply(Upserted(BackendService(WEB), ()))) == 0


async def test_a_writer_that_is_woken_looks_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async with looking() as look:
        monkeypatch.setattr("vipwire.kube.write_loop._EVERY", 3600.0)
        await turns()
        assert await look.looked(look.want) == 0
        assert await look.looked(look.loop.wake) == 1
        assert await look.looked(look.loop.wake) == 0, "nothing has changed"


async def test_a_writer_looks_again_when_it_leads_again() -> None:
    async with looking() as look:
        assert await look.looked(lambda: look.lead(leads=False)) == 0
        assert await look.looked(look.want) == 0
        assert await look.looked(lambda: look.lead(leads=True)) == 1


async def test_a_writer_tries_again_what_it_asked_for() -> None:
    async with looking() as look:
        before = look.count
        for code in (409, 500):
            assert not await look.loop.write("a", partial(refuse, code), "cannot write")
            assert look.loop.waits("a")
            await turns()
            assert look.count - before == 1, "after a conflict at once, after a refusal an hour later"
        assert look.loop.waits("a")
        assert not await look.loop.write("a", partial(refuse, 200), "cannot write"), "it is too early"


class Counting(Snapshot):
    """A snapshot that counts how often it is read."""

    reads = 0

    def list_gateway_objects(self, kind: IngressKind) -> Any:
        self.reads += 1
        return super().list_gateway_objects(kind)

    @property
    def ingresses(self) -> Any:
        self.reads += 1
        return super().ingresses


class Said:
    """A planner whose statuses are given."""

    def __init__(self, wanted: dict[Any, Any]) -> None:
        self.wanted, self.changed, self.asked, self.revision = wanted, set[Any](), list[Any](), 1

    def list_objects_with_status(self) -> Collection[Any]:
        return self.wanted.keys()

    def take_changed_statuses(self) -> set[Any]:
        taken, self.changed = self.changed, set()
        return taken

    def has_changed(self, _ref: Any) -> bool:
        return False

    def write_status(self, ref: Any) -> Any:
        self.asked.append(ref)
        return self.wanted.get(ref)

    def say(self, ref: Any, status: Any) -> None:
        self.wanted[ref] = status
        self.changed.add(ref)
        self.revision += 1


def writer_of(said: Said, access: Access, snapshot: Snapshot) -> StatusWriter:
    statuses = GatewayStatuses(cast("Any", said), snapshot, CONTROLLER)
    return StatusWriter(access, RESOURCES, statuses, snapshot, lambda: True, Rate(1_000))


def writers(access: Access, snapshot: Snapshot) -> Iterator[Awaitable[None]]:
    """Run all writers; everything is as they want it."""
    services = dict[ObjectName, Any]()
    ingresses = IngressPlanner(Setting())
    ingresses.update(snapshot, 0.0)
    statuses = Said({(IngressKind.GATEWAY, EDGE): {}})
    of_ingress = IngressStatuses(ingresses, snapshot, lambda: ("192.0.2.1",))
    yield writer_of(statuses, access, snapshot).run()
    yield ServiceWriter(access, ObjectName("default", "pods"), CONTROLLER, snapshot, lambda: True).run(
        lambda: services
    )
    yield StatusWriter(access, WITH_INGRESS, of_ingress, snapshot, lambda: True, Rate(1_000)).run()


async def test_no_writer_reads_anything_while_nothing_changes() -> None:
    snapshot = Counting(WITH_INGRESS)
    snapshot.apply(gateway(status={}))
    snapshot.apply(Upserted(Ingress(WEB, "vipwire", addresses=("192.0.2.1",)), ()))
    access = load_access(None, "http://127.0.0.1:1", environ={})  # nobody is asked
    tasks = [asyncio.ensure_future(each) for each in writers(access, snapshot)]
    await turns()
    before = snapshot.reads
    assert before >= len(tasks)
    await turns()
    assert snapshot.reads == before
    for task in tasks:
        task.cancel()


async def test_writers_of_gateways_are_woken_by_each_change_while_they_run() -> None:
    snapshot = Snapshot(RESOURCES)
    served = GatewayParts(GatewaySetting(services=ObjectName("default", "pods"))).served
    desired = Desired(snapshot, served.planner, Layout("/run", "", "", ""), "")
    access = load_access(None, "http://127.0.0.1:1", environ={})  # nobody is asked
    assert served.parts is not None
    parts = served.parts(access, snapshot, desired, lambda: True)
    tasks = [asyncio.ensure_future(part()) for _, part in parts]
    await turns()
    assert len(desired.taken) == len(tasks) == 2
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert not desired.taken


@asynccontextmanager
async def answering(codes: list[int], version: str = "") -> AsyncIterator[tuple["asyncio.Queue[Any]", Access]]:
    """Run an API server that answers with these codes, one after the other; give the statuses that it is sent."""
    sent, left = asyncio.Queue[Any](), iter(codes)

    async def answer(request: web.Request) -> web.Response:
        sent.put_nowait((await request.json())["status"])
        return web.json_response({"metadata": {"resourceVersion": version}}, status=next(left))

    app = web.Application()
    app.router.add_route("PATCH", "/{path:.*}", answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield sent, load_access(None, f"http://127.0.0.1:{runner.addresses[0][1]}", environ={})
    finally:
        await runner.cleanup()


async def test_parents_are_taken_back_even_if_another_writes_the_status_at_the_same_time() -> None:
    snapshot = Snapshot(RESOURCES)
    said = Said({ROUTE: {"parents": [PARENT]}})

    def tell(version: str, status: Any) -> None:
        snapshot.apply(declared(*ROUTE, None, version, status))

    tell("1", None)
    async with asyncio.timeout(60), answering([200, 409, 200]) as (sent, access):
        task = asyncio.ensure_future(writer_of(said, access, snapshot).run())
        written = await sent.get()
        tell("2", written)
        said.say(ROUTE, None)
        assert [written, await sent.get(), await sent.get()] == [{"parents": [PARENT]}, *2 * [{"parents": []}]]
        task.cancel()


async def test_parents_of_a_route_that_left_while_no_writer_ran_are_taken_back() -> None:
    snapshot, other = Snapshot(RESOURCES), {**PARENT, "controllerName": "example.org/other"}
    snapshot.apply(declared(*ROUTE, None, "1", {"parents": [PARENT, other]}))
    said = Said({})
    async with asyncio.timeout(60), answering([200]) as (sent, access):
        writer = writer_of(said, access, snapshot)
        said.say(ROUTE, None)
        task = asyncio.ensure_future(writer.run())
        assert await sent.get() == {"parents": [other]}
        task.cancel()


async def test_a_status_is_written_again_only_after_the_watch_shows_the_write() -> None:
    snapshot, said = Snapshot(RESOURCES), Said({ROUTE: {"parents": [PARENT]}})
    snapshot.apply(declared(*ROUTE, None, "1", None))
    async with asyncio.timeout(60), answering([200, 200]) as (sent, access):
        task = asyncio.ensure_future(writer_of(said, access, snapshot).run())
        written = await sent.get()
        said.say(ROUTE, {"parents": []})
        await asyncio.sleep(0.2)
        assert sent.empty()
        snapshot.apply(declared(*ROUTE, None, "2", written))
        assert await sent.get() == {"parents": []}
        task.cancel()


async def test_a_write_that_changes_nothing_holds_no_later_write_back() -> None:
    """An API server that leaves out empty fields gives the object no new resourceVersion."""
    snapshot, said = Snapshot(RESOURCES), Said({ROUTE: {"parents": [PARENT]}})
    snapshot.apply(declared(*ROUTE, None, "1", None))
    async with asyncio.timeout(60), answering([200, 200], "1") as (sent, access):
        task = asyncio.ensure_future(writer_of(said, access, snapshot).run())
        await sent.get()
        said.say(ROUTE, {"parents": []})
        assert await sent.get() == {"parents": []}
        task.cancel()


async def test_a_change_costs_one_look_at_one_status_and_what_is_gone_is_no_warning(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A write may be under way while its object is deleted."""
    snapshot, warnings = Snapshot(RESOURCES), list[Any]()
    monkeypatch.setattr("vipwire.kube.write_loop.log.warning", lambda *told, **_: warnings.append(told))
    others = [(IngressKind.HTTP_ROUTE, ObjectName("default", f"r{number}")) for number in range(50)]
    for key in (*others, ROUTE):
        snapshot.apply(declared(*key, None, "1", {"parents": [PARENT]}))
    said = Said({key: {"parents": [PARENT]} for key in (*others, ROUTE)})
    async with asyncio.timeout(60), answering([404]) as (sent, access):
        writer = writer_of(said, access, snapshot)
        task = asyncio.ensure_future(writer.run())
        await turns()
        said.asked.clear()
        said.say(ROUTE, {"parents": []})
        writer.wake()
        assert await sent.get() == {"parents": []}
        await asyncio.sleep(0.1)
        assert set(said.asked) == {ROUTE}
        assert warnings == []
        task.cancel()


async def test_a_new_address_is_written_to_all_ingresses_and_a_change_to_one() -> None:
    snapshot, planner, published = Snapshot(INGRESS_KINDS), IngressPlanner(Setting()), ["192.0.2.1"]
    names = [ObjectName("default", f"i{number}") for number in range(3)]
    for name in names:
        snapshot.apply(Upserted(Ingress(name, "vipwire", version="1"), ()))
    snapshot.apply(Upserted(Ingress(WEB, "other", version="1"), ()))
    statuses = IngressStatuses(planner, snapshot, lambda: tuple(published))
    assert statuses.revision is None
    planner.update(snapshot, 0.0)
    assert {name for _, name in statuses.take_changed()} == {*names}
    ref = IngressKind.INGRESS, names[0]
    patch = {
        "metadata": {"resourceVersion": "1"},
        "status": {"loadBalancer": {"ingress": [{"ip": "192.0.2.1"}]}},
    }
    assert statuses.make_patch(ref, "") == patch
    snapshot.apply(Upserted(Ingress(names[0], "vipwire", addresses=("192.0.2.1",), version="2"), ()))
    assert statuses.make_patch(ref, "") is None
    planner.update(snapshot, 0.0)
    assert statuses.take_changed() == set()
    published[0] = "192.0.2.2"
    assert {name for _, name in statuses.take_changed()} == {*names}
    assert statuses.make_patch((IngressKind.INGRESS, WEB), "") is None
