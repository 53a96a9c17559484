"""The flags of BGP: the AS, the routers, the kinds of addresses. Pure."""

import ipaddress
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from vipwire.errors import ConfigError
from vipwire.model.text import whole_number

CLUSTER, EXTERNAL, BALANCER = "ClusterIP", "ExternalIP", "LoadBalancer"
KINDS: Final = (CLUSTER, EXTERNAL, BALANCER)
_MOST_AS: Final = 2**32 - 1


@dataclass(frozen=True, slots=True)
class Peer:
    """A router: its address and AS."""

    address: str
    number: int


@dataclass(frozen=True, slots=True)
class BgpSettings:
    """Settings of BGP. `kinds` are announced for Services without the annotation."""

    number: int
    peers: tuple[Peer, ...]
    kinds: tuple[str, ...] = (BALANCER,)
    router_id: str = ""


def read_bgp_settings(number: int, peers: Iterable[str], kinds: Iterable[str], router_id: str) -> BgpSettings | None:
    """Parse the flags; None if BGP is off. Raise ConfigError."""
    peers = tuple(peers)
    if not number and not peers:
        return None
    if not number or not peers:
        raise ConfigError("--bgp-as and --bgp-peer belong together: our AS, and a router with its AS")
    if router_id:
        try:
            ipaddress.IPv4Address(router_id)
        except ValueError as error:
            raise ConfigError(f"--bgp-router-id {router_id}: {error} (allowed: an IPv4 address)") from None
    return BgpSettings(number, tuple(map(_parse_peer, peers)), tuple(dict.fromkeys(kinds)) or (BALANCER,), router_id)


def _parse_peer(text: str) -> Peer:
    address, _, number = text.rpartition("@")
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        parsed = None
    system = whole_number(number, 1, _MOST_AS)
    if parsed is None or system is None:
        raise ConfigError(f"--bgp-peer {text!r}: is not ADDRESS@AS (allowed: 10.0.0.254@64500)")
    return Peer(str(parsed), system)
