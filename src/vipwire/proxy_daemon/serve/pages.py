"""Answers HTTP: health on one port, metrics and debugging pages on the other.

Paths, status codes, content types and bodies are kube-proxy's, because probes, load balancers and scripts depend on
them. `/readyz` and the pages below `/debug` (with `--profiling`) are vipwire's own.
"""

import asyncio
import io
import json
import sys
import threading
import time
import traceback
from collections.abc import Awaitable, Callable, Iterator, Mapping
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Any, Final

from vipwire.http_server.exchange import Reply
from vipwire.http_server.pages import Handler, Pages, Request
from vipwire.model.text import whole_number
from vipwire.model.value import Value
from vipwire.proxy_daemon.serve.health import ProxyHealth
from vipwire.proxy_daemon.serve.metrics import Metrics

_LONGEST_PROFILE: Final = 60.0
_MOST_VERBOSE: Final = 2**31 - 1  # the limit of the flag -v
_TEXT: Final = {"Content-Type": "text/plain; charset=utf-8", "X-Content-Type-Options": "nosniff"}


def add_debug_pages(app: Pages, set_verbosity: Callable[[int], None] | None) -> None:
    """Add /debug/stacks, /debug/profile?seconds=N and, with `set_verbosity`, PUT /debug/flags/v."""

    async def verbosity(request: Request) -> Reply:
        text = request.text.strip()
        level = whole_number(text, 0, _MOST_VERBOSE)
        if level is None or set_verbosity is None:
            return _build_text_reply(f"failed to set v to {text!r}: must be a whole number\n", status=400)
        set_verbosity(level)
        return _build_text_reply(f"successfully set v to {text}\n")

    app.add("GET", "/debug/stacks", _build_stacks_page)
    app.add("GET", "/debug/profile", _build_profile_page)
    if set_verbosity is not None:
        app.add("PUT", "/debug/flags/v", verbosity)


async def _build_stacks_page(_request: Request) -> Reply:
    return _build_text_reply("".join((*_list_thread_stacks(), *_list_task_stacks())))


def _list_thread_stacks() -> Iterator[str]:
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    for ident, frame in sys._current_frames().items():  # noqa: SLF001  # the documented way to see other threads
        yield f"thread {names.get(ident, '?')} ({ident}):\n{''.join(traceback.format_stack(frame))}\n"


def _list_task_stacks() -> Iterator[str]:
    for task in sorted(asyncio.all_tasks(), key=lambda task: task.get_name()):
        out = io.StringIO()
        task.print_stack(file=out)
        yield f"task {task.get_name()}:\n{out.getvalue()}\n"


async def _build_profile_page(request: Request) -> Reply:
    """Profile the event loop's thread for some seconds; print the functions, most own time (`tottime`) first."""
    try:
        seconds = float(request.query.get("seconds", "5"))
    except ValueError:
        seconds = -1.0
    if not 0 < seconds <= _LONGEST_PROFILE:
        return _build_text_reply(f"seconds must be a number above 0 and at most {_LONGEST_PROFILE:g}\n", status=400)
    import cProfile  # noqa: PLC0415  # heavy, and few ask
    import pstats  # noqa: PLC0415

    profile = cProfile.Profile()
    try:
        profile.enable()
    except ValueError:
        return _build_text_reply("another profile is running\n", status=409)
    try:
        await asyncio.sleep(seconds)
    finally:
        profile.disable()
    out = io.StringIO()
    pstats.Stats(profile, stream=out).sort_stats("tottime").print_stats(50)
    return _build_text_reply(out.getvalue())


def _build_text_reply(body: str, status: int = 200) -> Reply:
    return Reply(body, status, _TEXT)


_WARNING: Final = (
    "Warning: This endpoint is not meant to be machine parseable, has no formatting compatibility guarantees "
    "and is for debugging purposes only.\n"
)


async def _do_nothing() -> None:
    """Do nothing: the default refresh."""


class ProxyInfo(Value, frozen=True):
    """Facts about this process for the pages.

    `config` is the configuration in the format of kube-proxy's file, `flags` the values of all flags, `started` is
    seconds since the epoch. `flagz` and `statusz` switch those pages (feature gates), `profiling` those below /debug;
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


def build_health_pages(health: ProxyHealth, metrics: Metrics, now: Callable[[], float]) -> Pages:
    """Build the pages of the health port (10256): /healthz, /livez, /readyz."""
    for answers in (metrics.proxy_healthz_total, metrics.proxy_livez_total):
        for code in (HTTPStatus.OK, HTTPStatus.SERVICE_UNAVAILABLE):
            answers.labels(code=str(code.value))  # Prometheus sees no increase in a series' first value

    async def healthz(_request: Request) -> Reply:
        answer = health.healthz(now())
        metrics.proxy_healthz_total.labels(code=str(answer.status)).inc()
        return answer

    async def livez(_request: Request) -> Reply:
        answer = health.livez(now())
        metrics.proxy_livez_total.labels(code=str(answer.status)).inc()
        return answer

    async def readyz(_request: Request) -> Reply:
        return health.readyz()

    return _build_pages({"/healthz": healthz, "/livez": livez, "/readyz": readyz})


def build_metrics_pages(metrics: Metrics, info: ProxyInfo, now: Callable[[], float]) -> Pages:
    """Build the pages of the metrics port (10249)."""
    exposition, slis = _Exposition(metrics.registry, metrics.counted.refresh), _Exposition(metrics.sli_registry)

    async def healthz(request: Request) -> Reply:
        metrics.healthcheck.labels(name="ping", type="healthz").set(1)
        metrics.healthchecks_total.labels(name="ping", status="success", type="healthz").inc()
        verbose = "[+]ping ok\nhealthz check passed\n"
        return _build_text_reply(verbose if "verbose" in request.query else "ok")

    async def proxy_mode(_request: Request) -> Reply:
        return _build_text_reply(info.mode)

    async def configz(_request: Request) -> Reply:
        body = json.dumps({"kubeproxy.config.k8s.io": info.config}, separators=(",", ":"))
        return Reply(body, headers={**_TEXT, "Content-Type": "application/json"})

    async def flagz(_request: Request) -> Reply:
        lines = "".join(f"{name}={value}\n" for name, value in sorted(info.flags.items()))
        return _build_text_reply(f"\nvipwire flags\n{_WARNING}\n{lines}")

    async def statusz(_request: Request) -> Reply:
        return _build_text_reply(f"\nvipwire statusz\n{_WARNING}\n{_format_status(info, now())}")

    pages: dict[str, Handler] = {"/healthz": healthz, "/metrics": exposition.reply, "/metrics/slis": slis.reply}
    pages |= {"/proxyMode": proxy_mode, "/configz": configz}
    pages |= ({"/flagz": flagz} if info.flagz else {}) | ({"/statusz": statusz} if info.statusz else {})
    app = _build_pages(pages)
    if info.profiling:
        add_debug_pages(app, info.set_verbosity)
    return app


def _build_pages(pages: Mapping[str, Handler]) -> Pages:
    site = Pages()
    for path, handler in pages.items():
        site.add("GET", path, handler)
    return site


class _Exposition:
    """Writes the metrics of a registry; requests that arrive before a write begins share its result."""

    def __init__(self, registry: Any, refresh: Callable[[], Awaitable[None]] = _do_nothing) -> None:
        self._registry, self._refresh = registry, refresh
        self._began = 0.0
        self._written = Reply()

    async def reply(self, request: Request) -> Reply:
        from prometheus_client.exposition import choose_encoder  # noqa: PLC0415  # imports an HTTP server: not at a start

        encode, content_type = choose_encoder(request.headers.get("accept", ""))
        headers = {"Content-Type": content_type}
        if self._began < request.arrived or self._written.headers != headers:
            began = time.monotonic()
            await self._refresh()
            self._began, self._written = began, Reply(encode(self._registry), headers=headers)
        return self._written


def _format_status(info: ProxyInfo, now: float) -> str:
    up = int(now - info.started)
    started = datetime.fromtimestamp(info.started, UTC).strftime("%a %b %e %H:%M:%S UTC %Y")
    uptime = f"{up // 3600} hr {up // 60 % 60:02d} min {up % 60:02d} sec"
    return f"Started: {started}\nUp: {uptime}\nBinary version: {info.version}\nProxy mode: {info.mode}\n"
