"""Plans the listeners of the relay: one for each UDP frontend, with weighted endpoints. Pure.

The endpoints of a Service share its weight. Terminating endpoints keep their clients.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

from vipwire.model.net import Protocol, format_endpoint, parse_address
from vipwire.relay.messages import NOWHERE, Listener, Share, SocketAddress
from vipwire_l7.plan.sites import DatagramFrontend, Pool, Server
from vipwire_l7.watch.objects import Usability

_FINEST: Final = 1000
"""The greatest weight that the relay gets: fractions are scaled to it and rounded."""
_EVERYWHERE: Final = (bytes(4), bytes(16))
Labels = tuple[str, str, str, str, str]
"""Namespace, Service, port, Pod and endpoint: the labels of counters."""


@dataclass(frozen=True, slots=True)
class RelayListener:
    """A listener of the relay, and the labels of its endpoints."""

    listener: Listener
    labels: Mapping[SocketAddress, Labels]


def build_relay_listeners(
    frontends: Iterable[DatagramFrontend], servers: Callable[[Pool], Iterable[Server]], *, ipv6: bool
) -> dict[str, RelayListener]:
    """Return the listeners by name. `ipv6`: whether this machine has IPv6; wildcard listeners need to know."""
    return {each.name: _build_relay_listener(each, servers, ipv6=ipv6) for each in frontends}


def _build_relay_listener(
    frontend: DatagramFrontend, servers: Callable[[Pool], Iterable[Server]], *, ipv6: bool
) -> RelayListener:
    weights: dict[SocketAddress, Fraction] = {}
    serving: dict[SocketAddress, None] = {}
    labels: dict[SocketAddress, Labels] = {}
    for pool, weight in frontend.shares:
        found = tuple(servers(pool)) if pool is not None else ()
        taking = [each for each in found if each.weight and each.endpoint.use is Usability.READY]
        whole = sum(each.weight for each in taking)
        for each in found:
            serving[_encode_server_address(each)] = None
            labels[_encode_server_address(each)] = _make_labels(pool, each)
        for place, part in ((_encode_server_address(each), each.weight) for each in taking):
            weights[place] = weights.get(place, Fraction()) + Fraction(weight * part, whole)
        if not taking:
            weights[NOWHERE] = weights.get(NOWHERE, Fraction()) + weight
    shares = tuple(Share(place, weight) for place, weight in _scale_to_integers(weights or {NOWHERE: Fraction(1)}))
    old = tuple(place for place in serving if place not in weights)
    binds = tuple(SocketAddress(address, frontend.port) for address in _list_bind_addresses(frontend.bind, ipv6=ipv6))
    return RelayListener(Listener(frontend.name, Protocol.UDP, binds, shares, serving=old), labels)


def _encode_server_address(server: Server) -> SocketAddress:
    return SocketAddress(bytes(server.endpoint.address), server.port)


def _make_labels(pool: Pool | None, server: Server) -> Labels:
    where = format_endpoint(server.endpoint.address, server.port)
    if pool is None:
        return "", "", "", server.endpoint.pod, where
    return pool.service.namespace, pool.service.name, str(pool.port.number), server.endpoint.pod, where


def _scale_to_integers(weights: Mapping[SocketAddress, Fraction]) -> Iterable[tuple[SocketAddress, int]]:
    scale = _FINEST / max(weights.values())
    if all((weight / min(weights.values())).denominator == 1 for weight in weights.values()):
        scale = min(scale, 1 / min(weights.values()))
    return [(place, max(1, round(weight * scale))) for place, weight in weights.items()]


def _list_bind_addresses(bind: str, *, ipv6: bool) -> tuple[bytes, ...]:
    if bind == "*":
        return _EVERYWHERE if ipv6 else _EVERYWHERE[:1]
    return (bytes(parse_address(bind.strip("[]"))),)
