"""A daemon whose machine cannot run the configured mode: what runs, and how that is told."""

import asyncio
from pathlib import Path

import pytest
from tests.fakes.apiserver import FakeApiServer
from tests.fakes.daemon import Daemon, page, prepare, reached, scene, service_of, slice_for, stage
from tests.kernel.own_network import run

pytestmark = pytest.mark.kernel
FALLBACK = "falling back"


def server() -> FakeApiServer:
    made = FakeApiServer()
    prepare(made)
    made.store.put("services", service_of("web", "10.96.0.1"))
    made.store.put("endpointslices", slice_for("web", "10.244.0.1"))
    return made


def lacks_ipvs() -> bool:
    return not Path("/proc/net/ip_vs").exists() and not Path("/sys/module/ip_vs").exists()


@pytest.mark.skipif(not lacks_ipvs(), reason="this machine's own kernel has IPVS: nothing falls back")
def test_without_ipvs_iptables_mode_runs_if_that_is_asked_for_and_every_page_tells() -> None:
    async def scenario() -> None:
        async with scene(server(), "--proxy-mode=ipvs", "--proxy-mode-fallback") as it:
            record = await it.daemon.heard(FALLBACK)
            assert (record["level"], record["mode"], record["to"]) == ("warning", "ipvs", "iptables")
            assert "ip_vs" in record["reason"], "what is missing"
            assert "modprobe" in record["reason"] or "load" in record["reason"], "and what to do about it"
            await it.synced()
            assert it.daemon.said("starting", mode="iptables")
            assert await page("/proxyMode", 10249) == (200, "iptables")
            assert await it.metric("vipwire_proxy_mode", mode="iptables", configured="ipvs") == 1
            assert await it.metric("vipwire_proxy_mode") == 1
            assert await reached("10.96.0.1") == "10.244.0.1"
            assert await it.daemon.terminate() == 0

    with stage():
        asyncio.run(scenario())


@pytest.mark.skipif(not lacks_ipvs(), reason="this machine's own kernel has IPVS")
def test_without_the_flag_the_process_ends_and_says_why() -> None:
    async def scenario() -> None:
        async with Daemon("--proxy-mode=ipvs", "--master=http://127.0.0.1:1") as daemon:
            assert await daemon.ended() == 1
            assert not daemon.said("starting")
            (line,) = daemon.lines
            assert line.startswith("error: ")
            assert "ip_vs" in line

    with stage():
        asyncio.run(scenario())
        assert run("nft list tables") == "", "nothing was begun"
