"""The kinds that decide which machine announces an address, read from the store or an API server. Pure."""

import enum
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeAlias, TypeVar

from msgspec import Struct, field

from vipwire.kube import wire
from vipwire.kube.lease import find_duration, find_holder
from vipwire.kube.resource import Resource
from vipwire.model.names import ObjectName
from vipwire.model.problem import Problem
from vipwire.watched_objects.event import Deleted, EventOf, Listed
from vipwire_up.announcing.balanced import is_announced_class, status_addresses

FROM: Final = "announce.vipwire.io/from"
INTERFACE: Final = "announce.vipwire.io/interface"
"""Annotations of a Service: labels of machines that may announce its addresses, and the interface to use."""
EXCLUDED: Final = "node.kubernetes.io/exclude-from-external-load-balancers"
LEASE_INTERFACES: Final = "vipwire.io/interface"
LEASE_BEGUN: Final = "vipwire.io/renewed"
"""Annotation of a machine's Lease: a random name of the process, and its clock when the renewal began."""
LEASE_LEAVING: Final = "vipwire.io/leaving"
"""Annotation of a machine's Lease: the machine hands its addresses over and takes none."""
LEASE_ADDRESS: Final = "vipwire.io/address"
MACHINES: Final = "vipwire-announcer-"
ADDRESSES: Final = "vipwire-address-"
"""Prefixes of Leases in kube-system: of announcing machines, and of addresses."""
SYSTEM: Final = "kube-system"


class AnnounceKind(enum.Enum):
    """The kinds that are read; the value is the kind in a manifest."""

    SERVICE = "Service"
    SLICE = "EndpointSlice"
    NODE = "Node"
    LEASE = "Lease"


@dataclass(frozen=True, slots=True)
class Balanced:
    """A LoadBalancer Service of vipwire. `wanted` are labels of machines; `local` needs a local endpoint."""

    name: ObjectName
    addresses: tuple[str, ...]
    local: bool
    interface: str
    wanted: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Placed:
    """The Nodes with ready endpoints in a slice."""

    name: ObjectName
    service: ObjectName
    nodes: frozenset[str]


@dataclass(frozen=True, slots=True)
class Machine:
    """A Node, Ready or not; `excluded` by the label that keeps a Node out of load balancers."""

    name: str
    ready: bool
    labels: frozenset[tuple[str, str]]
    excluded: bool


@dataclass(frozen=True, slots=True)
class Held:
    """A Lease of a machine or of an address; `holder` is "" for none.

    `begun` is when a machine began to write the Lease, by the clock of the process named `life`.
    """

    name: ObjectName
    holder: str
    seconds: float
    version: str
    interface: str
    address: str
    life: str = ""
    begun: float = 0.0
    leaving: bool = False


Object: TypeAlias = Balanced | Placed | Machine | Held
T = TypeVar("T")
Found: TypeAlias = tuple[T | None, tuple[Problem, ...]]
"""The object, None if it does not matter here, and the problems found in it."""


class Followed(Generic[T]):
    """The Services, each as a T, the endpoints and the Nodes that a source reports."""

    def __init__(self) -> None:
        self.services: dict[ObjectName, T] = {}
        self.slices: dict[ObjectName, Placed] = {}
        self.machines: dict[str, Machine] = {}
        self.listed = set[AnnounceKind]()

    def apply_event(self, event: EventOf[AnnounceKind, Any]) -> None:
        if isinstance(event, Listed):
            self.listed.add(event.kind)
            self._objects_of(event.kind).clear()
            for each in event.objects:
                self._put_object(each)
        elif isinstance(event, Deleted):
            self._objects_of(event.kind).pop(event.name.name if event.kind is AnnounceKind.NODE else event.name, None)
        else:
            self._put_object(event.object)

    def nodes_with_endpoints(self) -> dict[ObjectName, set[str]]:
        """Return for each Service the Nodes that have ready endpoints of the Service."""
        found: dict[ObjectName, set[str]] = {}
        for each in self.slices.values():
            found.setdefault(each.service, set()).update(each.nodes)
        return found

    def _put_object(self, value: Any) -> None:
        kinds = {Placed: AnnounceKind.SLICE, Machine: AnnounceKind.NODE}
        self._objects_of(kinds.get(type(value), AnnounceKind.SERVICE))[value.name] = value

    def _objects_of(self, kind: AnnounceKind) -> dict[Any, Any]:
        known: dict[Any, dict[Any, Any]] = {AnnounceKind.SLICE: self.slices, AnnounceKind.NODE: self.machines}
        return known.get(kind, self.services)


class Meta(wire.Meta, gc=False, rename="camel"):
    """The metadata that are read."""

    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None


class Plain(Struct, gc=False):
    """The fields that are read of any of these kinds."""

    metadata: Meta | None = None
    spec: dict[str, Any] | None = None
    status: dict[str, Any] | None = None
    endpoints: list[dict[str, Any]] | None = field(default=None)


def read_balanced_service(value: Plain) -> Found[Balanced]:
    meta, spec = value.metadata or Meta(), value.spec or {}
    whole = {"spec": spec, "status": value.status or {}}
    if not is_announced_class(whole) or not (addresses := status_addresses(whole)):
        return None, ()
    words = meta.annotations or {}
    wanted = tuple(
        (key.strip(), label.strip())
        for part in words.get(FROM, "").split(",")
        if part.strip()
        for key, _, label in (part.partition("="),)
    )
    local = spec.get("externalTrafficPolicy") == "Local"
    return Balanced(name_of(meta), tuple(addresses), local, words.get(INTERFACE, ""), wanted), ()


def read_placement(value: Plain) -> Found[Placed]:
    meta = value.metadata or Meta()
    service = (meta.labels or {}).get("kubernetes.io/service-name", "")
    if not service:
        return None, ()
    ready = (each for each in value.endpoints or () if (each.get("conditions") or {}).get("ready"))
    nodes = frozenset(str(each.get("nodeName") or "") for each in ready)
    return Placed(name_of(meta), ObjectName(meta.namespace or "", service), nodes - {""}), ()


def read_node(value: Plain) -> Found[Machine]:
    meta = value.metadata or Meta()
    conditions = (value.status or {}).get("conditions") or ()
    ready = any(each.get("type") == "Ready" and each.get("status") == "True" for each in conditions)
    labels = meta.labels or {}
    return Machine(meta.name or "", ready, frozenset(labels.items()), EXCLUDED in labels), ()


def read_lease(value: Plain) -> Found[Held]:
    meta, spec = value.metadata or Meta(), value.spec or {}
    if meta.namespace != SYSTEM or not (meta.name or "").startswith((MACHINES, ADDRESSES)):
        return None, ()
    words = meta.annotations or {}
    lease, version = {"spec": spec}, meta.resource_version or ""
    seconds, holder = find_duration(lease, 1.0), find_holder(lease)
    interface, address = words.get(LEASE_INTERFACES, ""), words.get(LEASE_ADDRESS, "")
    life, begun = _parse_start(words.get(LEASE_BEGUN, ""))
    leaving = LEASE_LEAVING in words
    return Held(name_of(meta), holder, seconds, version, interface, address, life, begun, leaving), ()


def _parse_start(text: str) -> tuple[str, float]:
    life, _, seconds = text.partition(" ")
    try:
        return life, float(seconds)
    except ValueError:
        return "", 0.0


def name_of(meta: Meta) -> ObjectName:
    return ObjectName(meta.namespace or "", meta.name or "")


SLICES: Final = Resource(AnnounceKind.SLICE, "/apis/discovery.k8s.io/v1", "endpointslices", Plain, read_placement)
NODES: Final = Resource(AnnounceKind.NODE, "/api/v1", "nodes", Plain, read_node)
RESOURCES: Final[tuple[Resource[AnnounceKind, Object], ...]] = (
    Resource(AnnounceKind.SERVICE, "/api/v1", "services", Plain, read_balanced_service),
    SLICES,
    NODES,
    Resource(AnnounceKind.LEASE, "/apis/coordination.k8s.io/v1", "leases", Plain, read_lease),
)
