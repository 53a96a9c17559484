"""A running proxy whose configuration file names another mode: the process stays, and no connection is lost."""

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.fakes.apiserver import FakeApiServer
from tests.fakes.daemon import Scene, page, prepare, reached, scene, service_of, slice_for, stage, write
from tests.fakes.own_network import run

pytestmark = pytest.mark.kernel
HEADER = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nlogging: {format: json}\n"
WEB, POD = "10.96.0.1", "10.244.0.1"
DONE = "found no rules of other modes"


class Changing(Scene):
    """A daemon whose file is `file`, while connections are made to a Service all the time."""

    def __init__(self, server: FakeApiServer, scene: Scene, file: Path) -> None:
        super().__init__(server, scene.daemon)
        self.file = file
        self.answers: list[str] = []
        self.over = False

    def mode(self, name: str) -> None:
        """Replace the file by one that names a mode."""
        write(self.file, f"{HEADER}mode: {name}\n")

    async def connect(self) -> None:
        """Connect until it is over."""
        while not self.over:
            self.answers.append(await reached(WEB))
            await asyncio.sleep(0.01)


@contextlib.asynccontextmanager
async def changing(file: Path) -> AsyncIterator[Changing]:
    server = FakeApiServer()
    prepare(server)
    server.store.put("services", service_of("web", WEB))
    server.store.put("endpointslices", slice_for("web", POD))
    write(file, f"{HEADER}mode: nftables\n")
    with stage():
        async with scene(server, f"--config={file}") as plain:
            it = Changing(server, plain, file)
            await it.daemon.heard(DONE)
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(it.connect())
                yield it
                it.over = True
            assert set(it.answers) == {POD}
            assert await it.daemon.terminate() == 0


def rules() -> str:
    return run("nft list tables") + run("iptables-nft-save")


async def test_the_file_changes_the_mode_of_a_running_proxy(tmp_path: Path) -> None:
    async with changing(tmp_path / "config.conf") as it:
        before = len(it.daemon.records)
        await it.daemon.again(lambda: it.mode("iptables"), DONE, mode="iptables")
        record = it.daemon.said("changing the mode", to="iptables")[0]
        assert record["mode"] == "nftables"
        assert it.daemon.said("removed another mode's rules", left_by="nftables", what="table ip vipwire")
        assert "table ip vipwire" not in rules()
        assert re.search(r":KUBE-SVC-", rules())
        assert await page("/proxyMode", 10249) == (200, "iptables")
        assert await it.metric("vipwire_proxy_mode", mode="iptables", configured="iptables") == 1
        assert await it.metric("vipwire_leftovers_removed_total", mode="nftables") == 2
        assert len([each for each in it.daemon.records[before:] if each["msg"] == "starting"]) == 1
        await it.daemon.again(lambda: it.mode("userspace"), DONE, mode="userspace")
        assert "KUBE-SVC-" not in rules()
        assert await page("/proxyMode", 10249) == (200, "userspace")
        await it.daemon.again(lambda: it.mode("nftables"), DONE, mode="nftables")
        assert it.daemon.said("removed another mode's rules", left_by="userspace")
        assert "KUBE-" not in rules()
        assert await reached(WEB) == POD


@pytest.mark.skipif(Path("/proc/net/ip_vs").exists(), reason="this machine's own kernel has IPVS: the mode runs")
async def test_a_mode_that_cannot_run_here_changes_nothing(tmp_path: Path) -> None:
    async with changing(tmp_path / "config.conf") as it:
        await it.daemon.again(lambda: it.mode("ipvs"), "cannot change the mode; keeping the old mode", mode="ipvs")
        await it.daemon.heard("part of the new configuration needs a restart", fields="mode")
        assert await page("/proxyMode", 10249) == (200, "nftables")
        assert not it.daemon.said("changing the mode")
        assert await reached(WEB) == POD
        assert await it.metric("vipwire_config_fields_awaiting_restart") == 1
