"""Decides which addresses this machine announces. Pure.

Every machine announces every address, and routers spread connections over the machines (ECMP), except:

    the machine is not Ready, or excluded from load balancers    nothing
    the Service has no ready endpoint                            none of its addresses
    externalTrafficPolicy: Local                                 external IPs and LoadBalancer addresses only from
                                                                 machines with a ready endpoint
    internalTrafficPolicy: Local                                 likewise the ClusterIPs
    the address is a Gateway's, served by HAProxy and no proxy   LoadBalancer addresses from machines where a program
                                                                 listens at one of its ports; nothing else

A Service's annotation `announce.vipwire.io/bgp` overrides the flags: the kinds of its addresses to announce, with
commas: ClusterIP, ExternalIP, LoadBalancer; or none.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from vipwire.kube.gateway_addresses import is_haproxy_service
from vipwire.kube.resource import Resource
from vipwire.model.names import ObjectName
from vipwire.model.problem import Problem
from vipwire_up.announcing.balanced import status_addresses
from vipwire_up.announcing.kinds import AnnounceKind, Found, Machine, Meta, Plain, name_of
from vipwire_up.api.objects.addresses import family_of
from vipwire_up.bgp.settings import BALANCER, CLUSTER, EXTERNAL, KINDS

BGP: Final = "announce.vipwire.io/bgp"


@dataclass(frozen=True, slots=True)
class Routed:
    """A Service: its addresses by kind, and the kinds to announce, None for the flags'."""

    name: ObjectName
    addresses: tuple[tuple[str, tuple[str, ...]], ...]
    local: frozenset[str]
    kinds: tuple[str, ...] | None
    gateway: frozenset[int] = frozenset()
    """The ports, if the Service has a Gateway's address (`vipwire gateway` listens there itself)."""


def read_routed_service(value: Plain) -> Found[Routed]:
    meta, spec = value.metadata or Meta(), value.spec or {}
    balanced = status_addresses({"status": value.status or {}}) if spec.get("type") == "LoadBalancer" else []
    found = (
        (CLUSTER, _valid_addresses(spec.get("clusterIPs") or ())),
        (EXTERNAL, _valid_addresses(spec.get("externalIPs") or ())),
        (BALANCER, _valid_addresses(balanced)),
    )
    if spec.get("type") == "ExternalName" or not any(addresses for _, addresses in found):
        return None, ()
    local = set[str]()
    if spec.get("externalTrafficPolicy") == "Local":
        local |= {EXTERNAL, BALANCER}
    if spec.get("internalTrafficPolicy") == "Local":
        local.add(CLUSTER)
    words = meta.annotations or {}
    kinds, problems = _parse_kinds(name_of(meta), words.get(BGP))
    ports = (each.get("port") for each in spec.get("ports") or () if isinstance(each, dict))
    gateway = (
        frozenset(port for port in ports if isinstance(port, int)) if is_haproxy_service(words) else frozenset[int]()
    )
    return Routed(name_of(meta), found, frozenset(local), kinds, gateway), problems


def choose_routes(
    node: str,
    services: Iterable[Routed],
    placed: Mapping[ObjectName, Iterable[str]],
    machines: Mapping[str, Machine],
    kinds: Iterable[str],
    waiting: Collection[tuple[str, int]] = (),
) -> tuple[str, ...]:
    """Return the sorted addresses that a machine announces. `placed` are the nodes of Services' ready endpoints.

    `waiting` are the addresses and ports at which programs of this machine listen.
    """
    machine = machines.get(node)
    if machine is None or not machine.ready or machine.excluded:
        return ()
    found = set[str]()
    for service in services:
        wanted = tuple(kinds) if service.kinds is None else service.kinds
        where = set(placed.get(service.name, ()))
        for kind, addresses in service.addresses:
            if service.gateway:
                heard = {address for address in addresses for port in service.gateway if (address, port) in waiting}
                found.update(heard if kind in wanted and kind == BALANCER else ())
            elif kind in wanted and where and (kind not in service.local or node in where):
                found.update(addresses)
    return tuple(sorted(found))


def _valid_addresses(texts: Iterable[object]) -> tuple[str, ...]:
    return tuple(str(each) for each in texts if family_of(str(each)))


def _parse_kinds(name: ObjectName, text: str | None) -> tuple[tuple[str, ...] | None, tuple[Problem, ...]]:
    if text is None:
        return None, ()
    words = [each.strip() for each in text.split(",") if each.strip()]
    if words == ["none"] or not words:
        return (), ()
    if wrong := [each for each in words if each not in KINDS]:
        why = f"{wrong[0]!r} must be one of {', '.join(KINDS)}, none; the flags apply"
        return None, (Problem("Service", name, f"metadata.annotations[{BGP}]", why),)
    return tuple(words), ()


SERVICES: Final = Resource(AnnounceKind.SERVICE, "/api/v1", "services", Plain, read_routed_service)
