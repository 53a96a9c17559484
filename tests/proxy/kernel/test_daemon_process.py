"""The real proxy as a process: what kube-proxy's operators and installers rely on."""

import asyncio
import socket
from pathlib import Path

import pytest
from tests.fakes.apiserver import FakeApiServer
from tests.fakes.authority import authority
from tests.fakes.daemon import Daemon, page, prepare, reached, scene, service_of, slice_for, stage, write
from tests.fakes.kubeadm import with_kubeconfig
from tests.fakes.kubeconfig import write_kubeconfig
from tests.fakes.own_network import run

pytestmark = pytest.mark.kernel


def filled(**options: object) -> FakeApiServer:
    server = FakeApiServer(**options)  # type: ignore[arg-type]
    prepare(server)
    server.store.put("services", service_of("web", "10.96.0.1"))
    server.store.put("endpointslices", slice_for("web", "10.244.0.1"))
    return server


def alone(*flags: str) -> tuple[int, Daemon]:
    """Run a process that ends by itself; return its exit status and what it said."""

    async def scenario() -> tuple[int, Daemon]:
        async with Daemon(*flags) as daemon:
            return await daemon.ended(), daemon

    return asyncio.run(scenario())


async def test_kubeadms_configuration_works_and_another_kubeconfig_waits_for_a_restart(tmp_path: Path) -> None:
    config, token = tmp_path / "config.conf", tmp_path / "token"
    token.write_text("mounted")
    with stage():
        server = filled(tls=authority().server_context(), token="mounted")  # noqa: S106 - the test's own
        await server.start()
        write_kubeconfig(
            tmp_path / "kubeconfig.conf",
            server.url,
            {"tokenFile": str(token)},
            {"certificate-authority": str(authority().certificate)},
        )
        config.write_text(with_kubeconfig(tmp_path / "kubeconfig.conf"))
        async with Daemon(f"--config={config}", "--hostname-override=NODE-0") as daemon:
            record = await daemon.heard("synced", ip_family="IPv4")
            assert record["services"] == 2
            assert daemon.said("starting", node="node-0", mode="nftables")
            assert (await page("/healthz", 10256))[0] == 200
            assert await page("/proxyMode", 10249) == (200, "nftables")
            write(config, with_kubeconfig(Path("elsewhere")))
            await daemon.heard("part of the new configuration needs a restart", fields="clientConnection.kubeconfig")
            assert await page("/proxyMode", 10249) == (200, "nftables")
            assert await daemon.terminate() == 0
        assert "10.96.0.1" in run("nft list map ip vipwire service-ips")
        await server.stop()


async def test_a_signal_ends_a_first_sync_before_its_transaction() -> None:
    services = 100
    with stage():
        server = filled()
        for number in range(1, services + 1):
            server.store.put("services", service_of(f"s{number}", f"10.96.1.{number}"))
        await server.start()
        flags = (f"--master={server.url}", "--hostname-override=node-0")
        async with Daemon(*flags, program="tests.fakes.slow_rendering") as daemon:
            await daemon.until(lambda: "renders" in daemon.lines)
            assert await daemon.terminate() == 0
            assert daemon.lines.count("renders") < services
            assert set(daemon.lines) == {"renders"}, "no traceback"
            assert not daemon.said("synced")
            assert daemon.said("stopped; the rules stay", reason="SIGTERM")
        assert run("nft list tables") == ""
        await server.stop()


def test_init_only_sets_the_kernels_settings_and_ends() -> None:
    with stage():
        status, daemon = alone("--init-only", "--conntrack-tcp-timeout-established=7h")
        assert status == 0, daemon.log()
        assert run("sysctl -n net.netfilter.nf_conntrack_tcp_timeout_established").strip() == "25200"
        assert run("sysctl -n net.ipv4.ip_forward").strip() == "1"
        assert run("nft list tables") == ""


async def test_a_taken_port_is_reported_and_served_once_it_is_free() -> None:
    with stage():
        taken = socket.create_server(("0.0.0.0", 10256))
        async with scene(filled()) as it:
            await it.synced()
            assert await reached("10.96.0.1") == "10.244.0.1"
            record = await it.daemon.heard("server does not start", server="healthz server")
            assert "Address already in use" in record["reason"]
            (event,) = await it.posted("FailedToStartProxierHealthcheck", "node-0")
            assert event["type"] == "Warning"
            taken.close()
            async with asyncio.timeout(60):
                while await closed(10256):  # noqa: ASYNC110 - the port is all there is to ask
                    await asyncio.sleep(0.1)
            assert (await it.page("/healthz"))[0] == 200
            assert len(it.daemon.said("server does not start")) == 1


async def closed(port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return True
    writer.close()
    await writer.wait_closed()
    return False


async def test_a_taken_port_ends_the_process_if_that_is_asked_for() -> None:
    with stage(), socket.create_server(("127.0.0.1", 10249)):
        async with scene(filled(), "--bind-address-hard-fail") as it:
            assert await it.daemon.ended() == 1
            assert [line for line in it.daemon.lines if line.startswith("error: metrics server: cannot listen on")]
            assert len(it.daemon.lines) == 1


POD = """
set -e
mount -t tmpfs none /var/run
mkdir -p /var/run/secrets/kubernetes.io
ln -s "$0" /var/run/secrets/kubernetes.io/serviceaccount
exec "$@"
"""


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
async def test_a_pod_needs_nothing_but_its_mounted_account(tmp_path: Path, host: str) -> None:
    (tmp_path / "ca.crt").write_text(authority().text("ca.crt"))
    (tmp_path / "token").write_text("mounted")
    server = filled(tls=authority().server_context(), token="mounted")  # noqa: S106 - the test's own
    with stage():
        await server.start(host)
        environ = {"KUBERNETES_SERVICE_HOST": host, "KUBERNETES_SERVICE_PORT": str(server.port)}
        within = ("unshare", "--mount", "sh", "-c", POD, str(tmp_path))
        async with Daemon("--hostname-override=node-0", environ=environ, within=within) as daemon:
            await daemon.heard("synced", ip_family="IPv4")
            assert await daemon.terminate() == 0
        assert {seen.headers["Authorization"] for seen in server.seen} == {"Bearer mounted"}
        await server.stop()
