"""Validates the listeners of a Gateway and its ListenerSets: which are served, and their conditions.

Listeners share a port if they have different hostnames and the same protocol, or all use TLS. A Gateway's own
listeners come before those of its ListenerSets, an older set before a younger one; the later listener is in conflict.
If two listeners of one object conflict, neither is served, for an implementation must not pick one (Gateway,
spec.listeners).
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Final, TypeAlias

from vipwire.model.names import ObjectName
from vipwire_l7.gateway.plan.kinds.grants import allows_namespace
from vipwire_l7.gateway.plan.kinds.hostnames import covers_host, list_covering_hosts
from vipwire_l7.gateway.plan.kinds.objects import Gateway, GatewayWorld, ListenerOwner, ListenerSet, Verdict, no, yes
from vipwire_l7.gateway.plan.tls import ClientCheck, read_client_validation, read_listener_certificates
from vipwire_l7.gateway.watch import wire
from vipwire_l7.plan.limits import Demand
from vipwire_l7.plan.sites import EVERY_HOST, Certificate, Mode
from vipwire_l7.watch.convert import is_host
from vipwire_l7.watch.objects import IngressKind
from vipwire_l7.watch.snapshot import ObjectRef

_KINDS: Final[Mapping[str, tuple[IngressKind, ...]]] = {  # the first protocol is the one that passes TLS through
    "HTTP": (IngressKind.HTTP_ROUTE, IngressKind.GRPC_ROUTE),
    "HTTPS": (IngressKind.HTTP_ROUTE, IngressKind.GRPC_ROUTE),
    "TLS": (IngressKind.TLS_ROUTE, IngressKind.TCP_ROUTE),
    "TCP": (IngressKind.TCP_ROUTE,),
    "UDP": (IngressKind.UDP_ROUTE,),
}
_NO_HOST: Final = ("TCP", "UDP")
_TLS: Final = ("HTTPS", "TLS")
OVER_LIMIT: Final = "LimitExceeded"
"""The reason of the condition Accepted."""
TLS_MODES: Final = frozenset((Mode.HTTPS, Mode.TLS, Mode.TLS_ENDED))
"""The protocols that may share a port: SNI tells their clients apart."""


ListenerKey: TypeAlias = tuple[IngressKind, ObjectName, int]
"""The object that has a listener, and the position among listeners of that name."""


@dataclass(frozen=True, slots=True)
class Listener:
    """A listener of a Gateway. `owner` is the Gateway, or the ListenerSet that has the listener."""

    gateway: Gateway
    owner: ListenerOwner
    index: int
    spec: wire.GatewayListener
    kinds: tuple[IngressKind, ...]
    accepted: Verdict
    resolved: Verdict
    conflict: Verdict
    certificates: tuple[Certificate, ...] = ()
    clients: ClientCheck | None = None
    """The validation of client certificates."""
    overlaps: tuple[str, ...] = ()
    """The names of other TLS listeners at the same port with overlapping hostnames."""
    waits: str = ""
    """The reason why a valid listener is not programmed yet; empty for a programmed listener."""
    places: tuple[str, ...] = ()
    """The addresses with port where it listens (`*:80`)."""

    @property
    def key(self) -> ListenerKey:
        """The identity of the listener. In a manifest, several listeners of one object may have the same name."""
        return self.owner.kind, self.owner.name, self.index

    @property
    def host(self) -> str:
        """The hostname, `*` for all."""
        return (self.spec.hostname or EVERY_HOST) if self.spec.protocol not in _NO_HOST else EVERY_HOST

    @property
    def port(self) -> int:
        return self.spec.port or 0

    @property
    def place(self) -> tuple[int, bool]:
        """The port, and whether its protocol is UDP."""
        return self.port, self.is_udp

    @property
    def is_udp(self) -> bool:
        """Whether the protocol is UDP, which the relay serves instead of HAProxy."""
        return self.spec.protocol == "UDP"

    @property
    def mode(self) -> Mode:
        if self.spec.protocol == "TLS":
            return Mode.TLS if self.is_passthrough else Mode.TLS_ENDED
        return {"HTTP": Mode.HTTP, "HTTPS": Mode.HTTPS}.get(self.spec.protocol, Mode.TCP)

    @property
    def is_passthrough(self) -> bool:
        return self.spec.tls is not None and self.spec.tls.mode == "Passthrough"

    @property
    def serves(self) -> bool:
        ends_tls = self.mode in (Mode.HTTPS, Mode.TLS_ENDED)
        return self.accepted.holds and not self.conflict.holds and (bool(self.certificates) or not ends_tls)

    @property
    def programmed(self) -> Verdict:
        if self.serves and self.waits:
            return no("Pending", self.waits)
        if self.serves and self.resolved.holds:
            return yes("Programmed")
        return no("Invalid", "see the other conditions") if not self.serves else yes("Programmed")


def validate_listeners(
    gateway: Gateway, sets: Iterable[ListenerSet], world: GatewayWorld, excess: Callable[[ObjectRef], str]
) -> tuple[Listener, ...]:
    """Validate all listeners of a Gateway. `sets` are the ListenerSets that the Gateway allows, the oldest first.

    `excess` returns the limit of its namespace that a Gateway or ListenerSet exceeds.
    """
    owners: tuple[ListenerOwner, ...] = (gateway, *sets)
    made = [
        _judge_listener(gateway, owner, index, each, world, excess((owner.kind, owner.name)))
        for owner in owners
        for index, each in enumerate(owner.spec.listeners)
    ]
    return tuple(_mark_overlaps(tuple(_mark_conflicts(made))))


def group_sets_by_gateway(world: GatewayWorld) -> dict[ObjectName, list[ListenerSet]]:
    """Return the ListenerSets by the Gateway of their `parentRef`, the oldest first."""
    found: dict[ObjectName, list[ListenerSet]] = {}
    for each in world.list_objects(IngressKind.LISTENER_SET, wire.ListenerSetSpec):
        ref = each.spec.parent_ref
        if (ref.group, ref.kind) == (wire.GROUP, "Gateway"):
            found.setdefault(ObjectName(ref.namespace or each.name.namespace, ref.name), []).append(each)
    return found


def count_listener_demand(owner: ListenerOwner, rank: int) -> Demand:
    """Count the listeners of a Gateway or ListenerSet; of objects with the same age, a lower `rank` counts first."""
    refs = (ref for each in owner.spec.listeners if each.tls for ref in each.tls.certificate_refs)
    names = {ObjectName(ref.namespace or owner.name.namespace, ref.name) for ref in refs}
    return Demand((*owner.age, rank), certificates=tuple(names), listeners=len(owner.spec.listeners))


def allows_listener_set(item: ListenerSet, gateway: Gateway, world: GatewayWorld) -> bool:
    """Report whether a Gateway allows a ListenerSet (`allowedListeners`)."""
    wanted = gateway.spec.allowed_listeners.namespaces
    return allows_namespace(wanted, gateway.name.namespace, item.name.namespace, world, "None")


def _judge_listener(
    gateway: Gateway, owner: ListenerOwner, index: int, spec: wire.GatewayListener, world: GatewayWorld, excess: str
) -> Listener:
    passes = spec.tls is not None and spec.tls.mode == "Passthrough"
    supported = _KINDS.get(spec.protocol, ())[: 1 if passes else None]
    wanted = spec.allowed_routes.kinds
    by_name = {(wire.GROUP, each.value): each for each in supported}
    kinds = tuple(dict.fromkeys(by_name[of] for each in wanted if (of := (each.group, each.kind)) in by_name))
    strange = [each.kind for each in wanted if (each.group, each.kind) not in by_name]
    resolved, certificates = yes("ResolvedRefs"), tuple[Certificate, ...]()
    if spec.protocol in _TLS and not passes:
        resolved, certificates = read_listener_certificates(owner, spec.tls, world)
    accepted, clients = no(OVER_LIMIT, excess) if excess else _judge_acceptance(spec), None
    if accepted.holds and spec.protocol == "HTTPS":
        judged = read_client_validation(gateway, spec.port or 0, world)
        accepted, clients = judged.accepted, judged.check
        resolved = resolved if judged.resolved.holds else judged.resolved
    if strange and supported:
        text = f"{', '.join(strange)}: not supported by {spec.protocol} listeners"
        resolved = no("InvalidRouteKinds", text)
    return Listener(
        gateway,
        owner,
        index,
        spec,
        kinds if wanted else supported,
        accepted,
        resolved,
        no("NoConflicts"),
        certificates,
        clients,
    )


def _judge_acceptance(spec: wire.GatewayListener) -> Verdict:
    if spec.protocol not in _KINDS:
        return no("UnsupportedProtocol", f"{spec.protocol[:40]!r} is not served (HTTP, HTTPS, TLS, TCP, UDP)")
    if not spec.port or not 0 < spec.port < 65536:
        return no("PortUnavailable", "a port from 1 to 65535 is needed")
    if spec.hostname and not is_host(spec.hostname):
        return no("UnsupportedValue", f"{spec.hostname[:80]!r} is no host")
    if spec.protocol == "HTTPS" and spec.tls is not None and spec.tls.mode == "Passthrough":
        return no("UnsupportedValue", "HTTPS listeners terminate TLS; Passthrough needs the protocol TLS")
    return yes("Accepted")


_Index: TypeAlias = dict[tuple[int, bool], dict[Mode, dict[str, list[Listener]]]]
"""Listeners by port, mode and hostname: a scan of all listeners would be quadratic in their thousands."""


def _add_to_index(index: _Index, listener: Listener) -> None:
    index.setdefault(listener.place, {}).setdefault(listener.mode, {}).setdefault(listener.host, []).append(listener)


def _mark_conflicts(made: Iterable[Listener]) -> Iterator[Listener]:
    """Find conflicts between listeners of one owner, and with listeners of earlier owners."""
    taken: _Index = {}
    for _, group in groupby(made, lambda each: (each.owner.kind, each.owner.name)):
        own = list(group)
        judged = [
            replace(each, conflict=_find_conflict(each, taken)) if each.accepted.holds else each for each in own
        ]
        rivals: _Index = {}
        for each in filter(_is_rival, judged):
            _add_to_index(rivals, each)
        found = [replace(each, conflict=_find_conflict(each, rivals)) if _is_rival(each) else each for each in judged]
        for each in filter(_is_rival, found):
            _add_to_index(taken, each)
        yield from found


def _is_rival(listener: Listener) -> bool:
    return listener.accepted.holds and not listener.conflict.holds


def _find_conflict(listener: Listener, others: _Index) -> Verdict:
    there = others.get(listener.place, {})
    for mode, hosts in there.items():
        if mode is listener.mode:
            continue
        told_apart = {mode, listener.mode} <= TLS_MODES
        rival = next(iter(hosts.get(listener.host, ()) if told_apart else next(iter(hosts.values()))), None)
        if rival is not None:
            text = f"the listener {rival.spec.name} uses port {listener.port} with the protocol {rival.spec.protocol}"
            return yes("ProtocolConflict", text)
    for each in there.get(listener.mode, {}).get(listener.host, ()):
        if each is not listener:
            return yes("HostnameConflict", f"the listener {each.spec.name} has the same port and hostname")
    return no("NoConflicts")


def _mark_overlaps(made: Sequence[Listener]) -> Iterator[Listener]:
    """Find listeners with overlapping hostnames: browsers may send requests for one over a connection to another."""
    ending: dict[tuple[int, bool], dict[str, list[Listener]]] = {}
    for each in made:
        if each.spec.protocol in _TLS and _is_rival(each):
            ending.setdefault(each.place, {}).setdefault(each.host, []).append(each)
    for each in made:
        there = ending.get(each.place, {})
        if any(each is other for other in there.get(each.host, ())):
            others = (
                other for host in _find_overlapping(each.host, there) for other in there[host] if other is not each
            )
            yield replace(each, overlaps=tuple(other.spec.name for other in others))
        else:
            yield each


def _find_overlapping(host: str, hosts: Collection[str]) -> Iterator[str]:
    """Yield the hostnames that cover a hostname or are covered by it."""
    if host.startswith("*"):
        return (each for each in hosts if covers_host(each, host) or covers_host(host, each))
    return (each for each in list_covering_hosts(host) if each in hosts)
