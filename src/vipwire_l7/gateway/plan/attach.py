"""Decides which listeners a route attaches to, and its status for each parent. Pure."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from vipwire.model.names import ObjectName
from vipwire_l7.gateway.plan.kinds.grants import allows_namespace
from vipwire_l7.gateway.plan.kinds.hostnames import covers_host, intersect_hosts, list_covering_hosts
from vipwire_l7.gateway.plan.kinds.objects import GatewayWorld, RouteObject, Verdict, no, yes
from vipwire_l7.gateway.plan.listeners import Listener
from vipwire_l7.gateway.watch import wire
from vipwire_l7.watch.convert import is_host
from vipwire_l7.watch.objects import IngressKind
from vipwire_l7.watch.snapshot import ObjectRef

ByOwner: TypeAlias = Mapping[ObjectRef, Sequence[Listener]]
"""All listeners, by the Gateway or ListenerSet of each."""
_PARENTS: Final = {each.value: each for each in (IngressKind.GATEWAY, IngressKind.LISTENER_SET)}


@dataclass(frozen=True, slots=True)
class Attachment:
    """A route at one listener.

    `hostnames` maps each hostname served there to the route's hostname that matches it.
    """

    listener: Listener
    hosts: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Parent:
    """The result for one of a route's `parentRefs`."""

    ref: wire.ParentRef
    accepted: Verdict
    attachments: tuple[Attachment, ...] = ()


def resolve_parents(route: RouteObject, listeners: ByOwner, world: GatewayWorld) -> tuple[Parent, ...]:
    """Resolve those parents of a route that belong to this controller."""
    made = (_resolve_parent(route, ref, listeners, world) for ref in route.spec.parent_refs)
    return tuple(parent for parent in made if parent is not None)


def _resolve_parent(
    route: RouteObject, ref: wire.ParentRef, listeners: ByOwner, world: GatewayWorld
) -> Parent | None:
    ours: Sequence[Listener] = ()
    if ref.group == wire.GROUP and ref.kind in _PARENTS:
        parent = _PARENTS[ref.kind], ObjectName(ref.namespace or route.name.namespace, ref.name)
        world.looked_at.add(parent)
        ours = listeners.get(parent, ())
    # A Gateway or ListenerSet without a valid listener is no parent.
    if not ours:
        return None
    named = [each for each in ours if ref.section_name in (None, each.spec.name) and ref.port in (None, each.port)]
    if not named:
        return Parent(ref, no("NoMatchingParent", "no listener has this name and port"))
    allowed = [each for each in named if route.kind in each.kinds and _allows_route(each, route, world)]
    if not allowed:
        return Parent(ref, no("NotAllowedByListeners", "no listener allows routes of this kind from this namespace"))
    wanted_hosts = route.spec.hostnames if isinstance(route.spec, wire.NamedRouteSpec) else ()
    hosts = tuple(host for host in wanted_hosts if is_host(host))
    strange = ", ".join(f"{host[:80]!r}" for host in wanted_hosts if host not in hosts)[:400]
    if strange and not hosts:
        return Parent(ref, no("UnsupportedValue", f"invalid hostnames: {strange}"))
    attachments = tuple(Attachment(each, found) for each in allowed if (found := intersect_hosts(each.host, hosts)))
    if not attachments:
        return Parent(ref, no("NoMatchingListenerHostname", "no listener matches any of the hostnames"))
    return Parent(ref, yes("Accepted", f"ignored invalid hostnames: {strange}" if strange else ""), attachments)


def _allows_route(listener: Listener, route: RouteObject, world: GatewayWorld) -> bool:
    wanted, own = listener.spec.allowed_routes.namespaces, listener.owner.name.namespace
    return allows_namespace(wanted, own, route.name.namespace, world, "Same")


def isolate_hostnames(attachment: Attachment, beside: Collection[str]) -> tuple[str, ...]:
    """Drop the hostnames of a more specific listener at the same port, which gets their requests.

    `beside` are the hostnames of all listeners there.
    """
    own = attachment.listener.host
    return tuple(
        host
        for host in attachment.hosts
        if not any(each in beside and each != own and covers_host(own, each) for each in list_covering_hosts(host))
    )
