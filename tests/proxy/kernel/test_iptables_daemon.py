"""What a daemon in iptables mode tells: kube-proxy's metrics of it, counts of Services, what is asked in vain."""

import contextlib
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

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
async def playing(
    variant: str, *flags: str, server: FakeApiServer | None = None, **annotations: str
) -> AsyncIterator[Scene]:
    """Run a daemon with a Service of a node port and what `server` has, on a node where kubelet uses this variant."""
    server = server or FakeApiServer()
    ports = [{"name": "http", "protocol": "TCP", "port": 80, "nodePort": NODE_PORT}]
    made: dict[str, Any] = service_of("web", VIP, type="NodePort", ports=ports)
    made["metadata"]["annotations"] = {f"vipwire.io/{key}": value for key, value in annotations.items()}
    server.store.put("services", made)
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


async def test_connections_and_refusals_are_counted_through_changes(variant: str) -> None:
    async with playing(variant) as it:
        for _ in range(3):
            assert await reached(VIP) == POD
        assert await reached(VIP, 81) == "refused"
        assert await it.metric("vipwire_service_connections_total", service="web") == 3
        await it.put("endpointslices", slice_for("web", "10.244.0.2"))
        assert await reached(VIP) == "10.244.0.2"
        assert await it.metric("vipwire_service_connections_total", service="web") == 4
        assert await it.metric("vipwire_refused_packets_total", reason="undefined-port") == 1


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


async def test_an_algorithm_that_this_mode_has_not_is_reported_on_the_service(variant: str) -> None:
    async with playing(variant, algorithm="maglev") as it:
        (event,) = await it.posted("InvalidField", "web")
        assert "iptables mode does not support 'maglev'" in event["message"]
        assert it.daemon.said("invalid object", field="metadata.annotations[vipwire.io/algorithm]")
        assert await reached(VIP) == POD
