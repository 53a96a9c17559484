"""Endpoints that do not answer new connections, seen in conntrack by the real proxy: ejected, and taken back.

A Pod is silent whose packets leave this namespace and meet nobody, as if a filter in the Pod dropped them. One whose
address is here and whose port nobody serves answers with a reset.
"""

import asyncio
import json
import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from tests.fakes.apiserver import FakeApiServer
from tests.fakes.daemon import ECHO_PORT, PATIENCE, Scene, prepare, reached, scene, service_of, slice_for, stage
from tests.fakes.own_network import run

pytestmark = pytest.mark.kernel
VIP = "10.96.0.1"
GOOD, SILENT, CLOSED = ("10.244.0.1", "10.244.0.2"), "10.244.0.20", "10.244.0.3"
EJECTED, BACK = "endpoint ejected", "using the endpoint again; one failure ejects it"


def service(**annotations: str) -> dict[str, Any]:
    made = service_of("web", VIP)
    made["metadata"]["annotations"] = {
        f"vipwire.io/{key.replace('_', '-')}": each for key, each in annotations.items()
    }
    return made


@asynccontextmanager
async def web(*slices: dict[str, Any], mode: str = "nftables", **annotations: str) -> AsyncIterator[Scene]:
    """Run a proxy with one Service."""
    run(f"ip neighbour add {SILENT} lladdr 02:00:00:00:00:99 dev node nud permanent")
    server = FakeApiServer()
    prepare(server)
    server.store.put("services", service(**annotations))
    for each in slices:
        server.store.put("endpointslices", each)
    async with scene(server, f"--proxy-mode={mode}") as it:
        await it.synced()
        yield it


async def knock(it: Scene, message: str, **fields: object) -> None:
    """Connect again and again until the proxy has said something."""
    try:
        async with asyncio.timeout(PATIENCE):
            while not it.daemon.said(message, **fields):
                await asyncio.gather(*(reached(VIP, patience=0.2) for _ in range(6)))
    except TimeoutError:
        raise AssertionError(f"never said {message!r}; the log:\n{it.daemon.log()}") from None


async def answers(count: int = 24) -> Counter[str]:
    return Counter(await asyncio.gather(*(reached(VIP, patience=5) for _ in range(count))))


async def asked(it: Scene, *arguments: str) -> tuple[int, Any]:
    """Run a command that looks."""
    flags = [flag for flag in it.daemon.flags if not flag.startswith("--logging")]
    command = (sys.executable, "-m", "vipwire", *arguments, "-o", "json", *flags)
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    answer, _ = await process.communicate()
    return process.returncode or 0, json.loads(answer)


async def looked_at(it: Scene) -> None:
    """Check that commands know what the proxy has ejected, and find the kernel as planned."""
    _, status = await asked(it, "status")
    assert [family["state"] for family in status["families"]] == ["as planned"] * len(status["families"])
    why = {each["address"]: each["why"] for each in status["services"][0]["ports"][0]["endpoints"]}
    assert why.pop(SILENT).startswith("ejected until ")
    assert set(why.values()) == {"ready"}
    code, explained = await asked(it, "explain", f"{VIP}:80")
    assert (code, explained["kernel"]["agrees"]) == (0, True)
    assert {each["address"] for each in explained["endpoints"]} == set(GOOD)
    assert [(each["address"], each["used"]) for each in explained["ejected"]] == [(SILENT, False)]


@pytest.mark.parametrize("mode", ["nftables", "iptables"])
async def test_one_that_is_silent_gets_nothing_and_comes_back_when_its_time_is_over(mode: str) -> None:
    with stage():
        async with web(slice_for("web", *GOOD, SILENT), mode=mode, eject_after="3", eject_for="20s") as it:
            await knock(it, EJECTED)
            await it.daemon.heard("deleted unanswered flows to ejected endpoints", ip_family="IPv4")
            assert set(await answers()) == set(GOOD)
            (said,) = it.daemon.said(EJECTED)
            place = f"{SILENT}:{ECHO_PORT}/tcp"
            assert (said["endpoint"], said["service"], said["last"]) == (place, "default/web:http", "no answer")
            assert await it.metric("vipwire_ejections_total", failure="no answer") == 1
            (event,) = await it.posted("EndpointEjected", "web")
            assert event["message"].startswith(f"{place} gets no new connections for 20 s")
            await looked_at(it)
            run(f"ip address add {SILENT}/32 dev lo")
            await it.daemon.heard(BACK)
            await it.posted("EndpointReadmitted", "web")
            async with asyncio.timeout(60):
                while SILENT not in await answers():
                    pass
            assert await it.metric("vipwire_ejected_endpoints") == 0
            assert await it.daemon.terminate() == 0
