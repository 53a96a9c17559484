"""Chooses the endpoints that serve a pool.

Ready ones do. One that is going while it still serves drains: whoever is bound to it by a cookie goes on. Where none
is ready, those that are going are used all the same (KEP-1669). One family is used, or a dual-stack Pod would count
twice: that of the Service, else IPv4.

Where we know our zone, and every ready endpoint has a hint which zones it is for (topology aware routing), those for
others get no new clients; who is bound to them by a cookie stays. Where none is for ours, all are used.

Weights are those of the Service's annotation `vipwire.io/weights`, read by the same function as for `vipwire proxy`.
HAProxy's go up to 256, and its hashes want more than a few.
"""

from collections.abc import Iterable

from vipwire.model.net import Address, Family
from vipwire.plan.annotations import read_weights
from vipwire_l7.plan.sites import Pool, Server
from vipwire_l7.watch.objects import BackendEndpoint, BackendService, BackendSlice, Usability

MOST, UNIT = 256, 16
"""HAProxy's heaviest server, and what a weight of 1 is as long as the others fit."""


def servers_of(
    pool: Pool, service: BackendService | None, slices: Iterable[BackendSlice], zone: str = ""
) -> tuple[Server, ...]:
    """Choose the servers of a pool, ordered by address and port."""
    found: dict[tuple[Address, int], BackendEndpoint] = {}
    usable = list(slices)
    family = _family(service, usable)
    for each in usable:
        port = (each.udp_ports if pool.port.udp else each.ports).get(pool.port.name)
        if each.family is not family or port is None:
            continue
        for endpoint in each.endpoints:
            if endpoint.use is not Usability.NOT_READY:
                key = endpoint.address, port
                if key not in found or endpoint.use is Usability.READY:
                    found[key] = endpoint
    far = _far(found.values(), zone)
    weights = read_weights(service.annotations)[0] if service else {}
    unit = MOST // max(UNIT, *weights.values()) if weights else UNIT
    none_ready = not any(endpoint.use is Usability.READY for endpoint in found.values())
    return tuple(
        Server(
            _as_ready(found[key]) if none_ready else found[key],
            key[1],
            0 if found[key] in far else unit * weights.get(key[0], 1),
        )
        for key in sorted(found)
    )


def _far(endpoints: Iterable[BackendEndpoint], zone: str) -> frozenset[BackendEndpoint]:
    """Return which endpoints are for other zones; none when that cannot be told of all, or when all are."""
    ready = [endpoint for endpoint in endpoints if endpoint.use is Usability.READY]
    if not zone or not all(endpoint.zones for endpoint in ready):
        return frozenset()
    far = frozenset(endpoint for endpoint in ready if zone not in endpoint.zones)
    return far if len(far) < len(ready) else frozenset()


def _as_ready(endpoint: BackendEndpoint) -> BackendEndpoint:
    return BackendEndpoint(endpoint.address, Usability.READY, endpoint.pod)


def _family(service: BackendService | None, slices: Iterable[BackendSlice]) -> Family:
    if service is not None and service.family is not None:
        return service.family
    return Family.IPV6 if all(each.family is Family.IPV6 for each in slices) else Family.IPV4
