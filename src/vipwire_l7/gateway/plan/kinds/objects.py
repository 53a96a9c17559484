"""The planned objects by kind, and the types that routes and Gateways share."""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from ipaddress import IPv4Network, IPv6Network
from typing import Final, NamedTuple, TypeAlias, TypeGuard, TypeVar

from vipwire.kube.gateway_addresses import CONTROLLER, POOL
from vipwire.model.names import ObjectName
from vipwire_l7.gateway.watch import wire
from vipwire_l7.plan.certificates import CertificatePair, find_next_change, judge_secret
from vipwire_l7.plan.dependencies import RecordedObjects, World
from vipwire_l7.plan.limits import MOST, Most
from vipwire_l7.watch.objects import GatewayObject, IngressKind
from vipwire_l7.watch.snapshot import ObjectRef, Snapshot

ROUTE_KINDS: Final = (
    IngressKind.HTTP_ROUTE,
    IngressKind.GRPC_ROUTE,
    IngressKind.TLS_ROUTE,
    IngressKind.TCP_ROUTE,
    IngressKind.UDP_ROUTE,
)
POLICY_KINDS: Final = (IngressKind.TRAFFIC_POLICY, IngressKind.BACKEND_POLICY)
"""vipwire's own kinds."""


_EVERYWHERE: Final = ("*", "[::]", "0.0.0.0")  # noqa: S104  # compared, not bound


class Verdict(NamedTuple):
    """A condition: whether it is true, its reason, and its message."""

    holds: bool
    reason: str
    message: str = ""


@lru_cache(maxsize=4096)
def yes(reason: str, message: str = "") -> Verdict:
    return Verdict(holds=True, reason=reason, message=message)


@lru_cache(maxsize=4096)
def no(reason: str, message: str = "") -> Verdict:
    return Verdict(holds=False, reason=reason, message=message)


Item: TypeAlias = GatewayObject[object]
Gateway: TypeAlias = GatewayObject[wire.GatewaySpec]
ListenerSet: TypeAlias = GatewayObject[wire.ListenerSetSpec]
ListenerOwner: TypeAlias = Gateway | ListenerSet
RouteObject: TypeAlias = GatewayObject[wire.RouteSpec]
SpecT = TypeVar("SpecT")


def has_spec(item: Item, of: type[SpecT]) -> TypeGuard[GatewayObject[SpecT]]:
    return isinstance(item.spec, of)


@dataclass(frozen=True, slots=True)
class GatewaySetting:
    """The operator's choices. `zone` is this node's, if known. Gateways without addresses listen at `bind`."""

    controller: str = CONTROLLER
    zone: str = ""
    bind: str = "*"
    addresses: tuple[str, ...] = ()
    """The addresses in the status of Gateways that name no address."""
    usable: frozenset[str] = frozenset()
    """The addresses that Gateways may name."""
    pool: tuple[IPv4Network | IPv6Network, ...] = ()
    """Each Gateway without addresses gets an address of these ranges. Without ranges, these Gateways share `bind`."""
    reserved: frozenset[str] = frozenset()
    """Addresses with ports of Ingresses (`*:80`). No listener may use them."""
    services: ObjectName | None = None
    """The Service that selects vipwire's Pods, if each Gateway is to have its own Service with these endpoints."""
    service_ports: range = range(20000, 22000)
    """The node ports to which such Services forward: no two ports of Gateways share a node port."""
    has_system_authorities: Callable[[], bool] = lambda: True
    """Reports whether HAProxy finds the system's CA certificates.

    Called only for a BackendTLSPolicy with `System`.
    """
    limits: Most = field(default_factory=lambda: MOST)

    def is_used_by_ingresses(self, bind: str, port: int) -> bool:
        """Report whether Ingresses use an address and port. `[::]` covers all IPv4 addresses as well."""
        return f"{'*' if bind in _EVERYWHERE else bind}:{port}" in self.reserved


class GatewayWorld(World):
    """A World that also looks up objects of the Gateway API and the plan's results for them."""

    def __init__(self, snapshot: Snapshot, now: float) -> None:
        super().__init__(snapshot, now)
        self.until = math.inf
        """The time at which a lookup's result changes although no object does, in seconds since the epoch."""
        self.sections_seen: dict[ObjectRef, frozenset[str] | None] = {}
        self._namespaces, self._maps, self._bundles = (
            RecordedObjects(kind, snapshot.list_gateway_objects(kind), self.looked_at)
            for kind in (IngressKind.NAMESPACE, IngressKind.CONFIG_MAP, IngressKind.CLUSTER_TRUST_BUNDLE)
        )

    @property
    def has_address_range(self) -> bool:
        """Whether `vipwire up` has a range from which Gateways get addresses by Services."""
        return self._maps.get(POOL) is not None

    def find_labels(self, namespace: str) -> Mapping[str, str]:
        found = self._namespaces.get(ObjectName("", namespace))
        return found.labels if found is not None else {}

    def read_certificate(self, name: ObjectName) -> tuple[CertificatePair | None, str]:
        """Read the certificate of a Secret. Its validity limits how long the result holds."""
        secret = self.secrets.get(name)
        self.until = min(self.until, find_next_change(secret, self.now))
        return judge_secret(secret, self.now)

    def read_config_map(self, name: ObjectName) -> Mapping[str, str]:
        found = self._maps.get(name)
        return found.spec if found is not None and isinstance(found.spec, dict) else {}

    def read_trust_bundle(self, name: str) -> str | None:
        """Return the certificates of a ClusterTrustBundle, in PEM."""
        found = self._bundles.get(ObjectName("", name))
        return found.spec.trust_bundle if found is not None and has_spec(found, wire.TrustBundle) else None

    def list_grants(self, namespace: str) -> Iterable[wire.GrantSpec]:
        self.looked_at.add((IngressKind.REFERENCE_GRANT, ObjectName(namespace, "")))
        return (each.spec for each in self.snapshot.list_grants(namespace) if has_spec(each, wire.GrantSpec))

    def list_objects(self, kind: IngressKind, of: type[SpecT]) -> tuple[GatewayObject[SpecT], ...]:
        """Return all objects of a kind whose `spec` has a type, the oldest first."""
        found = (each for each in self.snapshot.list_gateway_objects(kind).values() if has_spec(each, of))
        return tuple(sorted(found, key=lambda each: each.age))

    def find_route(self, kind: IngressKind, name: ObjectName) -> RouteObject | None:
        """Return a route. This lookup is not recorded."""
        found = self.snapshot.list_gateway_objects(kind).get(name)
        return found if found is not None and has_spec(found, wire.RouteSpec) else None

    def list_sections(self, kind: IngressKind, name: ObjectName) -> frozenset[str] | None:
        """Return the names of a route's rules, or of the listeners of a Gateway or ListenerSet.

        Return None if the object does not exist. This lookup is not recorded.
        """
        found = self.snapshot.list_gateway_objects(kind).get(name)
        if found is None:
            return None
        if has_spec(found, wire.RouteSpec):
            return frozenset(rule.name for rule in found.spec.rules if rule.name)
        if isinstance(found.spec, wire.GatewaySpec | wire.ListenerSetSpec):
            return frozenset(each.name for each in found.spec.listeners if each.name)
        return frozenset()

    def look_up_sections(self, kind: IngressKind, name: ObjectName) -> frozenset[str] | None:
        """Return the names of an object's sections, None without the object.

        Only this answer is recorded as looked up.
        """
        if (kind, name) not in self.sections_seen:
            self.sections_seen[kind, name] = self.list_sections(kind, name)
        return self.sections_seen[kind, name]
