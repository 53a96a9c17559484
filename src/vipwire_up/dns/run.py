"""One DNS server: connects a source of objects, the zone, upstream servers, the sockets and the HTTP pages.

`serve_dns` is for a process with other parts, such as `vipwire up`. `start_server` is the command `vipwire dns`: it
checks the flags, and opens the files and sockets that they name.
"""

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

from prometheus_client.exposition import choose_encoder

from vipwire import __version__
from vipwire.config.sections import Logging
from vipwire.errors import ConfigError, raise_ungrouped
from vipwire.http_server.exchange import Reply
from vipwire.http_server.pages import Pages, Request
from vipwire.kube.access.access import load_access
from vipwire.kube.client import ApiSource, log_failures
from vipwire.kube.contact import seconds_to_next_look
from vipwire.kube.manifests.source import ManifestSource
from vipwire.logging import log
from vipwire.model.net import parse_address
from vipwire.process_lifecycle import cyclic_garbage, event_loop, systemd
from vipwire.process_lifecycle.event_loop import Stop
from vipwire.process_lifecycle.supervision import Supervisor
from vipwire.proxy_daemon.serve.server import HttpServer
from vipwire_up.dns.limits import ClientLimits
from vipwire_up.dns.objects import MANIFESTS, RESOURCES, DnsEvent, DnsKind, DnsObject
from vipwire_up.dns.resolv_conf import ResolvConf
from vipwire_up.dns.resolver import Resolver
from vipwire_up.dns.server import DnsServer
from vipwire_up.dns.settings import (
    Settings,
    check_address,
    check_domain,
    drop_own_servers,
    parse_server,
)
from vipwire_up.dns.sockets import open_pair, open_pairs
from vipwire_up.dns.statistics import DnsStatistics
from vipwire_up.dns.upstream.answer import Cache
from vipwire_up.dns.upstream.exchange import Forwarder
from vipwire_up.dns.zone import Zone

Emit: TypeAlias = Callable[[DnsEvent], None]
Feed: TypeAlias = Callable[[Emit], Awaitable[None]]
"""Emits all objects, then every change, until cancelled."""
Ready: TypeAlias = Callable[[int, tuple[str, ...]], None]
"""Called with the port and the addresses once the sockets are open."""


async def serve_dns(settings: Settings, feed: Feed, ready: Ready = lambda _port, _addresses: None) -> None:
    """Serve DNS until cancelled. Raise UnsupportedError if an address cannot be bound."""
    served = _Served(settings)
    async with asyncio.TaskGroup() as tasks:
        server = DnsServer(served.resolver, served.statistics, tasks, ClientLimits(rate=settings.rate))
        try:
            pairs = open_pairs(settings.addresses, settings.port)
            for pair in pairs:
                await server.answer_on_sockets(pair)
            port = pairs[0].port
            inner = [address for address in settings.inner if await _listen_within(server, address, port)]
            if settings.http:
                pages = HttpServer("dns pages", served.pages(), settings.http)
                tasks.create_task(pages.run(), name="pages")
            log.info(
                "serving DNS",
                version=__version__,
                domain=settings.domain,
                port=port,
                at=",".join((*settings.addresses, *inner)),
            )
            ready(port, (*settings.addresses, *inner))
            supervisor = Supervisor(lambda *_, again: served.count_failure())  # noqa: ARG005  # all count
            if served.resolv_conf is not None:
                tasks.create_task(supervisor.keep("resolv.conf", served.resolv_conf.run), name="resolv.conf")
            await supervisor.keep("source", lambda _begun: feed(served.apply_event))
        finally:
            server.close()


async def _listen_within(server: DnsServer, address: str, port: int) -> bool:
    try:
        with contextlib.ExitStack() as opened:
            pair = open_pair(address, port, opened, from_here=True)
            opened.pop_all()
    except OSError as error:
        log.warning(
            "DNS cannot listen on this address; its Service has no endpoint",
            address=address,
            port=port,
            reason=error.strerror,
        )
        return False
    await server.answer_on_sockets(pair)
    return True


class _Served:
    """The state of one server."""

    def __init__(self, settings: Settings) -> None:
        own = settings.advertised or tuple(text for text in settings.addresses if text not in ("0.0.0.0", "::"))  # noqa: S104
        addresses = tuple(parse_address(text) for text in own)
        # Like a date in a zone file: a restarted server's serial must not go back.
        self.zone = Zone(settings.domain, ttl=settings.ttl, addresses=addresses, serial=int(time.time()) & 0xFFFFFFFF)
        self._cache = Cache(settings.cache)
        self.statistics = DnsStatistics(self._record_counts)
        servers, tried = drop_own_servers(settings, settings.upstream), self.statistics.count_attempt
        forwarder = Forwarder(servers, self._cache, mixed=settings.mixed, witness=tried)
        for server in settings.upstream:
            if server not in servers:
                log.warning("ignoring an upstream server that is this one", server=server)
        self.resolv_conf = None
        if settings.resolv_conf is not None and not settings.upstream:
            self.resolv_conf = ResolvConf(settings, settings.resolv_conf, forwarder)
        elif not servers:
            log.warning("no upstream server: refusing queries for other names")
        self.resolver = Resolver(self.zone, forwarder, pods=settings.pods)

    def _record_counts(self) -> Mapping[str, int]:
        return {**self.zone.sizes, "cached": len(self._cache)}

    def apply_event(self, event: DnsEvent) -> None:
        synced = self.zone.synced
        for problem in self.zone.apply(event):
            log.warning("invalid object", problem=problem)
        self.statistics.events[type(event).__name__.lower()] += 1
        if self.zone.synced and not synced:
            log.info("all objects are listed", **self.zone.sizes)

    def count_failure(self) -> None:
        self.statistics.failures += 1

    def pages(self) -> Pages:
        """Build the pages: /health (alive), /ready (all objects listed), /metrics."""

        async def health(_request: Request) -> Reply:
            return Reply("OK")

        async def ready(_request: Request) -> Reply:
            synced = self.zone.synced
            return Reply("OK" if synced else "listing objects\n", 200 if synced else 503)

        async def metrics(request: Request) -> Reply:
            encode, content_type = choose_encoder(request.headers.get("accept", ""))
            return Reply(encode(self.statistics.registry), headers={"Content-Type": content_type})

        return Pages(health=health, ready=ready, metrics=metrics)


def run_dns(settings: Settings, feed: Feed) -> None:
    """Run until SIGTERM or SIGINT; raise a VipwireError that ended the server."""

    async def until_stopped() -> None:
        stop = Stop(lambda: log.info("SIGHUP has no effect: no file to read again"))

        async def log_stop() -> None:
            log.info("stopped", reason=await stop.wait())

        async with asyncio.TaskGroup() as tasks:
            alive = tasks.create_task(systemd.keep_alive())
            serving = serve_dns(settings, feed, lambda *_: systemd.notify(systemd.READY))
            await event_loop.run_until_first_ends(serving, log_stop())
            alive.cancel()

    cyclic_garbage.collect_rarely()
    with raise_ungrouped():
        event_loop.run_in_loop(until_stopped())


_Source: TypeAlias = ApiSource[DnsKind, DnsObject] | ManifestSource[DnsKind, DnsObject]


def start_server(flags: Mapping[str, Any]) -> None:
    """Run the server of these flags until a signal ends it; raise ConfigError or UnsupportedError."""
    log.configure(Logging(verbosity=flags["verbosity"]))
    settings = read_settings(flags)
    run_dns(settings, _build_feed(flags["kubeconfig"], flags["master"], flags["manifests"]))


def read_settings(flags: Mapping[str, Any]) -> Settings:
    http, resolv_conf = str(flags["http_address"]), Path(flags["resolv_conf"])
    return Settings(
        domain=check_domain(flags["cluster_domain"]),
        addresses=tuple(dict.fromkeys(check_address(text, "--bind-address") for text in flags["addresses"])),
        port=flags["port"],
        ttl=flags["ttl"],
        cache=flags["cache"],
        rate=flags["rate"],
        mixed=flags["mixed"],
        pods=flags["pods"] == "insecure",
        http=str(parse_server(http, "--http-address")) if http else "",
        advertised=tuple(check_address(text, "--advertise-address") for text in flags["advertised"]),
        upstream=tuple(dict.fromkeys(parse_server(text) for text in flags["upstream"])),
        resolv_conf=resolv_conf if resolv_conf.name else None,  # click turns an empty flag into the path `.`
    )


def _build_feed(kubeconfig: Path | None, master: str | None, manifests: tuple[Path, ...]) -> Feed:
    if manifests and (kubeconfig or master):
        raise ConfigError("--manifests: cannot be combined with --kubeconfig and --master")
    source: _Source = (
        ManifestSource(manifests, MANIFESTS) if manifests else ApiSource(load_access(kubeconfig, master), RESOURCES)
    )

    async def feed(emit: Emit) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(source.run(emit), name="source")
            tasks.create_task(_log_contact(source), name="contact")

    return feed


async def _log_contact(source: _Source) -> None:
    told: dict[str, str] = {}
    while True:
        log_failures(states := source.health(), told)
        await asyncio.sleep(seconds_to_next_look(states))
