"""Reads the settings of DNS: flags, and the servers of a resolv.conf. Texts in, values or a ConfigError out."""

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

    `upstream` are servers for other names; without any, those of the file `resolv_conf` are, as it is at the time.
    `service` is the address of a Service that leads here.
    `advertised` are the addresses that the name of this server leads to. `cache` counts answers; 0 keeps none.
    At `inner` addresses only this machine is answered; they are taken if they are free. `rate` is how many questions
    one client may ask in a second, 0 for any number. `mixed`: names are asked upstream in letters large and small.
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
    """Check a cluster domain; raise ConfigError."""
    try:
        name = parse_name(text)
    except ValueError as error:
        raise ConfigError(f"--cluster-domain: {error} (allowed: a name such as cluster.local)") from error
    if name.endswith(b"\4arpa\0"):
        raise ConfigError(f"--cluster-domain: {text[:80]!r} is where the names of addresses are")
    if len(name) == 1 or len(name) > LONGEST_DOMAIN:
        raise ConfigError(f"--cluster-domain: {text[:80]!r} has to have 1 to {LONGEST_DOMAIN - 2} characters")
    return text


def check_address(text: str, flag: str) -> str:
    """Check an IP address and give its canonical form; raise ConfigError."""
    try:
        return str(ipaddress.ip_address(text))
    except ValueError as error:
        raise ConfigError(f"{flag}: {text[:80]!r} is not an IP address") from error


def parse_server(text: str, flag: str = "--upstream") -> UpstreamServer:
    """Read `IP`, `IP:port` or `[IP]:port`; raise ConfigError."""
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
    """Read the `nameserver` lines (resolv.conf(5)); the rest is about names that people write, not about servers."""
    found: dict[UpstreamServer, None] = {}
    for line in text.splitlines():
        words = line.split()
        if len(words) >= 2 and words[0] == "nameserver":
            found[UpstreamServer(check_address(words[1], f"{file}: nameserver"))] = None
    return tuple(found)[:MOST_SERVERS]


def without_ourselves(settings: Settings, servers: Sequence[UpstreamServer]) -> tuple[UpstreamServer, ...]:
    """Leave out the servers that lead here: a question would come back until it is forgotten."""
    everywhere = any(ipaddress.ip_address(address).is_unspecified for address in settings.addresses)

    def is_ours(server: UpstreamServer) -> bool:
        if server == (settings.service, 53):
            return True
        if server.port != settings.port:
            return False
        ours = (*settings.addresses, *settings.inner)
        return server.host in ours or (everywhere and ipaddress.ip_address(server.host).is_loopback)

    return tuple(server for server in servers if not is_ours(server))
