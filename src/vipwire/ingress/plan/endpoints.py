"""Which endpoints serve a pool.

Ready ones do. One that is going while it still serves drains: whoever is bound to it by a cookie goes on. Where none
is ready, those that are going are used all the same (KEP-1669). One family is used, or a dual-stack Pod would count
twice: that of the Service, else IPv4.
"""

from collections.abc import Iterable

from vipwire.ingress.plan.sites import Pool, Server
from vipwire.ingress.watch.objects import Endpoint, Service, Slice, Usability
from vipwire.model.net import Address, Family


def servers_of(pool: Pool, service: Service | None, slices: Iterable[Slice]) -> tuple[Server, ...]:
    """Choose the servers of a pool, ordered by address and port."""
    found: dict[tuple[Address, int], Endpoint] = {}
    usable = list(slices)
    family = _family(service, usable)
    for each in usable:
        port = each.ports.get(pool.port.name)
        if each.family is not family or port is None:
            continue
        for endpoint in each.endpoints:
            if endpoint.use is not Usability.NOT_READY:
                key = endpoint.address, port
                if key not in found or endpoint.use is Usability.READY:
                    found[key] = endpoint
    none_ready = not any(endpoint.use is Usability.READY for endpoint in found.values())
    return tuple(
        Server(_as_ready(found[key]) if none_ready else found[key], key[1]) for key in sorted(found, key=_order)
    )


def _order(key: tuple[Address, int]) -> tuple[bytes, int]:
    return key


def _as_ready(endpoint: Endpoint) -> Endpoint:
    return Endpoint(endpoint.address, Usability.READY, endpoint.pod)


def _family(service: Service | None, slices: Iterable[Slice]) -> Family:
    if service is not None and service.family is not None:
        return service.family
    return Family.IPV6 if all(each.family is Family.IPV6 for each in slices) else Family.IPV4
