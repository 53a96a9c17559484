"""The real proxy as a process: what kube-proxy's operators and installers rely on."""

import asyncio
import socket
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from pathlib import Path

import pytest
import yaml
from tests.fakes.apiserver import FakeApiServer
from tests.fakes.authority import Authority, authority
from tests.fakes.daemon import Daemon, Scene, page, prepare, reached, scene, service_of, slice_for, stage, write
from tests.fakes.own_network import run
from tests.fakes.proxy import FakeProxy

pytestmark = pytest.mark.kernel
FAILS = "cannot read objects; the rules stay"
KUBEADM = """\
apiVersion: kubeproxy.config.k8s.io/v1alpha1
bindAddress: 0.0.0.0
bindAddressHardFail: false
clientConnection:
  acceptContentTypes: ""
  burst: 0
  contentType: ""
  kubeconfig: {kubeconfig}
  qps: 0
clusterCIDR: 10.244.0.0/16
configSyncPeriod: 0s
conntrack:
  maxPerCore: null
  min: null
  tcpBeLiberal: false
  tcpCloseWaitTimeout: null
  tcpEstablishedTimeout: null
  udpStreamTimeout: 0s
  udpTimeout: 0s
detectLocal:
  bridgeInterface: ""
  interfaceNamePrefix: ""
detectLocalMode: ""
enableProfiling: false
healthzBindAddress: ""
hostnameOverride: ""
iptables:
  localhostNodePorts: null
  masqueradeAll: false
  masqueradeBit: null
  minSyncPeriod: 0s
  syncPeriod: 0s
ipvs:
  excludeCIDRs: null
  minSyncPeriod: 0s
  scheduler: ""
  strictARP: false
  syncPeriod: 0s
  tcpFinTimeout: 0s
  tcpTimeout: 0s
  udpTimeout: 0s
kind: KubeProxyConfiguration
logging:
  flushFrequency: 0
  format: json
  options:
    json:
      infoBufferSize: "0"
    text:
      infoBufferSize: "0"
  verbosity: 0
metricsBindAddress: ""
mode: ""
nftables:
  masqueradeAll: false
  masqueradeBit: null
  minSyncPeriod: 0s
  syncPeriod: 0s
nodePortAddresses: null
oomScoreAdj: null
portRange: ""
showHiddenMetricsForVersion: ""
winkernel:
  enableDSR: false
  forwardHealthCheckVip: false
  networkName: ""
  rootHnsEndpointName: ""
  sourceVip: ""
"""


def filled(**options: object) -> FakeApiServer:
    server = FakeApiServer(**options)  # type: ignore[arg-type]
    prepare(server)
    server.store.put("services", service_of("web", "10.96.0.1"))
    server.store.put("endpointslices", slice_for("web", "10.244.0.1"))
    return server


def play(
    story: Callable[[Scene], Awaitable[None]],
    *flags: str,
    server: FakeApiServer | None = None,
    environ: Mapping[str, str] | None = None,
) -> None:
    async def scenario() -> None:
        async with scene(server or filled(), *flags, environ=environ) as it:
            await story(it)

    with stage():
        asyncio.run(scenario())


def alone(*flags: str) -> tuple[int, Daemon]:
    """Run a process that ends by itself; return its exit status and what it said."""

    async def scenario() -> tuple[int, Daemon]:
        async with Daemon(*flags) as daemon:
            return await daemon.ended(), daemon

    return asyncio.run(scenario())


def kubeconfig(path: Path, server: str, user: Mapping[str, str], **cluster: str) -> Path:
    content = {
        "current-context": "default",
        "contexts": [{"name": "default", "context": {"cluster": "default", "user": "default"}}],
        "clusters": [{"name": "default", "cluster": {"server": server, **cluster}}],
        "users": [{"name": "default", "user": dict(user)}],
    }
    return write(path, yaml.safe_dump(content))


async def test_kubeadms_configuration_works_and_another_kubeconfig_waits_for_a_restart(tmp_path: Path) -> None:
    config, token = tmp_path / "config.conf", tmp_path / "token"
    token.write_text("mounted")
    with stage():
        server = filled(tls=authority().server_context(), token="mounted")  # noqa: S106 - the test's own
        await server.start()
        kubeconfig(
            tmp_path / "kubeconfig.conf",
            server.url,
            {"tokenFile": str(token)},
            **{"certificate-authority": str(authority().certificate)},
        )
        config.write_text(KUBEADM.format(kubeconfig=tmp_path / "kubeconfig.conf"))
        async with Daemon(f"--config={config}", "--hostname-override=NODE-0") as daemon:
            record = await daemon.heard("synced", ip_family="IPv4")
            assert record["services"] == 2
            assert daemon.said("starting", node="node-0", mode="nftables")
            assert (await page("/healthz", 10256))[0] == 200
            assert await page("/proxyMode", 10249) == (200, "nftables")
            write(config, KUBEADM.format(kubeconfig="elsewhere"))
            await daemon.heard("part of the new configuration needs a restart", fields="clientConnection.kubeconfig")
            assert await page("/proxyMode", 10249) == (200, "nftables")
            assert await daemon.terminate() == 0
        assert "10.96.0.1" in run("nft list map ip vipwire service-ips")
        await server.stop()


def test_sigterm_ends_well_and_the_rules_stay_and_the_next_process_changes_nothing() -> None:
    async def story(it: Scene) -> None:
        await it.synced()
        assert await it.daemon.terminate() == 0
        before = run("nft -s list ruleset")
        async with Daemon(f"--master={it.server.url}", "--hostname-override=node-0") as daemon:
            for family in ("IPv4", "IPv6"):
                record = await daemon.heard("synced", ip_family=family)
                assert (record["added"], record["changed"], record["removed"], record["bytes"]) == (0, 0, 0, 0)
            assert await daemon.terminate() == 0
        assert run("nft -s list ruleset") == before
        run("nft add table ip theirs")
        async with Daemon("--cleanup") as daemon:
            assert await daemon.ended() == 0
            assert len(daemon.said("removed", mode="nftables")) == 2
        assert run("nft list ruleset").split() == ["table", "ip", "theirs", "{", "}"]
        async with Daemon("--cleanup") as daemon:
            assert await daemon.ended() == 0
            assert not daemon.said("removed")

    play(story)


def test_init_only_sets_the_kernels_settings_and_ends() -> None:
    with stage():
        status, daemon = alone("--init-only", "--conntrack-tcp-timeout-established=7h")
        assert status == 0, daemon.log()
        assert run("sysctl -n net.netfilter.nf_conntrack_tcp_timeout_established").strip() == "25200"
        assert run("sysctl -n net.ipv4.ip_forward").strip() == "1"
        assert run("nft list tables") == ""


def test_write_config_to_writes_what_config_takes(tmp_path: Path) -> None:
    file = tmp_path / "written.yaml"
    status, daemon = alone(f"--write-config-to={file}", "--cluster-cidr=10.244.0.0/16")
    assert status == 0, daemon.log()
    assert yaml.safe_load(file.read_text())["clusterCIDR"] == "10.244.0.0/16"
    status, daemon = alone(f"--config={file}", f"--write-config-to={tmp_path / 'again.yaml'}")
    assert status == 0, daemon.log()
    assert (tmp_path / "again.yaml").read_text() == file.read_text()


def broken(tmp_path: Path) -> dict[str, tuple[str, str]]:
    """Give flags that cannot work, and what is said about them."""
    no_yaml = write(tmp_path / "no-yaml", "a: [\n")
    bad_data = kubeconfig(tmp_path / "bad-data", "https://192.0.2.1", {}, **{"certificate-authority-data": "!"})
    return {
        "missing": (f"--kubeconfig={tmp_path}/missing", "--kubeconfig: cannot read"),
        "no yaml": (f"--kubeconfig={no_yaml}", "no-yaml: line 2, column 1: not YAML"),
        "bad data": (f"--kubeconfig={bad_data}", "cluster.certificate-authority-data: is not base64"),
        "nothing": ("--v=0", "no API server: set --kubeconfig or --master"),
    }


def test_access_that_cannot_work_is_one_clear_line_and_exit_1(tmp_path: Path) -> None:
    cases = broken(tmp_path)

    async def attempt(flag: str) -> tuple[int, list[str]]:
        async with Daemon(flag, "--hostname-override=node-0", "--oom-score-adj=0") as daemon:
            return await daemon.ended(), daemon.lines

    async def scenario() -> list[tuple[int, list[str]]]:
        return [await attempt(flag) for flag, _ in cases.values()]  # one after the other: there can only be one

    with stage():
        results = asyncio.run(scenario())
        for (status, lines), (_, said) in zip(results, cases.values(), strict=True):
            assert status == 1
            assert len(lines) == 1
            assert lines[0].startswith("error: ")
            assert said in lines[0]
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


async def test_a_running_process_follows_rotated_certificates_tokens_and_authorities(tmp_path: Path) -> None:
    other = Authority(tmp_path, "other")

    def install(client: str, token: str) -> None:
        for ending in ("crt", "key"):
            write(tmp_path / f"client.{ending}", authority().text(f"{client}.{ending}"))
        write(tmp_path / "token", token)

    install("first", "one")
    write(tmp_path / "ca.crt", other.text("other.crt"))
    server = filled(tls=authority().server_context(clients=True), token="one")  # noqa: S106 - the test's own
    with stage():
        await server.start()
        user = {"client-certificate": "client.crt", "client-key": "client.key", "tokenFile": "token"}
        path = kubeconfig(tmp_path / "kubeconfig", server.url, user, **{"certificate-authority": "ca.crt"})
        async with Daemon(f"--kubeconfig={path}", "--hostname-override=node-0") as daemon:
            record = await daemon.heard(FAILS, resource="services")
            assert f"no authority in {path}: cluster.certificate-authority has signed" in record["error"]
            assert not server.seen
            write(tmp_path / "ca.crt", other.text("other.crt") + authority().text("ca.crt"))
            await daemon.heard("synced", ip_family="IPv4")
            await server.until(lambda: server.watching("services") == 1)
            assert {seen.client for seen in server.seen} == {"first"}
            install("second", "two")
            server.token = "two"  # noqa: S105 - the test's own
            server.end_watches("services")
            await server.until(partial(watched_by, server, "second"))
            assert await daemon.terminate() == 0
        await server.stop()


def watched_by(server: FakeApiServer, client: str) -> bool:
    last = server.requests("services", watch=True)[-1]
    return (
        last.client == client and last.headers["Authorization"] == "Bearer two" and server.watching("services") == 1
    )


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


async def test_the_environments_proxy_is_used_for_a_server_that_is_elsewhere() -> None:
    server = filled()
    with stage():
        await server.start("192.0.2.10")
        used, unused = (FakeProxy(lambda: ("192.0.2.10", server.port)) for _ in range(2))
        async with used, unused:
            environ = {"HTTP_PROXY": used.url}
            async with Daemon(f"--master={server.url}", "--hostname-override=node-0", environ=environ) as daemon:
                await daemon.heard("synced", ip_family="IPv4")
                assert len(used.asked) >= len(server.store.shelves) - 2
            environ = {"HTTP_PROXY": unused.url, "NO_PROXY": "192.0.2.0/24"}
            async with Daemon(f"--master={server.url}", "--hostname-override=node-0", environ=environ) as daemon:
                await daemon.heard("synced", ip_family="IPv4")
        assert unused.asked == []
        await server.stop()
