"""The client against a fake API server: real HTTP, real TLS, everything that can go wrong on the way."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.fakes.apiserver import FakeApiServer, Fault, load_manifests
from tests.fakes.apistore import ApiStore
from tests.fakes.event_log import EventLog
from tests.fakes.objects import node, service, service_cidr, slice_of

from vipwire.kube.access.access import Access, load_access
from vipwire.kube.client import ApiSource, retry_after
from vipwire.kube.contact import Health
from vipwire.kube.manifests.documents import MANIFESTS
from vipwire.kube.manifests.source import ManifestSource
from vipwire.kube.proxied import proxy_resources
from vipwire.model.names import ObjectName
from vipwire.state.event import Kind, Listed, Object

pytestmark = pytest.mark.slow

PLURALS = ("services", "endpointslices", "nodes", "servicecidrs")
NODE = "node-0"
HEADLESS = {"clusterIP": "None", "clusterIPs": ["None"]}


def filled() -> ApiStore:
    store = ApiStore()
    for value in (service(1), service(2), service(3, **HEADLESS)):
        store.put("services", value)
    store.put("endpointslices", slice_of(1))
    store.put("nodes", node(NODE))
    store.put("nodes", node("node-1"))
    store.put("servicecidrs", service_cidr("kubernetes", "10.96.0.0/12"))
    return store


Story = Callable[[FakeApiServer, ApiSource[Kind, Object], EventLog], Awaitable[None]]


def follow(server: FakeApiServer, story: Story, make: Callable[[str], Access] | None = None) -> EventLog:
    """Run a source against a server until a story ends."""

    async def run() -> EventLog:
        async with server:
            access = make(server.url) if make else load_access(None, server.url, environ={})
            log = EventLog()
            source = ApiSource(access, proxy_resources(NODE), chance=log.chance)
            async with asyncio.TaskGroup() as group:
                task = group.create_task(source.run(log))
                await story(server, source, log)
                task.cancel()
            return log

    return asyncio.run(run())


async def synced(server: FakeApiServer, log: EventLog) -> None:
    await log.until(lambda: log.listed() == set(Kind))
    await server.until(lambda: all(server.watching(plural) for plural in PLURALS))


def service_names(log: EventLog) -> list[str]:
    return sorted(str(name) for kind, name in log.objects if kind is Kind.SERVICE)


def health_of(source: ApiSource[Kind, Object], plural: str) -> Health:
    return next(health for health in source.health() if health.resource == plural)


def test_the_first_lists_have_what_is_ours_and_nothing_else() -> None:
    async def story(server: FakeApiServer, source: ApiSource[Kind, Object], log: EventLog) -> None:
        await synced(server, log)
        assert all(health.synced and not health.error for health in source.health())

    log = follow(FakeApiServer(filled()), story)
    assert [str(name) for _, name in sorted(log.objects, key=str)] == [
        "ns-1/service-1-abcde",
        NODE,
        "ns-1/service-1",
        "ns-2/service-2",
        "kubernetes",
    ]
    assert log.problems() == []


def test_long_lists_come_in_chunks() -> None:
    store = filled()
    for index in range(10, 1210):
        store.put("services", service(index))

    async def story(server: FakeApiServer, _: ApiSource[Kind, Object], log: EventLog) -> None:
        await synced(server, log)
        assert len(server.requests("services", watch=False)) == 3

    assert len(service_names(follow(FakeApiServer(store), story))) == 1202


def test_changes_come_as_they_happen() -> None:
    async def story(server: FakeApiServer, _: ApiSource[Kind, Object], log: EventLog) -> None:
        await synced(server, log)
        server.store.put("services", service(9))
        await log.until(lambda: "ns-9/service-9" in service_names(log))
        server.store.put("services", service(9, **HEADLESS))
        await log.until(lambda: "ns-9/service-9" not in service_names(log))
        server.store.delete("services", "ns-1", "service-1")
        await log.until(lambda: service_names(log) == ["ns-2/service-2"])

    follow(FakeApiServer(filled()), story)


def test_a_broken_connection_goes_on_where_it_was() -> None:
    async def story(server: FakeApiServer, source: ApiSource[Kind, Object], log: EventLog) -> None:
        await synced(server, log)
        server.send_bookmark("services")
        server.store.put("services", service(9))
        await log.until(lambda: "ns-9/service-9" in service_names(log))
        server.break_watches("services")
        await server.until(lambda: not server.watching("services"))
        server.store.put("services", service(10))
        await log.until(lambda: "ns-10/service-10" in service_names(log))
        assert len(server.requests("services", watch=False)) == 1
        assert health_of(source, "services").error == ""

    follow(FakeApiServer(filled()), story)


def test_410_lists_again() -> None:
    async def story(server: FakeApiServer, _: ApiSource[Kind, Object], log: EventLog) -> None:
        await synced(server, log)
        server.end_watches("services")
        await server.until(lambda: not server.watching("services"))
        server.store.delete("services", "ns-1", "service-1")
        server.store.expire()
        await log.until(lambda: service_names(log) == ["ns-2/service-2"])

    log = follow(FakeApiServer(filled()), story)
    assert sum(isinstance(event, Listed) and event.kind is Kind.SERVICE for event in log.events) == 2


def test_410_within_the_stream_and_garbage_list_again() -> None:
    async def story(server: FakeApiServer, _: ApiSource[Kind, Object], log: EventLog) -> None:
        await synced(server, log)
        server.send_error("services", 410, "Expired")
        server.garble_watches("endpointslices")
        await log.until(lambda: sum(isinstance(event, Listed) for event in log.events) == 6)

    follow(FakeApiServer(filled()), story)


@pytest.mark.parametrize("code", [401, 403, 429, 500])
def test_a_refused_list_is_asked_again(code: int) -> None:
    server = FakeApiServer(filled())
    server.fail("services", Fault(code, headers={"Retry-After": "1"}))

    async def story(server: FakeApiServer, _: ApiSource[Kind, Object], log: EventLog) -> None:
        await synced(server, log)
        assert len(server.requests("services", watch=False)) == 2

    assert service_names(follow(server, story)) == ["ns-1/service-1", "ns-2/service-2"]


def test_what_is_programmed_stays_while_the_server_is_away() -> None:
    async def story(server: FakeApiServer, source: ApiSource[Kind, Object], log: EventLog) -> None:
        await synced(server, log)
        before, port = len(log.events), server.port
        await server.stop()
        await log.until(lambda: all(health.failures for health in source.health()))
        assert len(log.events) == before
        await server.start(port=port)
        server.store.put("services", service(9))
        await log.until(lambda: "ns-9/service-9" in service_names(log))

    follow(FakeApiServer(filled()), story)


def test_a_server_without_service_cidrs_and_without_the_field_selector_is_enough() -> None:
    server = FakeApiServer(
        filled(), unserved=frozenset({"servicecidrs"}), unsupported_fields=frozenset({"spec.clusterIP"})
    )

    async def story(_: FakeApiServer, source: ApiSource[Kind, Object], log: EventLog) -> None:
        await log.until(lambda: log.listed() == set(Kind))
        assert health_of(source, "servicecidrs").note

    assert service_names(follow(server, story)) == ["ns-1/service-1", "ns-2/service-2"]


def test_a_server_that_is_not_there_is_told_in_health() -> None:
    async def run() -> tuple[Health, ...]:
        async with FakeApiServer() as server:
            url = server.url
        log = EventLog()
        source = ApiSource(load_access(None, url, environ={}), proxy_resources(NODE), chance=log.chance)
        async with asyncio.TaskGroup() as group:
            task = group.create_task(source.run(log))
            await log.until(lambda: all(health.error for health in source.health()))
            task.cancel()
        return source.health()

    assert all("Connection refused" in health.error and not health.synced for health in asyncio.run(run()))


def test_manifests_and_an_api_server_give_the_same_objects(tmp_path: Path) -> None:
    strange = service(4, ports=[{"name": "a", "port": 80}, {"name": "b", "port": 0}], sessionAffinity="Odd")
    values: list[Any] = [service(1), service(3, **HEADLESS), strange, slice_of(1), node(NODE)]
    values += [service_cidr("kubernetes", "10.96.0.0/12"), service(5, ports="wrong")]
    for value in values:
        value["metadata"].setdefault("uid", "u")
    (tmp_path / "all.yaml").write_text(yaml.safe_dump_all(values))
    store = ApiStore()
    load_manifests(store, tmp_path)

    async def story(server: FakeApiServer, _: ApiSource[Kind, Object], log: EventLog) -> None:
        await synced(server, log)

    served = follow(FakeApiServer(store), story)

    async def read() -> EventLog:
        log = EventLog()
        async with asyncio.TaskGroup() as group:
            task = group.create_task(ManifestSource([tmp_path], MANIFESTS).run(log))
            await log.until(lambda: log.listed() == set(Kind))
            task.cancel()
        return log

    written = asyncio.run(read())
    assert served.objects == written.objects
    assert set(served.problems()) == set(written.problems())
    assert (Kind.SERVICE, ObjectName("ns-4", "service-4")) in served.objects
    assert len(served.problems()) == 3


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("", 0.0), ("7", 7.0), ("-1", 0.0), ("soon", 0.0), ("Thu, 01 Jan 1970 00:01:40 GMT", 90.0), ("٣", 0.0)],
)
def test_retry_after_is_seconds_or_a_date(text: str, seconds: float) -> None:
    assert retry_after(text, 10.0) == seconds


def test_the_fake_refuses_what_a_real_server_refuses() -> None:
    store = ApiStore()
    store.put("services", service(1))
    page = json.loads(store.page("services", lambda _: True, 0, ""))
    assert page["metadata"]["resourceVersion"] == str(store.version)
    assert page["items"][0]["kind"] == "Service"
