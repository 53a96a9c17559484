"""Chooses the endpoints of a pool.

Ready endpoints get requests. A terminating endpoint that still serves drains: clients whose session cookie names it
stay. If none is ready, terminating endpoints get requests (KEP-1669). Only one family is used, since a dual-stack Pod
would count twice: that of the Service, else IPv4.

If this node's zone is known, and every ready endpoint has zone hints (topology aware routing), endpoints for other
zones get no new clients; sessions stay. If no endpoint is for this zone, all get requests.

Weights come from the Service's annotation `vipwire.io/weights`, read as for `vipwire proxy`. HAProxy's go up to 256,
and its hashes need more than small numbers.
"""

from collections.abc import Iterable

from vipwire.model.net import Address, Family
from vipwire.plan.annotations import read_weights
from vipwire_l7.plan.sites import Pool, Server
from vipwire_l7.watch.objects import BackendEndpoint, BackendService, BackendSlice, Usability

MOST, UNIT = 256, 16
"""HAProxy's greatest weight, and the scale of a weight of 1 as long as the others fit."""


def choose_servers(
    pool: Pool, service: BackendService | None, slices: Iterable[BackendSlice], zone: str = ""
) -> tuple[Server, ...]:
    """Choose the servers of a pool, ordered by address and port."""
    found: dict[tuple[Address, int], BackendEndpoint] = {}
    usable = list(slices)
    family = _choose_family(service, usable)
    for each in usable:
        port = (each.udp_ports if pool.port.udp else each.ports).get(pool.port.name)
        if each.family is not family or port is None:
            continue
        for endpoint in each.endpoints:
            if endpoint.use is not Usability.NOT_READY:
                key = endpoint.address, port
                if key not in found or endpoint.use is Usability.READY:
                    found[key] = endpoint
    far = _find_other_zones(found.values(), zone)
    weights = read_weights(service.annotations)[0] if service else {}
    unit = MOST // max(UNIT, *weights.values()) if weights else UNIT
    none_ready = not any(endpoint.use is Usability.READY for endpoint in found.values())
    return tuple(
        Server(
            _mark_ready(found[key]) if none_ready else found[key],
            key[1],
            0 if found[key] in far else unit * weights.get(key[0], 1),
        )
        for key in sorted(found)
    )


def _find_other_zones(endpoints: Iterable[BackendEndpoint], zone: str) -> frozenset[BackendEndpoint]:
    """Return the endpoints for other zones; none if some have no hints, or if all are for other zones."""
    ready = [endpoint for endpoint in endpoints if endpoint.use is Usability.READY]
    if not zone or not all(endpoint.zones for endpoint in ready):
        return frozenset()
    far = frozenset(endpoint for endpoint in ready if zone not in endpoint.zones)
    return far if len(far) < len(ready) else frozenset()


def _mark_ready(endpoint: BackendEndpoint) -> BackendEndpoint:
    return BackendEndpoint(endpoint.address, Usability.READY, endpoint.pod)


def _choose_family(service: BackendService | None, slices: Iterable[BackendSlice]) -> Family:
    if service is not None and service.family is not None:
        return service.family
    return Family.IPV6 if all(each.family is Family.IPV6 for each in slices) else Family.IPV4
