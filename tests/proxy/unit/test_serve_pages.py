"""Every page of both servers through a real client: code, content type, body."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any, NamedTuple

import pytest
from aiohttp import ClientSession
from tests.fakes.values import node_plan

from vipwire.config.configuration import Config
from vipwire.config.file import build_config_document
from vipwire.http_server.pages import Site, serve_pages
from vipwire.model.net import Family
from vipwire.proxy_daemon.serve.health import ProxyHealth
from vipwire.proxy_daemon.serve.metrics import Metrics
from vipwire.proxy_daemon.serve.pages import ProxyInfo, build_health_pages, build_metrics_pages
from vipwire.proxy_daemon.serve.server import open_listening_socket
from vipwire.proxy_daemon.servers import ProxyServers
from vipwire.proxy_daemon.sync.engine import Engine
from vipwire.proxy_daemon.sync.report import Reporter

NOW = 1_790_000_000.0
TEXT = "text/plain; charset=utf-8"
INFO = ProxyInfo(
    "nftables", "0.1.0", build_config_document(Config()), {"v": "0", "proxy-mode": ""}, started=NOW - 3725
)


class Page(NamedTuple):
    status: int
    content_type: str
    body: str
    nosniff: bool


def _with_client(site: Site, scenario: Callable[[ClientSession], Awaitable[Any]]) -> Any:
    """Serve a site on loopback, and let a scenario look at it with another client than our own."""

    async def run() -> Any:
        listener = open_listening_socket("127.0.0.1", 0)
        serving = serve_pages(listener, site)
        async with ClientSession(f"http://127.0.0.1:{listener.getsockname()[1]}") as client:
            found = await scenario(client)
        await serving.close()
        return found

    return asyncio.run(run())


def _page(site: Site, path: str, headers: dict[str, str] | None = None) -> Page:
    async def scenario(client: ClientSession) -> Page:
        async with client.get(path, headers=headers) as response:
            nosniff = response.headers.get("X-Content-Type-Options") == "nosniff"
            return Page(response.status, response.headers["Content-Type"], await response.text(), nosniff)

    page: Page = _with_client(site, scenario)
    return page


def _health() -> ProxyHealth:
    health = ProxyHealth((Family.IPV4,), ("Service",), sync_period=30.0)
    health.record_update(Family.IPV4, NOW)
    return health


def _metrics_page(path: str, info: ProxyInfo = INFO, metrics: Metrics | None = None) -> Page:
    return _page(build_metrics_pages(metrics or Metrics("nftables"), info, lambda: NOW), path)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/healthz", '"nodeEligible":true,"healthy":true,'),
        ("/livez", '"healthy":true,'),
    ],
)
def test_health_pages_are_json_and_counted(path: str, body: str) -> None:
    metrics, health, clock = Metrics("nftables"), _health(), [NOW]
    health.clock = lambda: clock[0]
    app = build_health_pages(health, metrics, lambda: clock[0])

    async def scenario(client: ClientSession) -> list[Page]:
        pages = []
        for queued in (False, True):
            if queued:
                health.record_queued(Family.IPV4)
                clock[0] += 60
            async with client.get(path) as response:
                nosniff = response.headers["X-Content-Type-Options"] == "nosniff"
                pages.append(Page(response.status, response.headers["Content-Type"], await response.text(), nosniff))
        return pages

    good, bad = _with_client(app, scenario)
    when = "2026-09-21T14:13:20Z"
    status = f'"status":{{"IPv4":{{"lastUpdated":"{when}","healthy":true}}}}}}'
    text = f'{{"lastUpdated":"{when}","currentTime":"{when}",{body}{status}'
    assert good == Page(200, "application/json", text, nosniff=True)
    assert (bad.status, json.loads(bad.body)["healthy"]) == (503, False)
    name = f"kubeproxy_proxy_{path[1:]}_total"
    counts = [metrics.registry.get_sample_value(name, {"code": code}) for code in ("200", "503")]
    assert counts == [1.0, 1.0]


def test_ready_answers_503_with_what_is_awaited() -> None:
    app = build_health_pages(_health(), Metrics("nftables"), lambda: NOW)
    body = '{"ready": false, "waiting": ["lists: Service"]}'
    assert _page(app, "/readyz") == Page(503, "application/json", body, nosniff=True)


@pytest.mark.parametrize(
    ("path", "content_type", "body"),
    [
        ("/healthz", TEXT, "ok"),
        ("/healthz?verbose", TEXT, "[+]ping ok\nhealthz check passed\n"),
        ("/proxyMode", TEXT, "nftables"),
    ],
)
def test_pages_of_the_metrics_server(path: str, content_type: str, body: str) -> None:
    assert _metrics_page(path) == Page(200, content_type, body, nosniff=True)


def test_configz_is_the_configuration_with_its_type() -> None:
    page = _metrics_page("/configz")
    assert (page.status, page.content_type) == (200, "application/json")
    assert json.loads(page.body) == {"kubeproxy.config.k8s.io": build_config_document(Config())}
    assert page.body.startswith(
        '{"kubeproxy.config.k8s.io":{"apiVersion":"kubeproxy.config.k8s.io/v1alpha1","kind":"KubeProxyConfiguration",'
    )


def test_flagz_and_statusz_are_plain_text() -> None:
    flagz, statusz = _metrics_page("/flagz"), _metrics_page("/statusz")
    assert flagz.content_type == statusz.content_type == TEXT
    assert flagz.body.startswith("\nvipwire flags\nWarning: This endpoint is not meant to be machine parseable")
    assert flagz.body.endswith("\n\nproxy-mode=\nv=0\n")
    assert statusz.body.endswith(
        "\nStarted: Mon Sep 21 13:11:15 UTC 2026\nUp: 1 hr 02 min 05 sec\n"
        "Binary version: 0.1.0\nProxy mode: nftables\n"
    )


@pytest.mark.parametrize("path", ["/flagz", "/statusz"])
def test_a_feature_gate_switches_a_page_off(path: str) -> None:
    assert _metrics_page(path, replace(INFO, flagz=False, statusz=False)).status == 404


def test_metrics_are_in_the_text_format_unless_open_metrics_is_asked_for() -> None:
    metrics = Metrics("nftables")
    metrics.services.set(7)
    page = _metrics_page("/metrics", metrics=metrics)
    assert page.content_type.startswith("text/plain; version=")
    assert "\nvipwire_services 7.0\n" in page.body
    app = build_metrics_pages(metrics, INFO, lambda: NOW)
    assert _page(app, "/metrics", {"Accept": "application/openmetrics-text"}).content_type.startswith(
        "application/openmetrics-text"
    )


def test_the_slis_tell_the_last_check() -> None:
    metrics = Metrics("nftables")
    assert _metrics_page("/healthz", metrics=metrics).status == 200
    body = _metrics_page("/metrics/slis", metrics=metrics).body
    assert '\nkubernetes_healthcheck{name="ping",type="healthz"} 1.0\n' in body
    assert 'kubernetes_healthchecks_total{name="ping",status="success",type="healthz"} 1.0\n' in body


@pytest.mark.parametrize("path", ["/debug/stacks", "/debug/profile", "/debug/flags/v"])
def test_debug_pages_are_only_there_with_profiling(path: str) -> None:
    assert _metrics_page(path).status == 404


def test_debug_pages_tell_where_the_time_goes() -> None:
    info = replace(INFO, profiling=True)
    stacks = _metrics_page("/debug/stacks", info)
    assert ("thread MainThread" in stacks.body, "_task_stacks" in stacks.body) == (True, True)
    assert "function calls" in _metrics_page("/debug/profile?seconds=0.01", info).body
    for seconds in ("0", "61", "x", "nan"):
        assert _metrics_page(f"/debug/profile?seconds={seconds}", info).status == 400


@pytest.mark.parametrize(
    ("text", "status", "answer", "levels"),
    [
        ("4", 200, "successfully set v to 4\n", [4]),
        ("x", 400, "failed to set v to 'x': must be a whole number\n", []),
    ],
)
def test_the_log_level_is_put(text: str, status: int, answer: str, levels: list[int]) -> None:
    found: list[int] = []
    app = build_metrics_pages(
        Metrics("nftables"), replace(INFO, profiling=True, set_verbosity=found.append), lambda: NOW
    )

    async def scenario(client: ClientSession) -> tuple[int, str]:
        async with client.put("/debug/flags/v", data=text) as response:
            return response.status, await response.text()

    assert _with_client(app, scenario) == (status, answer)
    assert found == levels


@pytest.mark.parametrize(
    ("healthz", "names"), [("", {"metrics server"}), ("127.0.0.1:0", {"healthz server", "metrics server"})]
)
async def test_only_servers_with_an_address_run(healthz: str, names: set[str]) -> None:
    metrics = Metrics("nftables")
    async with asyncio.TaskGroup() as tasks:
        servers = ProxyServers(
            tasks, _health(), metrics, Reporter(Engine((), "node", lambda *_: node_plan()), metrics, None, "node")
        )
        await servers.apply(Config(healthz_bind_address=healthz, metrics_bind_address="127.0.0.1:0"))
        running = {task.get_name() for task in asyncio.all_tasks()}
        servers.stop()
    assert {name for name in running if name.endswith("server")} == names
