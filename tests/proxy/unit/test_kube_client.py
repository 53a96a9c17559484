"""The client against a fake API server: what it reads is what manifests say."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.fakes.apiserver import FakeApiServer, load_manifests
from tests.fakes.apistore import ApiStore
from tests.fakes.event_log import EventLog
from tests.fakes.objects import node, service, service_cidr, slice_of

from vipwire.kube.access.access import load_access
from vipwire.kube.client import ApiSource, parse_retry_after
from vipwire.kube.manifests.documents import MANIFESTS
from vipwire.kube.manifests.source import ManifestSource
from vipwire.kube.proxied import proxy_resources
from vipwire.model.names import ObjectName
from vipwire.watched_objects.event import Kind, Object

NODE = "node-0"
HEADLESS = {"clusterIP": "None", "clusterIPs": ["None"]}


async def read(source: ApiSource[Kind, Object] | ManifestSource[Kind, Object], log: EventLog) -> EventLog:
    """Run a source until it has listed every kind."""
    async with asyncio.TaskGroup() as group:
        task = group.create_task(source.run(log))
        await log.until(lambda: log.listed() == set(Kind))
        task.cancel()
    return log


def source_of(url: str, log: EventLog) -> ApiSource[Kind, Object]:
    return ApiSource(load_access(None, url, environ={}), proxy_resources(NODE), chance=log.chance)


async def test_a_server_that_is_not_there_is_told_in_health() -> None:
    async with FakeApiServer() as server:
        url = server.url
    log = EventLog()
    source = source_of(url, log)
    async with asyncio.TaskGroup() as group:
        task = group.create_task(source.run(log))
        await log.until(lambda: all(health.error for health in source.health()))
        task.cancel()
    assert all("Connection refused" in health.error and not health.synced for health in source.health())


async def test_manifests_and_an_api_server_give_the_same_objects(tmp_path: Path) -> None:
    strange = service(4, ports=[{"name": "a", "port": 80}, {"name": "b", "port": 0}], sessionAffinity="Odd")
    values: list[Any] = [service(1), service(3, **HEADLESS), strange, slice_of(1), node(NODE)]
    values += [service_cidr("kubernetes", "10.96.0.0/12"), service(5, ports="wrong")]
    for value in values:
        value["metadata"].setdefault("uid", "u")
    (tmp_path / "all.yaml").write_text(yaml.safe_dump_all(values))
    store, log = ApiStore(), EventLog()
    load_manifests(store, tmp_path)
    async with FakeApiServer(store) as server:
        served = await read(source_of(server.url, log), log)
    written = EventLog()
    await read(ManifestSource([tmp_path], MANIFESTS), written)
    assert served.objects == written.objects
    assert set(served.problems()) == set(written.problems())
    assert (Kind.SERVICE, ObjectName("ns-4", "service-4")) in served.objects
    assert len(served.problems()) == 3


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("", 0.0), ("7", 7.0), ("-1", 0.0), ("soon", 0.0), ("Thu, 01 Jan 1970 00:01:40 GMT", 90.0), ("٣", 0.0)],
)
def test_retry_after_is_seconds_or_a_date(text: str, seconds: float) -> None:
    assert parse_retry_after(text, 10.0) == seconds


def test_the_fake_refuses_what_a_real_server_refuses() -> None:
    store = ApiStore()
    store.put("services", service(1))
    page = json.loads(store.page("services", lambda _: True, 0, ""))
    assert page["metadata"]["resourceVersion"] == str(store.version)
    assert page["items"][0]["kind"] == "Service"
