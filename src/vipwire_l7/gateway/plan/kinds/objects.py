"""The objects that are planned, by kind, with the words that routes and Gateways share."""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from ipaddress import IPv4Network, IPv6Network
from typing import Final, NamedTuple, TypeAlias, TypeGuard, TypeVar

from vipwire.kube.gateway_addresses import CONTROLLER, POOL
from vipwire.model.names import ObjectName
from vipwire_l7.gateway.watch import wire
from vipwire_l7.plan.certificates import Pair, judge_secret, judged_until
from vipwire_l7.plan.dependencies import Looked
from vipwire_l7.watch.objects import BackendService, Declared, IngressKind
from vipwire_l7.watch.snapshot import ObjectRef, Snapshot

ROUTE_KINDS: Final = (
    IngressKind.HTTP_ROUTE,
    IngressKind.GRPC_ROUTE,
    IngressKind.TLS_ROUTE,
    IngressKind.TCP_ROUTE,
    IngressKind.UDP_ROUTE,
)
POLICY_KINDS: Final = (IngressKind.TRAFFIC_POLICY, IngressKind.BACKEND_POLICY)
"""Our own kinds."""


_EVERYWHERE: Final = ("*", "[::]", "0.0.0.0")  # noqa: S104  # compared, not bound


class Verdict(NamedTuple):
    """One condition: whether it holds, in one word why, in a sentence why."""

    holds: bool
    reason: str
    message: str = ""


@lru_cache(maxsize=4096)
def yes(reason: str, message: str = "") -> Verdict:
    """Return a condition that holds."""
    return Verdict(holds=True, reason=reason, message=message)


@lru_cache(maxsize=4096)
def no(reason: str, message: str = "") -> Verdict:
    """Return a condition that does not hold."""
    return Verdict(holds=False, reason=reason, message=message)


Item: TypeAlias = Declared[object]
Gateway: TypeAlias = Declared[wire.GatewaySpec]
ListenerSet: TypeAlias = Declared[wire.ListenerSetSpec]
ListenerOwner: TypeAlias = Gateway | ListenerSet
RouteObject: TypeAlias = Declared[wire.RouteSpec]
SpecT = TypeVar("SpecT")


def has_spec(item: Item, of: type[SpecT]) -> TypeGuard[Declared[SpecT]]:
    """Report whether the `spec` of an object is of a type."""
    return isinstance(item.spec, of)


@dataclass(frozen=True, slots=True)
class GatewaySetting:
    """The operator's choices. `zone` is ours, if known. `bind` is where Gateways without addresses listen."""

    controller: str = CONTROLLER
    zone: str = ""
    bind: str = "*"
    addresses: tuple[str, ...] = ()
    """Where clients reach Gateways that name no address: what their statuses say."""
    usable: frozenset[str] = frozenset()
    """The addresses that Gateways may name."""
    pool: tuple[IPv4Network | IPv6Network, ...] = ()
    """Ranges of which each Gateway without addresses gets its own; without any they share `bind`."""
    reserved: frozenset[str] = frozenset()
    """Addresses with ports where Ingresses come in, `*:80`: no listener may have them."""
    services: ObjectName | None = None
    """The Service that selects our Pods, if each Gateway is to have a Service of its own that leads to them."""
    service_ports: range = range(20000, 22000)
    """The ports of nodes that such Services lead to: each port of each Gateway gets its own."""
    has_system_authorities: Callable[[], bool] = lambda: True
    """Whether HAProxy has this machine's own authorities; asked once a BackendTLSPolicy names them (System)."""

    def reserves(self, bind: str, port: int) -> bool:
        """Report whether a place is for Ingresses. All addresses of IPv6 are those of IPv4 as well."""
        return f"{'*' if bind in _EVERYWHERE else bind}:{port}" in self.reserved


class GatewayWorld:
    """Looks objects up, and notes in `looked_at` which, for one result. `now` in seconds since the epoch.

    What a result finds of other results it notes there as well, by the objects that those are of.
    """

    def __init__(self, snapshot: Snapshot, now: float) -> None:
        self._snapshot, self.now = snapshot, now
        self.looked_at = noted = set[ObjectRef]()
        self.until = math.inf
        """When time alone changes what was found."""
        self.sections_seen: dict[ObjectRef, frozenset[str] | None] = {}
        self.services = Looked(IngressKind.SERVICE, snapshot.services, noted)
        self.secrets = Looked(IngressKind.SECRET, snapshot.secrets, noted)
        self.refusals = Looked(IngressKind.SERVICE, snapshot.refusals, noted)
        """By Service what of it is not connected to."""
        self._namespaces = Looked(IngressKind.NAMESPACE, snapshot.declared(IngressKind.NAMESPACE), noted)
        self._maps = Looked(IngressKind.CONFIG_MAP, snapshot.declared(IngressKind.CONFIG_MAP), noted)
        bundles = snapshot.declared(IngressKind.CLUSTER_TRUST_BUNDLE)
        self._bundles = Looked(IngressKind.CLUSTER_TRUST_BUNDLE, bundles, noted)

    @property
    def is_pooled(self) -> bool:
        """Whether Gateways have addresses by Services: `vipwire up` has a range for them."""
        return self._maps.get(POOL) is not None

    def take(self) -> frozenset[ObjectRef]:
        """Return what was looked at for a result, and begin with the next one."""
        taken = frozenset(self.looked_at)
        self.looked_at.clear()
        return taken

    def labels(self, namespace: str) -> Mapping[str, str]:
        """Return the labels of a namespace."""
        found = self._namespaces.get(ObjectName("", namespace))
        return found.labels if found is not None else {}

    def pair(self, name: ObjectName) -> tuple[Pair | None, str]:
        """Judge the certificate of a Secret; that is so until it begins, or ends."""
        secret = self.secrets.get(name)
        self.until = min(self.until, judged_until(secret, self.now))
        return judge_secret(secret, self.now)

    def authorities(self, name: ObjectName) -> Mapping[str, str]:
        """Return the content of a ConfigMap."""
        found = self._maps.get(name)
        return found.spec if found is not None and isinstance(found.spec, dict) else {}

    def bundle(self, name: str) -> str | None:
        """Return the certificates of a ClusterTrustBundle, in PEM."""
        found = self._bundles.get(ObjectName("", name))
        return found.spec.trust_bundle if found is not None and has_spec(found, wire.TrustBundle) else None

    def grants(self, namespace: str) -> Iterable[wire.GrantSpec]:
        """Return the `spec` of the ReferenceGrants of a namespace."""
        self.looked_at.add((IngressKind.REFERENCE_GRANT, ObjectName(namespace, "")))
        return (each.spec for each in self._snapshot.grants(namespace) if has_spec(each, wire.GrantSpec))

    def assigned(self, gateway: Gateway) -> BackendService | None:
        """Find the Service from which a Gateway has its addresses."""
        return self._snapshot.assigned(gateway.name)

    def all(self, kind: IngressKind, of: type[SpecT]) -> tuple[Declared[SpecT], ...]:
        """Return all objects of a kind, whose `spec` has a type, the oldest first."""
        found = (each for each in self._snapshot.declared(kind).values() if has_spec(each, of))
        return tuple(sorted(found, key=lambda each: each.age))

    def route(self, kind: IngressKind, name: ObjectName) -> RouteObject | None:
        """Return a route. Nothing is noted."""
        found = self._snapshot.declared(kind).get(name)
        return found if found is not None and has_spec(found, wire.RouteSpec) else None

    def parts(self, kind: IngressKind, name: ObjectName) -> frozenset[str] | None:
        """Name the rules of a route, the listeners of a Gateway or ListenerSet, as far as they have names.

        Return None for an object that is not there. Nothing is noted.
        """
        found = self._snapshot.declared(kind).get(name)
        if found is None:
            return None
        if has_spec(found, wire.RouteSpec):
            return frozenset(rule.name for rule in found.spec.rules if rule.name)
        if isinstance(found.spec, wire.GatewaySpec | wire.ListenerSetSpec):
            return frozenset(each.name for each in found.spec.listeners if each.name)
        return frozenset()

    def sections(self, kind: IngressKind, name: ObjectName) -> frozenset[str] | None:
        """Name the parts of an object; None if it is not there. What the answer was is noted, not the object."""
        if (kind, name) not in self.sections_seen:
            self.sections_seen[kind, name] = self.parts(kind, name)
        return self.sections_seen[kind, name]
