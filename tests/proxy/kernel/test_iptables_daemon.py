"""What a daemon in iptables mode tells: kube-proxy's metrics of it, and its flat form."""

import contextlib
import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.fakes.apiserver import FakeApiServer
from tests.fakes.daemon import Scene, page, reached, scene, service_of, slice_for, stage
from tests.fakes.own_network import run

pytestmark = pytest.mark.kernel

VIP, POD, NODE_PORT = "10.96.0.1", "10.244.0.1", 30080


@pytest.fixture(params=["nft", "legacy"])
def variant(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@contextlib.asynccontextmanager
async def playing(variant: str, *flags: str, server: FakeApiServer | None = None) -> AsyncIterator[Scene]:
    """Run a daemon with a Service of a node port and what `server` has, on a node where kubelet uses this variant."""
    server = server or FakeApiServer()
    ports = [{"name": "http", "protocol": "TCP", "port": 80, "nodePort": NODE_PORT}]
    server.store.put("services", service_of("web", VIP, type="NodePort", ports=ports))
    server.store.put("endpointslices", slice_for("web", POD))
    with stage():
        run(f"iptables-{variant} -t mangle -N KUBE-IPTABLES-HINT")
        async with scene(server, "--proxy-mode=iptables", *flags) as it:
            await it.synced()
            yield it


async def test_kube_proxys_metrics_of_this_mode_are_served(variant: str) -> None:
    async with playing(variant) as it:
        name = "kubeproxy_sync_proxy_rules_iptables"
        saved = {table: run(f"iptables-{variant}-save -t {table}") for table in ("nat", "filter")}
        for table, text in saved.items():
            ours = text.count("\n-A KUBE-") - text.count("\n-A KUBE-FIREWALL ")
            assert await it.metric(f"{name}_total", table=table, ip_family="IPv4") == ours
            assert await it.metric(f"{name}_last", table=table, ip_family="IPv4") == ours
        assert await it.metric(f"{name}_restore_failures_total") == 0
        assert await it.metric(f"{name}_partial_restore_failures_total") == 0
        await it.put("endpointslices", slice_for("web", "10.244.0.2"))
        changed = await it.metric(f"{name}_last", table="nat", ip_family="IPv4")
        assert 0 < changed < saved["nat"].count("\n-A KUBE-")
        assert await reached("127.0.0.1", NODE_PORT) == "10.244.0.2"
        assert await it.metric("kubeproxy_iptables_localhost_nodeports_accepted_packets_total") == 1
        _, text = await page("/metrics", 10249)
        assert "\nkubeproxy_iptables_ct_state_invalid_dropped_packets_total 0.0" in text


async def test_kube_proxys_flat_form_is_one_line_of_the_configuration(variant: str, tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    kind = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n"
    file.write_text(f"{kind}mode: iptables\niptables: {{iptablesTree: false}}\n")
    server = FakeApiServer()
    for number in range(2, 40):
        server.store.put("services", service_of(f"web-{number}", f"10.96.0.{number}"))
        server.store.put("endpointslices", slice_for(f"web-{number}", POD))
    async with playing(variant, f"--config={file}", server=server) as _:
        saved = run(f"iptables-{variant}-save -t nat")
        assert ":KUBE-SVCS-" not in saved
        assert len(re.findall(r"-A KUBE-SERVICES -d 10.96.\S+ .* -j KUBE-SVC-", saved)) == 39
        assert await reached("10.96.0.7") == POD
