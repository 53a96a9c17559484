"""A daemon whose machine cannot run the configured mode: what runs, and how that is told."""

from pathlib import Path

import pytest
from tests.fakes.apiserver import FakeApiServer
from tests.fakes.daemon import Daemon, page, prepare, reached, scene, service_of, slice_for, stage
from tests.fakes.own_network import run

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
async def test_without_ipvs_iptables_mode_runs_if_that_is_asked_for_and_every_page_tells() -> None:
    with stage():
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


@pytest.mark.skipif(not lacks_ipvs(), reason="this machine's own kernel has IPVS")
async def test_without_the_flag_the_process_ends_and_says_why() -> None:
    with stage():
        async with Daemon("--proxy-mode=ipvs", "--master=http://127.0.0.1:1") as daemon:
            assert await daemon.ended() == 1
            assert not daemon.said("starting")
            (line,) = daemon.lines
            assert line.startswith("error: ")
            assert "ip_vs" in line
        assert run("nft list tables") == "", "nothing was begun"


NO_IPTABLES = ("unshare", "--mount", "sh", "-c", 'mount -t tmpfs none /usr/sbin && exec "$0" "$@"')
"""A machine where the package iptables is not installed: its programs are in this folder, and nothing we need."""


@pytest.mark.parametrize("wanted", ["iptables", "ipvs"])
@pytest.mark.skipif(not lacks_ipvs(), reason="this machine's own kernel has IPVS: nothing falls back")
async def test_without_iptables_nftables_mode_runs_and_every_step_is_told(wanted: str) -> None:
    with stage():
        flags = (f"--proxy-mode={wanted}", "--proxy-mode-fallback")
        async with scene(server(), *flags, within=NO_IPTABLES) as it:
            await it.synced()
            steps = it.daemon.said(FALLBACK)
            modes = {"ipvs": [("ipvs", "iptables"), ("iptables", "nftables")], "iptables": [("iptables", "nftables")]}
            assert [(each["mode"], each["to"]) for each in steps] == modes[wanted]
            assert "iptables" in steps[-1]["reason"]
            assert "install" in steps[-1]["reason"], "what to do about it"
            assert "--proxy-mode=nftables" in steps[-1]["remedy"]
            assert await page("/proxyMode", 10249) == (200, "nftables")
            assert await it.metric("vipwire_proxy_mode", mode="nftables", configured=wanted) == 1
            assert await it.metric("vipwire_proxy_mode") == 1
            assert await reached("10.96.0.1") == "10.244.0.1"
            assert await it.daemon.terminate() == 0
        assert "table ip vipwire" in run("nft list tables")
        assert "KUBE" not in run("nft list ruleset"), "nothing of a mode that was tried stays"


NO_CGROUP2 = (
    *("unshare", "--mount", "sh", "-c"),
    'awk \'$3 == "cgroup2" { print $2 }\' /proc/self/mounts | xargs -r umount -l; exec "$0" "$@"',
)
"""A machine that has cgroup v1 alone."""


async def test_without_cgroup2_nftables_mode_runs_in_place_of_ebpf_mode() -> None:
    with stage():
        async with scene(server(), "--proxy-mode=ebpf", "--proxy-mode-fallback", within=NO_CGROUP2) as it:
            record = await it.daemon.heard(FALLBACK)
            assert (record["mode"], record["to"]) == ("ebpf", "nftables")
            assert "cgroup2, which is not mounted" in record["reason"]
            assert "mount -t cgroup2" in record["reason"], "what to do about it"
            await it.synced()
            assert await page("/proxyMode", 10249) == (200, "nftables")
            assert await reached("10.96.0.1") == "10.244.0.1"
            assert await it.daemon.terminate() == 0


async def test_without_iptables_userspace_mode_ends_and_names_the_package_and_the_way_without_rules() -> None:
    with stage():
        flags = ("--proxy-mode=userspace", "--proxy-mode-fallback", "--master=http://127.0.0.1:1")
        async with Daemon(*flags, within=NO_IPTABLES) as daemon:
            assert await daemon.ended() == 1
            (line,) = (line for line in daemon.lines if line.startswith("error: "))
            assert "install the package iptables" in line
            assert "--userspace-bind" in line
            assert not daemon.said(FALLBACK), "there is nothing below"
