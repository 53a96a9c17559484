"""Runs the proxy's HTTP servers, and the process of the `vipwire view` page (`--view-bind-address`).

The page runs in its own process at a lower priority, because a request over ten thousand Services would delay syncs.
It reads objects and kernel itself with the proxy's flags, ends when its standard input closes (so it never outlives
the proxy), and is restarted when it fails.
"""

import asyncio
import sys
import time
from collections.abc import Callable, Hashable

from vipwire import __version__
from vipwire.config.configuration import Config
from vipwire.config.file import build_config_document
from vipwire.config.flags import list_explicit_flags, list_flag_values
from vipwire.errors import VipwireError
from vipwire.kube.events import EventType
from vipwire.logging import log
from vipwire.process_lifecycle.event_loop import run_until_first_ends
from vipwire.process_lifecycle.supervision import Supervisor
from vipwire.proxy_daemon.serve.health import ProxyHealth
from vipwire.proxy_daemon.serve.metrics import Metrics
from vipwire.proxy_daemon.serve.pages import ProxyInfo, build_health_pages, build_metrics_pages
from vipwire.proxy_daemon.serve.server import HttpServer
from vipwire.proxy_daemon.sync.report import Reporter


class ProxyServers:
    """Runs the servers of a configuration in the caller's task group."""

    def __init__(self, tasks: asyncio.TaskGroup, health: ProxyHealth, metrics: Metrics, reporter: Reporter) -> None:
        self._tasks, self._health, self._metrics, self._reporter = tasks, health, metrics, reporter
        self._started = time.time()
        self._running: dict[str, tuple[Hashable, asyncio.Task[None]]] = {}
        self._document: dict[str, object] = {}
        self._flags: dict[str, str] = {}

    async def apply(self, config: Config) -> None:
        self._start_view(config)
        made = {server.name: server for server in self._build_servers(config)}
        wanted = {name: select_server_settings(name, config) for name in made}
        for name, (what, task) in list(self._running.items()):
            if wanted.get(name) != what:
                del self._running[name]
                task.cancel()
                await asyncio.wait([task])
        for name, server in made.items():
            if name not in self._running:
                self._running[name] = wanted[name], self._tasks.create_task(server.run(), name=name)

    def stop(self) -> None:
        for _, task in self._running.values():
            task.cancel()

    def _start_view(self, config: Config) -> None:
        self._document.clear()
        self._document.update(build_config_document(config))
        self._flags.clear()
        self._flags.update(list_flag_values(config))

    def _build_servers(self, config: Config) -> tuple[HttpServer, ...]:
        info = ProxyInfo(
            mode=config.proxy_mode,
            version=__version__,
            config=self._document,
            flags=self._flags,
            started=self._started,
            profiling=config.enable_profiling,
            flagz=config.gates["ComponentFlagz"],
            statusz=config.gates["ComponentStatusz"],
            set_verbosity=log.set_verbosity,
        )
        hard = config.bind_address_hard_fail
        sites = (
            (
                "healthz server",
                config.healthz_bind_address,
                build_health_pages(self._health, self._metrics, time.time),
            ),
            ("metrics server", config.metrics_bind_address, build_metrics_pages(self._metrics, info, time.time)),
        )
        return tuple(
            HttpServer(name, site, address, self._report_failure, hard_fail=hard)
            for name, address, site in sites
            if address
        )

    def _report_failure(self, server: str, reason: str) -> None:
        log.error("server does not start", server=server, reason=reason)
        event = "FailedToStartProxierHealthcheck" if server.startswith("healthz") else "FailedToStartMetricServer"
        self._reporter.report_node_event(event, reason, EventType.WARNING)


def select_server_settings(name: str, config: Config) -> Hashable:
    """Return all settings of a server; a change of them needs a new server."""
    if name.startswith("healthz"):
        return config.healthz_bind_address, config.bind_address_hard_fail
    gates = config.gates
    pages = config.enable_profiling, gates["ComponentFlagz"], gates["ComponentStatusz"]
    return config.metrics_bind_address, config.bind_address_hard_fail, pages


_PATIENCE = 3.0


class ViewProcess:
    """The `vipwire view` process of a proxy; `config` returns the current configuration."""

    def __init__(self, config: Callable[[], Config]) -> None:
        self._config = config
        self._moved = asyncio.Event()

    def config_changed(self) -> None:
        """Follow a new configuration."""
        self._moved.set()

    async def run(self) -> None:
        """Run the process while the configuration asks for it, until cancelled; again if it ends by itself."""
        await Supervisor().keep("page of --view-bind-address", lambda _begun: self._follow())

    async def _follow(self) -> None:
        while True:
            self._moved.clear()
            if command := build_command_line(self._config()):
                await self._run_process(command)
            else:
                await self._moved.wait()

    async def _run_process(self, command: tuple[str, ...]) -> None:
        """Run the command until the command line changes. Raise VipwireError if it ends before."""
        null = asyncio.subprocess.DEVNULL
        process = await asyncio.create_subprocess_exec(*command, stdin=asyncio.subprocess.PIPE, stdout=null)
        try:
            while process.returncode is None:
                await run_until_first_ends(process.wait(), self._moved.wait())
                self._moved.clear()
                if build_command_line(self._config()) != command:
                    return
        finally:
            await _end_process(process)
        raise VipwireError(f"the process ended with status {process.returncode}")


async def _end_process(process: asyncio.subprocess.Process) -> None:
    if process.returncode is not None:
        return
    if process.stdin is not None:
        process.stdin.close()
    try:
        async with asyncio.timeout(_PATIENCE):
            await process.wait()
    except (TimeoutError, asyncio.CancelledError):
        process.kill()
        await process.wait()


def build_command_line(config: Config) -> tuple[str, ...]:
    """Build the command that serves a configuration's page; () if the page is off."""
    if not config.view_bind_address:
        return ()
    own = (f"--view-bind-address={config.view_bind_address}", "--beside-proxy", f"--state-dir={config.state_dir}")
    return (sys.executable, "-m", "vipwire", "view", *own, *list_explicit_flags(config))
