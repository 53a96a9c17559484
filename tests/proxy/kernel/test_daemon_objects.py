"""The real proxy and objects that are wrong: the good ones work, each bad thing is said once, by name and field."""

import contextlib
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.fakes.apiserver import FakeApiServer
from tests.fakes.daemon import (
    NODE,
    Daemon,
    Record,
    Scene,
    echo,
    prepare,
    reached,
    scene,
    service_of,
    slice_for,
    stage,
)
from tests.fakes.daemon import write as write_file
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
    ("services", service_of("text-ports", "10.96.1.1", ports="http"), {"spec.ports"}),
    ("services", service_of("text-port", "10.96.1.2", ports=[{"port": "80"}]), {"spec.ports[0].port"}),
    ("services", {"metadata": {"name": "no-spec"}}, {"spec.clusterIP"}),
    ("services", service_of("null-lists", "10.96.1.3", ports=None, externalIPs=None), {"spec.ports"}),
    (
        "services",
        service_of("bad-ports", "10.96.1.4", ports=ports({"port": 0}, {"port": 70000}, {"port": -1}, {"port": 80})),
        {"spec.ports[0].port", "spec.ports[1].port", "spec.ports[2].port"},
    ),
    (
        "services",
        service_of("protocols", "10.96.1.5", ports=ports({"protocol": "ICMP"}, {"protocol": "tcp"}, {})),
        {"spec.ports[0].protocol", "spec.ports[1].protocol"},
    ),
    (
        "services",
        service_of("twice", "10.96.1.6", ports=[{"name": "http", "port": 80}, {"name": "b", "port": 80}]),
        {"spec.ports[1].port"},
    ),
    (
        "services",
        service_of(
            "enums",
            "10.96.1.7",
            type="Balancer",
            sessionAffinity="Cookie",
            internalTrafficPolicy="Nearby",
            externalTrafficPolicy="Far",
        ),
        {"spec.type", "spec.sessionAffinity", "spec.internalTrafficPolicy", "spec.externalTrafficPolicy"},
    ),
    (
        "services",
        service_of(
            "outside", "10.96.1.8", externalIPs=["198.51.100.8", "198.51.100.8", "127.0.0.1", "224.0.0.1", "x"]
        ),
        {"spec.externalIPs[2]", "spec.externalIPs[3]", "spec.externalIPs[4]"},
    ),
    (
        "services",
        {
            **service_of(
                "ranges",
                "10.96.1.9",
                type="LoadBalancer",
                loadBalancerSourceRanges=["192.0.2.0/24", "192.0.2.128/25", "192.0.2.0/24", "192.0.2.0/33", "all"],
            ),
            "status": {"loadBalancer": {"ingress": [{"ip": "198.51.100.9"}, {"ip": "nowhere"}, {"hostname": "lb"}]}},
        },
        {
            "spec.loadBalancerSourceRanges[3]",
            "spec.loadBalancerSourceRanges[4]",
            "status.loadBalancer.ingress[1].ip",
        },
    ),
    ("services", service_of("families", "10.96.1.10", clusterIPs=["10.96.1.10", "10.96.1.11"]), {"spec.clusterIPs"}),
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
    ("endpointslices", slice_with("protocols", endpoints="none"), {"endpoints"}),
    (
        "endpointslices",
        slice_with("ranges", ports=[{"name": "http", "port": 0}, {"name": "x", "port": 1, "protocol": "QUIC"}]),
        {"ports[0].port", "ports[1].protocol"},
    ),
]
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


def manifests(folder: Path, name: str, *values: Record) -> Path:
    """Write objects to a file of a folder, as they would be in Git."""
    whole = [
        {
            "apiVersion": "discovery.k8s.io/v1" if "addressType" in value else "v1",
            "kind": "EndpointSlice" if "addressType" in value else "Service",
            **value,
        }
        for value in values
    ]
    return write_file(folder / name, yaml.safe_dump_all(whole))


@contextlib.asynccontextmanager
async def following(folder: Path) -> AsyncIterator[Daemon]:
    flags = (f"--manifests={folder}", f"--hostname-override={NODE}")
    with stage():
        async with echo(), Daemon(*flags) as daemon:
            await daemon.heard("synced", ip_family="IPv4")
            yield daemon


async def test_bad_objects_of_manifests_are_told_once(tmp_path: Path) -> None:
    manifests(tmp_path, "good.yaml", *(value for _, value in good()))
    manifests(tmp_path, "nasty.yaml", *(value for _, value, _ in NASTY))
    async with following(tmp_path) as daemon:
        await the_good_ones_work()
        assert sorted(told(daemon)) == sorted(wanted())
        services = [value for plural, value, _ in NASTY if plural == "services"]
        slices = [value for plural, value, _ in NASTY if plural == "endpointslices"]
        spare = service_of("spare", "10.96.4.1")
        await daemon.again(
            lambda: manifests(tmp_path, "nasty.yaml", spare, *reversed(slices), *services), "synced", ip_family="IPv4"
        )
        assert sorted(told(daemon)) == sorted(wanted())


BROKEN = ("kind: Service\n  apiVersion: v1\n", '{"kind": "Service"', "a: 1\na: 2\n", "\tkind: x\n")


async def test_a_manifest_that_does_not_parse_keeps_its_last_good_objects(tmp_path: Path) -> None:
    def point_to(address: str) -> None:
        manifests(tmp_path, "web.yaml", service_of("web", "10.96.0.1"), slice_for("web", address))

    point_to("10.244.0.1")
    async with following(tmp_path) as daemon:
        for number, content in enumerate(BROKEN, 1):
            record = await daemon.again(partial(write_file, tmp_path / "web.yaml", content), INVALID)
            assert record["object"] == f"{tmp_path}/web.yaml"
            assert str(record["field"]).startswith("line ")
            assert "its last valid objects stay" in record["reason"]
            assert await reached("10.96.0.1") == f"10.244.0.{number}"
            point_to_next = partial(point_to, f"10.244.0.{number + 1}")
            await daemon.again(point_to_next, "synced", ip_family="IPv4")
            assert await reached("10.96.0.1") == f"10.244.0.{number + 1}"
        assert len(daemon.said(INVALID)) == len(BROKEN)
        write_file(tmp_path / "web.yaml", BROKEN[0])
        await daemon.again(lambda: None, "cannot read objects; the rules stay")
        await daemon.again(partial(point_to, "10.244.0.1"), "reading objects works again")


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
