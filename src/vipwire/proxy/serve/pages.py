"""Answers HTTP: health on one port, metrics and debugging pages on the other.

Paths, status codes, content types and bodies are those of kube-proxy, because probes, load balancers, test suites and
people's scripts read them. `/readyz` and the pages below `/debug` are vipwire's own.
"""

import json
import time
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Any, Final

from msgspec import field

from vipwire.http.server import Handler, Pages, Reply, Request
from vipwire.model.value import Value
from vipwire.proxy.serve.debug import add_debug_pages
from vipwire.proxy.serve.health import Answer, ProxyHealth
from vipwire.proxy.serve.metrics import Metrics
from vipwire.proxy.serve.server import BindPolicy, HttpServer

_TEXT: Final = {"Content-Type": "text/plain; charset=utf-8", "X-Content-Type-Options": "nosniff"}
_WARNING: Final = (
    "Warning: This endpoint is not meant to be machine parseable, has no formatting compatibility guarantees "
    "and is for debugging purposes only.\n"
)


async def _nothing() -> None:
    """Refresh nothing."""


class ProxyInfo(Value, frozen=True):
    """The facts about this process that the pages show.

    `config` is the configuration as kube-proxy's file has it, `flags` every flag's value, `started` seconds since the
    epoch. `flagz` and `statusz` switch those pages (feature gates), `profiling` the ones below /debug;
    `set_verbosity` changes the log level.
    """

    mode: str
    version: str
    config: Mapping[str, Any]
    flags: Mapping[str, str]
    started: float
    profiling: bool = False
    flagz: bool = True
    statusz: bool = True
    set_verbosity: Callable[[int], None] | None = None


class Addresses(Value, frozen=True):
    """The addresses of the two servers (`IP:port`, empty for none), and what to do where binding fails."""

    healthz: str
    metrics: str
    policy: BindPolicy = field(default_factory=BindPolicy)


def proxy_servers(
    health: ProxyHealth, metrics: Metrics, info: ProxyInfo, now: Callable[[], float], addresses: Addresses
) -> tuple[HttpServer, ...]:
    """Build the servers that have an address; each is to be run in the caller's task group."""
    wanted = (
        ("healthz server", addresses.healthz, health_app(health, metrics, now)),
        ("metrics server", addresses.metrics, metrics_app(metrics, info, now)),
    )
    return tuple(HttpServer(name, app, address, addresses.policy) for name, address, app in wanted if address)


def health_app(health: ProxyHealth, metrics: Metrics, now: Callable[[], float]) -> Pages:
    """Build the pages of the health port (10256): /healthz, /livez, /readyz."""
    for answers in (metrics.proxy_healthz_total, metrics.proxy_livez_total):
        for code in (HTTPStatus.OK, HTTPStatus.SERVICE_UNAVAILABLE):
            answers.labels(code=str(code.value))  # Prometheus sees no increase in a series' first value

    async def healthz(_request: Request) -> Reply:
        answer = health.healthz(now())
        metrics.proxy_healthz_total.labels(code=str(answer.status)).inc()
        return _response(answer)

    async def livez(_request: Request) -> Reply:
        answer = health.livez(now())
        metrics.proxy_livez_total.labels(code=str(answer.status)).inc()
        return _response(answer)

    async def readyz(_request: Request) -> Reply:
        return _response(health.readyz())

    return _app({"/healthz": healthz, "/livez": livez, "/readyz": readyz})


def metrics_app(metrics: Metrics, info: ProxyInfo, now: Callable[[], float]) -> Pages:
    """Build the pages of the metrics port (10249)."""
    exposition = _Exposition(metrics.registry, metrics.counted.refresh)
    sli_exposition = _Exposition(metrics.sli_registry)

    async def healthz(request: Request) -> Reply:
        metrics.healthcheck.labels(name="ping", type="healthz").set(1)
        metrics.healthchecks_total.labels(name="ping", status="success", type="healthz").inc()
        verbose = "[+]ping ok\nhealthz check passed\n"
        return _text(verbose if "verbose" in request.query else "ok")

    async def all_metrics(request: Request) -> Reply:
        return await exposition.reply(request)

    async def slis(request: Request) -> Reply:
        return await sli_exposition.reply(request)

    async def proxy_mode(_request: Request) -> Reply:
        return _text(info.mode)

    async def configz(_request: Request) -> Reply:
        body = json.dumps({"kubeproxy.config.k8s.io": info.config}, separators=(",", ":"))
        return Reply(body, headers={**_TEXT, "Content-Type": "application/json"})

    async def flagz(_request: Request) -> Reply:
        lines = "".join(f"{name}={value}\n" for name, value in sorted(info.flags.items()))
        return _text(f"\nvipwire flags\n{_WARNING}\n{lines}")

    async def statusz(_request: Request) -> Reply:
        return _text(f"\nvipwire statusz\n{_WARNING}\n{_status(info, now())}")

    pages: dict[str, Handler] = {"/healthz": healthz, "/metrics": all_metrics, "/metrics/slis": slis}
    pages |= {"/proxyMode": proxy_mode, "/configz": configz}
    pages |= ({"/flagz": flagz} if info.flagz else {}) | ({"/statusz": statusz} if info.statusz else {})
    app = _app(pages)
    if info.profiling:
        add_debug_pages(app, info.set_verbosity)
    return app


def _app(pages: Mapping[str, Handler]) -> Pages:
    site = Pages()
    for path, handler in pages.items():
        site.add("GET", path, handler)
    return site


def _response(answer: Answer) -> Reply:
    return Reply(answer.body, answer.status, answer.headers)


def _text(body: str) -> Reply:
    return Reply(body, headers=_TEXT)


class _Exposition:
    """Writes the metrics of a registry; requests that came before vipwire began to read them share what it wrote."""

    def __init__(self, registry: Any, refresh: Callable[[], Awaitable[None]] = _nothing) -> None:
        self._registry, self._refresh = registry, refresh
        self._began = 0.0
        self._written = Reply()

    async def reply(self, request: Request) -> Reply:
        """Answer in the format that the client accepts."""
        from prometheus_client.exposition import choose_encoder  # noqa: PLC0415  # imports an HTTP server: not at a start

        encode, content_type = choose_encoder(request.headers.get("accept", ""))
        headers = {"Content-Type": content_type}
        if self._began < request.arrived or self._written.headers != headers:
            began = time.monotonic()
            await self._refresh()
            self._began, self._written = began, Reply(encode(self._registry), headers=headers)
        return self._written


def _status(info: ProxyInfo, now: float) -> str:
    up = int(now - info.started)
    started = datetime.fromtimestamp(info.started, UTC).strftime("%a %b %e %H:%M:%S UTC %Y")
    uptime = f"{up // 3600} hr {up // 60 % 60:02d} min {up % 60:02d} sec"
    return f"Started: {started}\nUp: {uptime}\nBinary version: {info.version}\nProxy mode: {info.mode}\n"
