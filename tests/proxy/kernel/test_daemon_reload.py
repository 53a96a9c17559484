"""A running proxy and its configuration file: what a change of it does, and what a broken one does not."""

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.fakes.apiserver import FakeApiServer
from tests.fakes.daemon import (
    NODE,
    PATIENCE,
    Daemon,
    Scene,
    page,
    prepare,
    scene,
    service_of,
    slice_for,
    stage,
    write,
)
from tests.fakes.own_network import run

pytestmark = pytest.mark.kernel
COUNTS = "applied the new configuration"
WAITS = "part of the new configuration needs a restart"
WEB, ASKER = "10.96.0.1", "10.96.0.2"
PEER_PORT, CHECKED = 8081, 30500
HEADER = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nlogging: {format: json}\n"
CALM = "clusterCIDR: 10.244.0.0/16\nnftables: {syncPeriod: 1h}\n"


class Reloading(Scene):
    """A daemon with a configuration file."""

    def __init__(self, server: FakeApiServer, daemon: Daemon, file: Path) -> None:
        super().__init__(server, daemon)
        self.file = file

    def write(self, text: str) -> None:
        """Replace the file."""
        write(self.file, HEADER + text)

    async def counts(self, text: str, fields: str) -> None:
        """Replace the file and wait until these fields of it count."""
        await self.daemon.again(lambda: self.write(text), COUNTS, fields=fields)

    def hang_up(self) -> None:
        """Send SIGHUP."""
        assert self.daemon.process is not None
        self.daemon.process.send_signal(signal.SIGHUP)


async def until(fact: Callable[[], Awaitable[bool]], what: str) -> None:
    """Ask again and again until something is so."""
    try:
        async with asyncio.timeout(PATIENCE):
            while not await fact():  # noqa: ASYNC110 - what is asked is the kernel and a port, which tell nobody
                await asyncio.sleep(0.02)
    except TimeoutError:
        raise AssertionError(f"not so: {what}") from None


async def _tell_peer(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(str(writer.get_extra_info("peername")[0]).encode())
    await writer.drain()
    writer.close()


async def seen_as(source: str) -> str:
    """Connect from an address of this machine to the Service that says whom it sees."""
    reader, writer = await asyncio.open_connection(ASKER, 80, local_addr=(source, 0))
    answer = (await reader.read()).decode()
    writer.close()
    return answer


@contextlib.asynccontextmanager
async def reloading(file: Path, text: str, *flags: str) -> AsyncIterator[Reloading]:
    """Run a daemon with a configuration file, and wait for its first sync."""
    server = FakeApiServer()
    prepare(server)
    ports = [{"name": "http", "protocol": "TCP", "port": 80, "nodePort": 30080}]
    server.store.put("services", service_of("web", WEB, type="NodePort", ports=ports))
    server.store.put("endpointslices", slice_for("web", "10.244.0.1"))
    server.store.put("services", service_of("asker", ASKER))
    server.store.put("endpointslices", slice_for("asker", "10.244.0.2", port=PEER_PORT))
    write(file, HEADER + text)
    peer = await asyncio.start_server(_tell_peer, "10.244.0.2", PEER_PORT)
    async with peer, scene(server, f"--config={file}", *flags) as it:
        await it.synced()
        yield Reloading(it.server, it.daemon, file)


@contextlib.asynccontextmanager
async def playing(tmp_path: Path, text: str, *flags: str) -> AsyncIterator[Reloading]:
    with stage():
        async with reloading(tmp_path / "config.conf", text, *flags) as it:
            yield it
            assert await it.daemon.terminate() == 0


async def is_hidden(source: str) -> bool:
    return await seen_as(source) != source


async def test_servers_move_and_the_pages_tell_the_new_configuration(tmp_path: Path) -> None:
    async with playing(tmp_path, CALM) as it:
        assert (await page("/debug/stacks", 10249))[0] == 404
        await it.counts(
            f"{CALM}healthzBindAddress: 127.0.0.1:10356\nmetricsBindAddress: 127.0.0.1:10349\nenableProfiling: true\n"
            "featureGates: {ComponentFlagz: false, AllowServiceExternalIPs: false}\n",
            "featureGates,healthzBindAddress,metricsBindAddress,enableProfiling",
        )
        await until(lambda: answers("/healthz", 10356), "/healthz is at the new port")
        await until(lambda: answers("/debug/stacks", 10349), "/debug is served")
        assert '"enableProfiling":true' in (await page("/configz", 10349))[1]
        assert (await page("/flagz", 10349))[0] == 404
        metrics = (await page("/metrics", 10349))[1]
        assert 'kubernetes_feature_enabled{name="AllowServiceExternalIPs",stage=""} 0.0\n' in metrics
        for port in (10256, 10249):
            await until(partial(is_shut, port), f"nobody listens at {port} any more")


async def is_shut(port: int) -> bool:
    try:
        await page("/healthz", port)
    except OSError as error:
        return "Cannot connect" in str(error)
    return False


async def answers(path: str, port: int) -> bool:
    with contextlib.suppress(OSError):
        return (await page(path, port))[0] == 200
    return False


async def test_kernel_settings_and_the_oom_score_follow(tmp_path: Path) -> None:
    async with playing(tmp_path, f"{CALM}oomScoreAdj: 5\n") as it:
        await it.counts(
            f"{CALM}oomScoreAdj: 7\nconntrack: {{tcpEstablishedTimeout: 5h, udpTimeout: 77s}}\n",
            "conntrack.tcpEstablishedTimeout,conntrack.udpTimeout,oomScoreAdj",
        )
        assert run("sysctl -n net.netfilter.nf_conntrack_tcp_timeout_established").strip() == "18000"
        assert run("sysctl -n net.netfilter.nf_conntrack_udp_timeout").strip() == "77"
        assert it.daemon.process is not None
        assert run(f"cat /proc/{it.daemon.process.pid}/oom_score_adj").strip() == "7"


async def test_what_needs_a_restart_is_named_and_waits_and_the_rest_counts(tmp_path: Path) -> None:
    async with playing(tmp_path, CALM) as it:
        restart = "portRange: 30000-31000\nipvs: {scheduler: wrr}\n"
        changed = f"clusterCIDR: 10.9.0.0/16\nnftables: {{syncPeriod: 1h}}\n{restart}"
        await it.counts(changed, "clusterCIDR")
        record = await it.daemon.heard(WAITS)
        assert record["fields"] == "ipvs.scheduler,portRange"
        await until(lambda: is_hidden("10.244.0.5"), "clusterCIDR counts")
        assert await page("/proxyMode", 10249) == (200, "nftables")
        assert await it.metric("vipwire_config_fields_awaiting_restart") == 2
        it.write(CALM)
        await it.daemon.until(lambda: len(it.daemon.said(COUNTS, fields="clusterCIDR")) == 2)
        assert await it.metric("vipwire_config_fields_awaiting_restart") == 0


async def test_without_a_file_hanging_up_is_answered_and_ends_nothing(tmp_path: Path) -> None:
    with stage():
        server = FakeApiServer()
        prepare(server)
        async with scene(server) as it:
            await it.synced()
            Reloading(server, it.daemon, tmp_path).hang_up()
            await it.daemon.heard("no configuration file to read again (--config)")
            assert await it.daemon.terminate() == 0


async def test_hanging_up_while_it_starts_ends_nothing_and_is_answered() -> None:
    with stage():
        server = FakeApiServer()
        prepare(server)
        async with scene(server) as it:
            process = it.daemon.process
            assert process is not None
            async with asyncio.timeout(PATIENCE):
                while not catches(process.pid, signal.SIGHUP):  # noqa: ASYNC110 - the kernel tells nobody
                    await asyncio.sleep(0.001)
            process.send_signal(signal.SIGHUP)
            await it.daemon.heard("no configuration file to read again (--config)")
            assert await it.daemon.terminate() == 0


def catches(process: int, number: signal.Signals) -> bool:
    """Tell whether a process has a handler for a signal."""
    status = Path(f"/proc/{process}/status").read_text(encoding="ascii")
    mask = next(line.split()[1] for line in status.splitlines() if line.startswith("SigCgt:"))
    return bool(int(mask, 16) >> (number - 1) & 1)


async def is_checked(address: str) -> bool:
    """Ask a health check node port at an address; False if nothing listens there."""
    try:
        reader, writer = await asyncio.open_connection(address, CHECKED)
        writer.write(b"GET / HTTP/1.0\r\n\r\n")
        answer = await reader.readline()
    except OSError:  # also a listener that is being closed
        return False
    writer.close()
    return b"200" in answer


async def is_unchecked(address: str) -> bool:
    return not await is_checked(address)


async def test_health_check_node_ports_follow_the_addresses_of_the_node(tmp_path: Path) -> None:
    with stage():
        run("ip address add 10.55.0.1/32 dev lo")
        async with reloading(tmp_path / "config.conf", f"{CALM}nodePortAddresses: [10.55.0.0/16]\n") as it:
            local: dict[str, Any] = {
                "type": "LoadBalancer",
                "externalTrafficPolicy": "Local",
                "healthCheckNodePort": CHECKED,
            }
            await it.put("services", service_of("checked", "10.96.0.3", **local))
            sliced = slice_for("checked", "10.244.0.1")
            sliced["endpoints"][0]["nodeName"] = NODE
            await it.put("endpointslices", sliced)
            await until(lambda: is_checked("10.55.0.1"), "it answers at the address that the node has")
            run("ip address add 10.55.0.2/32 dev lo")
            run("ip address add 10.66.0.1/32 dev lo")
            await until(lambda: is_checked("10.55.0.2"), "it answers at a new address in the range")
            assert await is_unchecked("10.66.0.1")
            run("ip address del 10.55.0.1/32 dev lo")
            run("ip address add 10.55.0.1/32 dev lo")
            await until(lambda: is_checked("10.55.0.1"), "it answers at an address that came back")
            await it.counts(f"{CALM}nodePortAddresses: [10.66.0.0/16]\n", "nodePortAddresses")
            await until(lambda: is_checked("10.66.0.1"), "it answers in the new range")
            await until(lambda: is_unchecked("10.55.0.2"), "it answers no more in the old one")
            assert await it.daemon.terminate() == 0
