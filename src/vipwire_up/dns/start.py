"""From the flags of `vipwire dns` to a running server: everything that they name is checked and opened here."""

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, TypeAlias

from vipwire.config.sections import Logging
from vipwire.errors import ConfigError
from vipwire.kube.access.access import load_access
from vipwire.kube.client import ApiSource
from vipwire.kube.manifests.source import ManifestSource
from vipwire.process import log
from vipwire_up.dns.objects import DnsKind, DnsObject
from vipwire_up.dns.run import Emit, Feed, run_dns
from vipwire_up.dns.settings import (
    Settings,
    check_address,
    check_domain,
    parse_server,
    read_resolv_conf,
    without_ourselves,
)
from vipwire_up.dns.upstream.exchange import Server
from vipwire_up.dns.watch import MANIFESTS, RESOURCES

_Source: TypeAlias = ApiSource[DnsKind, DnsObject] | ManifestSource[DnsKind, DnsObject]

LOOK: Final = 1.0
"""How often it is looked how the contact to the source is, in seconds."""


def start(flags: Mapping[str, Any]) -> None:
    """Run the server that the flags ask for until a signal ends it; raise ConfigError or UnsupportedError."""
    log.configure(Logging(verbosity=flags["verbosity"]))
    settings = settings_of(flags)
    run_dns(settings, _feed(flags["kubeconfig"], flags["master"], flags["manifests"]))


def settings_of(flags: Mapping[str, Any]) -> Settings:
    """Build the settings; servers upstream that are this one are left out with a warning."""
    http = str(flags["http_address"])
    settings = Settings(
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
    )
    servers = _servers(flags["upstream"], str(flags["resolv_conf"]))
    others = without_ourselves(settings, servers)
    for server in servers:
        if server not in others:
            log.warning("ignoring an upstream server that is this one", server=server)
    return replace(settings, upstream=others)


def _servers(given: tuple[str, ...], resolv_conf: str) -> tuple[Server, ...]:
    if given:
        return tuple(dict.fromkeys(parse_server(text) for text in given))
    if resolv_conf in ("", "."):  # an empty name, as click makes a path of it
        return ()
    try:
        return read_resolv_conf(Path(resolv_conf).read_text(encoding="utf-8", errors="replace"), resolv_conf)
    except OSError as error:
        raise ConfigError(f"--resolv-conf: {resolv_conf}: {error.strerror} (--upstream names servers)") from error


def _feed(kubeconfig: Path | None, master: str | None, manifests: tuple[Path, ...]) -> Feed:
    if manifests and (kubeconfig or master):
        raise ConfigError(
            "--manifests: takes the place of an API server; --kubeconfig and --master do not go with it"
        )
    source: _Source = (
        ManifestSource(manifests, MANIFESTS) if manifests else ApiSource(load_access(kubeconfig, master), RESOURCES)
    )

    async def feed(emit: Emit) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(source.run(emit), name="source")
            tasks.create_task(_tell_contact(source), name="contact")

    return feed


async def _tell_contact(source: _Source) -> None:
    """Log when the contact to the source is lost, or lost for another reason, or restored."""
    told: dict[str, str] = {}
    while True:
        for health in source.health():
            if health.error != told.get(health.resource, ""):
                told[health.resource] = health.error
                if health.error:
                    log.warning("cannot read objects", resource=health.resource, error=health.error)
                else:
                    log.info("reading objects works again", resource=health.resource)
        await asyncio.sleep(LOOK)
