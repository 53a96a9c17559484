"""The real proxy and objects that are wrong: the good ones work, each bad thing is said once, by name and field."""

import contextlib
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import pytest
from tests.fakes.apiserver import FakeApiServer
from tests.fakes.daemon import (
    Daemon,
    Record,
    Scene,
    prepare,
    reached,
    scene,
    service_of,
    slice_for,
    stage,
)
from tests.fakes.own_network import run

pytestmark = pytest.mark.kernel
INVALID = "invalid object"
LONGEST = "a" * 63


def endpoints(*values: Any) -> list[Record]:
    return [{"addresses": value if isinstance(value, list) else [value]} for value in values]


def slice_with(name: str, **fields: Any) -> Record:
    return {**slice_for(name), **fields}


def ports(*values: Record) -> list[Record]:
    return [{"name": f"p{index}", "port": 80, **value} for index, value in enumerate(values)]


NASTY: list[tuple[str, Record, set[str]]] = [
    ("services", service_of("no-address", "10.96.0.300"), {"spec.clusterIPs[0]"}),
    ("services", service_of("leading-zero", "010.96.1.20"), set()),
    ("endpointslices", slice_for("leading-zero", "10.244.0.4"), set()),
    ("services", service_of("text-port", "10.96.1.2", ports=[{"port": "80"}]), {"spec.ports[0].port"}),
    ("services", {"metadata": {"name": "no-spec"}}, {"spec.clusterIP"}),
    (
        "services",
        service_of("bad-ports", "10.96.1.4", ports=ports({"port": 0}, {"protocol": "ICMP"}, {"port": 80})),
        {"spec.ports[0].port", "spec.ports[1].protocol"},
    ),
    ("services", service_of("enum", "10.96.1.7", sessionAffinity="Cookie"), {"spec.sessionAffinity"}),
    (
        "endpointslices",
        slice_with(
            "good",
            metadata={**slice_for("good")["metadata"], "name": "good-nasty"},
            endpoints=endpoints("0.0.0.0", "fd00::1", "10.244.0.", [], "127.0.0.1", "169.254.1.1", "10.244.0.2"),
        ),
        {f"endpoints[{index}].addresses{'' if index == 3 else '[0]'}" for index in range(6)},
    ),
    ("endpointslices", slice_with("twice", addressType="IPv5"), {"addressType"}),
]
"""Each rule of fields is a test in tests/proxy/unit/test_kube_convert.py."""
KINDS = {"services": "Service", "endpointslices": "EndpointSlice"}


def good() -> list[tuple[str, Record]]:
    return [
        ("services", service_of("good", "10.96.0.1")),
        ("endpointslices", slice_for("good", "10.244.0.1")),
        ("services", service_of(LONGEST, "10.96.0.2", ports=[{"name": LONGEST, "port": 80}])),
        (
            "endpointslices",
            slice_with(LONGEST, endpoints=endpoints("10.244.0.3"), ports=[{"name": LONGEST, "port": 8080}]),
        ),
    ]


def filled() -> FakeApiServer:
    server = FakeApiServer()
    prepare(server)
    for plural, value in good():
        server.store.put(plural, value)
    return server


@contextlib.asynccontextmanager
async def playing(server: FakeApiServer | None = None) -> AsyncIterator[Scene]:
    with stage():
        async with scene(server or filled(), "--kube-api-qps=1000", "--kube-api-burst=1000") as it:
            yield it


def wanted() -> set[tuple[str, str, str]]:
    return {
        (KINDS[plural], f"default/{value['metadata']['name']}", field)
        for plural, value, fields in NASTY
        for field in fields
    }


def told(daemon: Daemon) -> list[tuple[str, str, str]]:
    return [(record["kind"], record["object"], record["field"]) for record in daemon.said(INVALID)]


def relisted(server: FakeApiServer, plural: str) -> bool:
    return len(server.requests(plural, watch=False)) > 1 and server.watching(plural) > 0


async def the_good_ones_work() -> None:
    assert {await reached("10.96.0.1") for _ in range(20)} == {"10.244.0.1", "10.244.0.2"}
    assert await reached("10.96.0.2") == "10.244.0.3"
    assert await reached("10.96.1.20") == "10.244.0.4"


async def test_bad_objects_of_an_api_server_are_told_once_in_the_log_and_as_events() -> None:
    server = filled()
    for plural, value, _ in NASTY:
        server.store.put(plural, {**value, "metadata": {"namespace": "default", **value["metadata"]}})
    async with playing(server) as it:
        await it.synced()
        await the_good_ones_work()
        assert sorted(told(it.daemon)) == sorted(wanted())
        await it.posted("InvalidField", count=len(wanted()))
        posted = {
            (event["involvedObject"]["kind"], event["message"].partition(": ")[0]): event
            for event in it.events("InvalidField")
        }
        assert posted.keys() == {(kind, field) for kind, _, field in wanted()}
        assert {event["type"] for event in posted.values()} == {"Warning"}
        for plural in KINDS:
            it.server.send_error(plural, 410, "Expired")
            await it.server.until(partial(relisted, it.server, plural))
        await it.put("endpointslices", slice_for("good", "10.244.0.5"))
        assert await reached("10.96.0.2") == "10.244.0.3"
        assert sorted(told(it.daemon)) == sorted(wanted())
        assert all(event["count"] == 1 for event in it.events("InvalidField"))
        problems = await it.metric("vipwire_object_problems", kind="Service")
        assert problems == sum(kind == "Service" for kind, _, _ in wanted())


async def test_a_mistake_that_comes_back_is_told_again_and_counted_in_its_event() -> None:
    bad = service_of("web", "10.96.2.1", sessionAffinity="Cookie")
    async with playing() as it:
        await it.synced()
        await it.put("services", bad)
        (event,) = await it.posted("InvalidField", "web")
        assert event["involvedObject"]["uid"] == "uid-web"
        await it.put("services", {**bad, "spec": {**bad["spec"], "externalIPs": ["198.51.100.1"]}})
        assert len(it.daemon.said(INVALID)) == 1
        await it.put("services", service_of("web", "10.96.2.1"))
        assert await it.metric("vipwire_object_problems", kind="Service") == 0
        await it.daemon.again(lambda: it.server.store.put("services", bad), INVALID)
        await it.server.until(lambda: it.events("InvalidField", "web")[0]["count"] == 2)
        assert len(it.events("InvalidField", "web")) == 1


async def test_twenty_thousand_endpoints_in_two_hundred_slices() -> None:
    server = filled()
    server.store.put("services", service_of("big", "10.96.3.1"))
    for piece in range(200):
        addresses = [f"10.{200 + piece // 200}.{piece}.{number}" for number in range(1, 101)]
        server.store.put("endpointslices", slice_for("big", *addresses, suffix=f"-{piece}"))
    async with playing(server) as it:
        await it.synced()
        assert await reached("10.96.0.1") == "10.244.0.1"
        assert await it.metric("vipwire_endpoints") >= 20_000
        assert not told(it.daemon)
        record = await it.put("endpointslices", slice_for("big", "10.244.0.4", suffix="-7"))
        assert record["services"] == 1
        for piece in range(200):
            it.server.store.delete("endpointslices", "default", f"big-slice-{piece}")
        await it.daemon.until(lambda: it.daemon.said("synced", ip_family="IPv4")[-1]["removed"])


async def test_the_older_of_two_services_keeps_what_both_claim_and_the_other_takes_over_at_once() -> None:
    shared: Record = {"type": "NodePort", "externalIPs": ["198.51.100.7"]}
    ports = [{"name": "http", "port": 80, "nodePort": 30080}]
    old = service_of("old", "10.96.5.1", "2026-01-01T00:00:00Z", ports=ports, **shared)
    new = service_of("new", "10.96.5.2", "2026-02-01T00:00:00Z", ports=ports, **shared)
    same = service_of("same", "10.96.5.1", "2026-03-01T00:00:00Z")
    server = filled()
    for value in (new, same, old):
        server.store.put("services", value)
    for number, name in enumerate(("old", "new", "same"), 4):
        server.store.put("endpointslices", slice_for(name, f"10.244.0.{number}"))
    async with playing(server) as it:
        await it.synced()
        assert await reached("198.51.100.7") == "10.244.0.4"
        assert await reached("192.0.2.10", 30080) == "10.244.0.4"
        assert await reached("10.96.5.1") == "10.244.0.4"
        said = it.daemon.said("conflicting Services")
        assert {record["service"] for record in said} == {"default/new", "default/same"}
        assert all("default/old" in record["reason"] for record in said)
        await it.posted("FrontendConflict", "new", 2)
        await it.posted("FrontendConflict", "same")
        conflicts = await it.metric("vipwire_frontend_conflicts")
        assert conflicts == len(said) == 3
        await it.daemon.again(
            lambda: it.server.store.delete("services", "default", "old"), "synced", ip_family="IPv4"
        )
        assert await reached("198.51.100.7") == "10.244.0.5"
        assert await reached("192.0.2.10", 30080) == "10.244.0.5"
        assert await reached("10.96.5.1") == "10.244.0.6"
        assert await it.metric("vipwire_frontend_conflicts") == 0
        await it.put("services", old)
        assert await reached("198.51.100.7") == "10.244.0.4"
        assert len(it.daemon.said("conflicting Services")) == 6
        assert "default/new" in run("nft list table ip vipwire")
