"""The settings of DNS, from flags and the servers of a resolv.conf. Invalid texts raise ConfigError."""

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from vipwire.errors import ConfigError
from vipwire.model.text import port_number
from vipwire_up.dns.limits import RATE
from vipwire_up.dns.messages.names import LONGEST, parse_name
from vipwire_up.dns.upstream.exchange import UpstreamServer

RESOLV_CONF: Final = Path("/etc/resolv.conf")
MOST_SERVERS: Final = 8
LONGEST_DOMAIN: Final = LONGEST - 140
"""Leaves room for a port, a protocol, a Service and a namespace before the domain."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of one DNS server. `ttl` in seconds; `http` is for health and metrics, empty for none.

    `upstream` are servers for other names; without any, the current ones of the file `resolv_conf`. `service` is the
    address of a Service that leads to this server. `advertised` are the addresses of this server's own name. `cache`
    is the number of cached answers, 0 for none. At `inner` addresses only this machine is answered; they are bound if
    free. `rate` is the number of questions per second of one client, 0 for no limit. `mixed` sends names upstream in
    mixed case.
    """

    domain: str = "cluster.local"
    addresses: tuple[str, ...] = ("0.0.0.0",)  # noqa: S104  # a Pod's own
    port: int = 53
    upstream: tuple[UpstreamServer, ...] = ()
    resolv_conf: Path | None = None
    service: str = ""
    ttl: int = 5
    cache: int = 10_000
    pods: bool = True
    http: str = ""
    advertised: tuple[str, ...] = ()
    inner: tuple[str, ...] = ()
    rate: int = RATE
    mixed: bool = True


def check_domain(text: str) -> str:
    try:
        name = parse_name(text)
    except ValueError as error:
        raise ConfigError(f"--cluster-domain: {error} (allowed: a name such as cluster.local)") from error
    if name.endswith(b"\4arpa\0"):
        raise ConfigError(f"--cluster-domain: {text[:80]!r} is the domain of reverse names")
    if len(name) == 1 or len(name) > LONGEST_DOMAIN:
        raise ConfigError(f"--cluster-domain: {text[:80]!r} has to have 1 to {LONGEST_DOMAIN - 2} characters")
    return text


def check_address(text: str, flag: str) -> str:
    try:
        return str(ipaddress.ip_address(text))
    except ValueError as error:
        raise ConfigError(f"{flag}: {text[:80]!r} is not an IP address") from error


def parse_server(text: str, flag: str = "--upstream") -> UpstreamServer:
    """Parse `IP`, `IP:port` or `[IP]:port`; raise ConfigError."""
    host, port = text, "53"
    if text.startswith("[") and "]:" in text:
        host, _, port = text[1:].rpartition("]:")
    elif text.count(":") == 1:
        host, _, port = text.partition(":")
    number = port_number(port)
    if number is None:
        raise ConfigError(f"{flag}: {text[:80]!r} has no port of 1 to 65535 (allowed: IP, IP:port, [IP]:port)")
    return UpstreamServer(check_address(host.strip("[]"), flag), number)


def read_resolv_conf(text: str, file: str) -> tuple[UpstreamServer, ...]:
    """Return the servers of the `nameserver` lines (resolv.conf(5)); other lines are ignored."""
    found: dict[UpstreamServer, None] = {}
    for line in text.splitlines():
        words = line.split()
        if len(words) >= 2 and words[0] == "nameserver":
            found[UpstreamServer(check_address(words[1], f"{file}: nameserver"))] = None
    return tuple(found)[:MOST_SERVERS]


def drop_own_servers(settings: Settings, servers: Sequence[UpstreamServer]) -> tuple[UpstreamServer, ...]:
    """Leave out servers that lead to this one: a question would loop until it times out."""
    everywhere = any(ipaddress.ip_address(address).is_unspecified for address in settings.addresses)

    def is_ours(server: UpstreamServer) -> bool:
        if server == (settings.service, 53):
            return True
        if server.port != settings.port:
            return False
        ours = (*settings.addresses, *settings.inner)
        return server.host in ours or (everywhere and ipaddress.ip_address(server.host).is_loopback)

    return tuple(server for server in servers if not is_ours(server))
