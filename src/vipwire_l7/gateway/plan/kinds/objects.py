"""The objects that are planned, by kind, with the words that routes and Gateways share."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from ipaddress import IPv4Network, IPv6Network
from typing import Any, Final, NamedTuple

from vipwire.kube.gateway_addresses import CONTROLLER, GATEWAY, POOL
from vipwire.model.names import ObjectName
from vipwire_l7.gateway.watch.objects import Content, Known
from vipwire_l7.watch.objects import BackendService, Declared, IngressKind, Secret
from vipwire_l7.watch.snapshot import Refusal, Snapshot

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


def yes(reason: str, message: str = "") -> Verdict:
    """Return a condition that holds."""
    return Verdict(holds=True, reason=reason, message=message)


def no(reason: str, message: str = "") -> Verdict:
    """Return a condition that does not hold."""
    return Verdict(holds=False, reason=reason, message=message)


@dataclass(frozen=True, slots=True)
class Item:
    """An object with its content at hand."""

    kind: IngressKind
    name: ObjectName
    spec: Any
    created: str = ""
    generation: int = 0
    status: dict[str, Any] | None = field(default=None, compare=False)
    """As the API server has it, without what is no status."""

    @property
    def age(self) -> tuple[str, ObjectName]:
        """Sorts the older before the younger; without a date (a manifest) by name."""
        return self.created, self.name


def item_of(source: Declared) -> Item:
    """Return an object with its content at hand."""
    content: Content = source.content
    status = source.state.status if isinstance(source.state, Known) else None
    return Item(source.kind, source.name, content.spec, content.created, content.generation, status)


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


@dataclass(frozen=True, slots=True)
class GatewayWorld:
    """All objects. `now` in seconds since the epoch, for certificates."""

    items: Mapping[IngressKind, tuple[Item, ...]]
    labels: Mapping[str, Mapping[str, str]]
    """Of namespaces."""
    services: Mapping[ObjectName, BackendService]
    secrets: Mapping[ObjectName, Secret]
    authorities: Mapping[ObjectName, Mapping[str, str]] = field(default_factory=dict)
    """ConfigMaps."""
    bundles: Mapping[str, str] = field(default_factory=dict)
    """ClusterTrustBundles: certificates in PEM, by name."""
    now: float = 0.0
    refusals: Mapping[ObjectName, Refusal] = field(default_factory=dict)
    """By Service what of it is not connected to."""

    @property
    def is_pooled(self) -> bool:
        """Whether Gateways have addresses by Services: `vipwire up` has a range for them."""
        return POOL in self.authorities

    def assigned(self, gateway: "Item") -> BackendService | None:
        """Find the Service from which a Gateway has its addresses."""
        for name, service in self.services.items():
            if name.namespace == gateway.name.namespace and service.annotations.get(GATEWAY) == gateway.name.name:
                return service
        return None

    def all(self, kind: IngressKind) -> tuple[Item, ...]:
        """Return all objects of a kind, the oldest first."""
        return self.items.get(kind, ())


def world_of(snapshot: Snapshot, now: float) -> GatewayWorld:
    """Take the objects out of a snapshot."""
    kinds = (
        IngressKind.GATEWAY_CLASS,
        IngressKind.GATEWAY,
        IngressKind.LISTENER_SET,
        IngressKind.REFERENCE_GRANT,
        IngressKind.BACKEND_TLS_POLICY,
        *POLICY_KINDS,
        *ROUTE_KINDS,
    )
    items = {kind: _by_age(snapshot.declared(kind).values()) for kind in kinds}
    namespaces = snapshot.declared(IngressKind.NAMESPACE)
    labels = {name.name: each.content.labels for name, each in namespaces.items()}
    maps = {name: each.content.spec for name, each in snapshot.declared(IngressKind.CONFIG_MAP).items()}
    found = snapshot.declared(IngressKind.CLUSTER_TRUST_BUNDLE)
    bundles = {name.name: each.content.spec.trust_bundle for name, each in found.items()}
    return GatewayWorld(items, labels, snapshot.services, snapshot.secrets, maps, bundles, now, snapshot.refusals)


def _by_age(found: Iterable[Declared]) -> tuple[Item, ...]:
    return tuple(sorted(map(item_of, found), key=lambda each: each.age))
