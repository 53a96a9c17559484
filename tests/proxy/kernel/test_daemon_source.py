"""The real proxy and an API server that misbehaves: what is programmed stays, and everybody is told."""

import contextlib
import json
import signal
from collections.abc import AsyncIterator
from dataclasses import replace
from functools import partial

import pytest
from tests.fakes.apiserver import FakeApiServer, Fault
from tests.fakes.daemon import Record, Scene, leads_to, prepare, reached, scene, service_of, slice_for, stage

pytestmark = pytest.mark.kernel
PLURALS = ("services", "endpointslices", "nodes", "servicecidrs")
VIP = "10.96.0.1"
FAILS = "cannot read objects; the rules stay"
RECOVERED = "reading objects works again"


def filled() -> FakeApiServer:
    server = FakeApiServer()
    prepare(server)
    server.store.put("services", service_of("web", VIP))
    server.store.put("endpointslices", slice_for("web", "10.244.0.1"))
    return server


@contextlib.asynccontextmanager
async def playing(server: FakeApiServer | None = None, *flags: str) -> AsyncIterator[Scene]:
    with stage():
        async with scene(server or filled(), *flags) as it:
            yield it


async def source_errors(it: Scene) -> dict[str, str]:
    _, body = await it.page("/readyz")
    return {key: value["message"] for key, value in json.loads(body).get("sourceErrors", {}).items()}


def connect_errors(it: Scene, plural: str) -> list[Record]:
    return [record for record in it.daemon.said(FAILS, resource=plural) if "cannot connect" in record["error"]]


async def test_nothing_is_programmed_before_all_lists_are_complete_and_readyz_says_what_is_awaited() -> None:
    server, most = filled(), 1000
    faults = {plural: Fault(500, times=most, verb="list") for plural in ("endpointslices", "services")}
    for plural, fault in faults.items():
        server.fail(plural, fault)
    async with playing(server) as it:
        await it.daemon.heard(FAILS, resource="endpointslices")
        status, body = await it.page("/readyz")
        assert status == 503
        assert "EndpointSlice" in json.loads(body)["waiting"][0]
        assert (await it.page("/healthz"))[0] == 200
        assert not it.daemon.said("synced")
        assert await reached(VIP, patience=0.5) == "nothing"
        for plural in faults:
            server.faults[plural].clear()
        await it.synced()
        assert await reached(VIP) == "10.244.0.1"
        await it.daemon.heard(RECOVERED, resource="endpointslices")
        status, body = await it.page("/readyz")  # another kind's last failure may still be told
        assert (status, json.loads(body)["ready"], json.loads(body)["waiting"]) == (200, True, [])
        failed = most - faults["endpointslices"].times
        assert await it.metric("vipwire_source_errors_total", resource="endpointslices") == failed


async def test_the_rules_stay_while_the_server_is_away_and_it_is_asked_ever_more_rarely() -> None:
    async with playing() as it:
        await it.synced()
        port = it.server.port
        await it.server.stop()
        for plural in PLURALS:
            await it.daemon.until(partial(connect_errors, it, plural))
        assert await reached(VIP) == "10.244.0.1"
        assert set(await source_errors(it)) == set(PLURALS)
        assert (await it.page("/readyz"))[0] == 200
        it.server.store.put("endpointslices", slice_for("web", "10.244.0.2"))
        await it.server.start(port=port)
        for plural in PLURALS:
            await it.daemon.heard(RECOVERED, resource=plural)
        await leads_to(VIP, "10.244.0.2")
        assert all(len(connect_errors(it, plural)) == 1 for plural in PLURALS)
        assert all(len(it.server.requests(plural, watch=False)) == 1 for plural in PLURALS)


FAULTS: dict[str, list[tuple[str, Fault, str]]] = {
    "refusals": [
        ("services", Fault(403, verb="watch"), "watch: 403 on demand"),
        ("endpointslices", Fault(500, verb="watch", body=b"<html>"), "watch: 500"),
        ("nodes", Fault(429, verb="watch", headers={"Retry-After": "2"}), "watch: 429 on demand"),
        ("servicecidrs", Fault(302, verb="watch", headers={"Location": "/elsewhere"}), "watch: 302"),
    ],
    "garbage": [
        ("services", Fault(200, verb="watch", body=b"\x00\xff garbage\n"), "watch: "),
        ("endpointslices", Fault(200, verb="watch", body=b'{"type":"ADDED","object":'), "watch: ended at once"),
        ("nodes", Fault(200, verb="watch", body=b""), "watch: ended at once"),
        ("servicecidrs", Fault(200, verb="watch", body=b'{"type":"ADDED"}\n'), "watch: "),
    ],
    "lists": [
        ("services", Fault(200, verb="list", body=b"<html>welcome</html>"), "list: JSON is malformed"),
        ("endpointslices", Fault(200, verb="list", body=b'{"items": [{"metadata'), "list: "),
        ("nodes", Fault(200, verb="list", body=b'{"items": []}'), "list: an answer without metadata.resourceVersion"),
        ("servicecidrs", Fault(503, verb="list", body=b""), "list: 503"),
    ],
}


@pytest.mark.parametrize("faults", FAULTS.values(), ids=FAULTS)
async def test_what_a_server_does_wrong_is_told_once_for_each_kind_and_tried_again(
    faults: list[tuple[str, Fault, str]],
) -> None:
    server = filled()
    times = 2 if faults is FAULTS["refusals"] else 1
    for plural, fault, _ in faults:
        server.fail(plural, replace(fault, times=times))
    async with playing(server) as it:
        for plural, _, said in faults:
            record = await it.daemon.heard(FAILS, resource=plural)
            assert str(record["error"]).startswith(said)
        for plural, _, _ in faults:
            await it.daemon.heard(RECOVERED, resource=plural)
            assert len(it.daemon.said(FAILS, resource=plural)) == 1
            assert await it.metric("vipwire_source_errors_total", resource=plural) == times
        assert await source_errors(it) == {}
        await it.synced()
        assert await reached(VIP) == "10.244.0.1"
        it.server.store.put("endpointslices", slice_for("web", "10.244.0.2"))
        await leads_to(VIP, "10.244.0.2")


async def test_a_server_that_was_never_there_is_waited_for_and_a_signal_still_ends_the_wait() -> None:
    async with playing() as it:
        await it.daemon.heard("starting")
        await it.server.stop()
        await it.daemon.heard(FAILS)
        assert await it.daemon.terminate(signal.SIGINT) == 0
