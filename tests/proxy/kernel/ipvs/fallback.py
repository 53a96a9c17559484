"""The guest's kernel has nf_tables and no table of any family: nftables mode cannot run there, nor iptables-nft."""

import pytest
from tests.fakes.daemon import page, reached, scene, stage
from tests.fakes.own_network import run
from tests.proxy.kernel.test_daemon_fallback import FALLBACK, server

pytestmark = pytest.mark.kernel


@pytest.mark.parametrize("wanted", ["nftables", ""], ids=["nftables", "blank"])
async def test_without_nftables_iptables_mode_runs_with_the_legacy_tools(wanted: str) -> None:
    with stage():
        async with scene(server(), f"--proxy-mode={wanted}", "--proxy-mode-fallback") as it:
            record = await it.daemon.heard(FALLBACK)
            assert (record["mode"], record["to"]) == ("nftables", "iptables")
            assert "the kernel has nf_tables, but refuses `add table`" in record["reason"]
            assert "CONFIG_NF_TABLES_IPV4" in record["reason"]
            await it.synced()
            assert await page("/proxyMode", 10249) == (200, "iptables")
            assert await it.metric("vipwire_proxy_mode", mode="iptables", configured="nftables") == 1
            assert await reached("10.96.0.1") == "10.244.0.1"
            assert await it.daemon.terminate() == 0
        assert "KUBE-SERVICES" in run("iptables-legacy-save -t nat")
