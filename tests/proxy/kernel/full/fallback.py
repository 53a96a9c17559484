"""Fallback from ipvs mode on a complete kernel with hidden modules; see `vipwire_lab.guest_kernel --full`.

By hand: `python -m vipwire_lab.guest_kernel --full --memory 2048M -- python -m pytest
tests/proxy/kernel/full/fallback.py`.
"""

import asyncio
import contextlib
import subprocess
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from tests.fakes import daemon
from tests.fakes.daemon import page, reached, scene, stage
from tests.fakes.own_network import run
from tests.fakes.waiting import until
from tests.proxy.kernel.test_daemon_fallback import FALLBACK, server

pytestmark = pytest.mark.kernel
SLOW = 600.0
"""Seconds until a missing fact is a failure, in the emulator."""
WITHOUT_CHOICE = ("ip_vs", "xt_statistic")
"""Without the second, iptables mode cannot spread connections."""
ONLY_NAT = (*WITHOUT_CHOICE, "nft_compat", "nf_tables")
STEPS = [("ipvs", "iptables"), ("iptables", "nftables"), ("nftables", "userspace")]


@pytest.fixture(autouse=True)
def slow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(daemon, "PATIENCE", SLOW)


def unloaded(module: str) -> bool:
    """Unload a module and its dependents; report whether it is gone."""
    subprocess.run(["modprobe", "-q", "-r", "--remove-holders", module], check=False)
    return not Path("/sys/module", module).exists()


@contextlib.contextmanager
def without(modules: tuple[str, ...]) -> Iterator[None]:
    """Unload modules and hide their files, also from the kernel's own modprobe."""
    with contextlib.ExitStack() as stack:
        for module in modules:
            file = run(f"modinfo -n {module}").strip()
            run(f"mount --bind /dev/null {file}")
            stack.callback(run, f"umount {file}")
            until(partial(unloaded, module), f"{module} is in use")  # a namespace that is ending may still use it
        yield


async def fallen_back(steps: list[tuple[str, str]]) -> None:
    """Start a proxy in ipvs mode; check that the log has these steps, and that the last mode works."""
    mode = steps[-1][1]
    async with scene(server(), "--proxy-mode=ipvs", "--proxy-mode-fallback") as it:
        await it.synced()
        assert [(each["mode"], each["to"]) for each in it.daemon.said(FALLBACK)] == steps, it.daemon.log()
        assert await page("/proxyMode", 10249) == (200, mode)
        assert await it.metric("vipwire_proxy_mode", mode=mode, configured="ipvs") == 1
        assert await reached("10.96.0.1", patience=SLOW) == "10.244.0.1"
        await it.daemon.heard("found no rules of other modes", mode=mode)
        assert await it.daemon.terminate() == 0


@pytest.mark.timeout(1800)
def test_the_next_mode_that_this_kernel_can_runs_and_every_step_is_told() -> None:
    """In this order: a kernel that has had a ruleset of nftables does not let nf_tables go."""
    with without(ONLY_NAT), stage():
        asyncio.run(fallen_back(STEPS))
        assert "KUBE-PORTALS-" in run("iptables-legacy-save -t nat"), "it runs with rules"
    with without(WITHOUT_CHOICE), stage():
        asyncio.run(fallen_back(STEPS[:2]))
        assert "table ip vipwire" in run("nft list tables")
