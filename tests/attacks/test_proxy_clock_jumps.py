"""The wall clock of a running proxy jumps by hours and years: Services, affinity, drains and /healthz stay right."""

import asyncio
import contextlib
import subprocess
import sys
from pathlib import Path

import pytest
from tests.attacks.clocks import faked, jump
from tests.fakes.apiserver import FakeApiServer
from tests.fakes.daemon import NODE, PATIENCE, leads_to, page, reached, scene, service_of, slice_for, stage
from tests.proxy.conformance import own_cgroup

pytestmark = [pytest.mark.attack, pytest.mark.kernel, pytest.mark.slow]
JUMPS = ("+1h", "-1h", "+3650d", "-3650d", "+0")
FIRST, SECOND = "10.244.0.1", "10.244.0.2"
MODES = ("nftables", "iptables", "ebpf", "userspace")
"""ipvs mode needs another kernel: tests/proxy/kernel/ipvs/clock_jumps.py."""


@pytest.mark.parametrize("mode", MODES)
async def test_a_proxy_serves_after_each_jump_of_the_clock(mode: str, tmp_path: Path) -> None:
    with own_cgroup.beside("node") if mode == "ebpf" else contextlib.nullcontext() as cgroup:
        await play(mode, tmp_path, *([f"--ebpf-cgroup={cgroup}"] if cgroup else []))


async def play(mode: str, tmp_path: Path, *more: str) -> None:
    """Run a proxy in a network namespace while its clock jumps."""
    clock, state = tmp_path / "clock", tmp_path / "state"
    jump(clock, "+0")

    def drain(server: FakeApiServer, *words: str) -> None:
        where = (f"--state-dir={state}", f"--hostname-override={NODE}", f"--master={server.url}")
        command = [sys.executable, "-m", "vipwire", "drain", FIRST, *words, *where]
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
        assert done.returncode == 0, done.stderr

    with stage():
        server = FakeApiServer()
        flags = (f"--proxy-mode={mode}", f"--state-dir={state}", *more)
        async with scene(server, *flags, environ=faked(clock)) as here:
            for name, address in (("sticky", "10.96.0.1"), ("drained", "10.96.0.2")):
                spec = {"sessionAffinity": "ClientIP"} if name == "sticky" else {}
                server.store.put("services", service_of(name, address, **spec))
                server.store.put("endpointslices", slice_for(name, FIRST, SECOND))
            await leads_to("10.96.0.2", FIRST)
            stuck = await reached("10.96.0.1")
            assert stuck in (FIRST, SECOND)
            await asyncio.to_thread(drain, server, "--service=default/drained")
            for number, to in enumerate(JUMPS, 1):
                jump(clock, to)
                address = f"10.96.1.{number}"
                server.store.put("services", service_of(f"new-{number}", address))
                await here.put("endpointslices", slice_for(f"new-{number}", SECOND))
                await leads_to(address, SECOND)
                assert {await reached("10.96.0.1") for _ in range(8)} == {stuck}, to
                assert {await reached("10.96.0.2") for _ in range(8)} == {SECOND}, to
                assert (await page("/healthz", 10256))[0] == 200, to
            assert "Traceback" not in here.daemon.log()
