"""The kinds that decide who announces an address, for a store in this process or an API server elsewhere. Pure."""

import enum
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from msgspec import Struct, field

from vipwire.cluster.controllers.balanced import is_ours, status_addresses
from vipwire.kube import wire
from vipwire.kube.resource import Resource
from vipwire.model.names import ObjectName
from vipwire.model.problem import Problem

FROM: Final = "announce.vipwire.io/from"
INTERFACE: Final = "announce.vipwire.io/interface"
"""Annotations of a Service: labels of the machines that may announce it, and the interface that they announce on."""
EXCLUDED: Final = "node.kubernetes.io/exclude-from-external-load-balancers"
LEASE_INTERFACES: Final = "vipwire.io/interface"
LEASE_ADDRESS: Final = "vipwire.io/address"
MACHINES: Final = "vipwire-announcer-"
ADDRESSES: Final = "vipwire-address-"
"""How Leases in kube-system begin that say that a machine announces, and who has an address."""
SYSTEM: Final = "kube-system"


class AnnounceKind(enum.Enum):
    """The kinds that are read; the value is the kind in a manifest."""

    SERVICE = "Service"
    SLICE = "EndpointSlice"
    NODE = "Node"
    LEASE = "Lease"


@dataclass(frozen=True, slots=True)
class Balanced:
    """A LoadBalancer Service of ours. `wanted` are labels of machines, `local` if only endpoints' machines may."""

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
    """A Node that is Ready, or not; `excluded` from load balancers by its label."""

    name: str
    ready: bool
    labels: frozenset[tuple[str, str]]
    excluded: bool


@dataclass(frozen=True, slots=True)
class Held:
    """A Lease of ours: of a machine or of an address. `holder` "" is nobody."""

    name: ObjectName
    holder: str
    seconds: float
    version: str
    interface: str
    address: str


Object: TypeAlias = Balanced | Placed | Machine | Held
Found: TypeAlias = tuple[Object | None, tuple[Problem, ...]]


class _Meta(wire.Meta, gc=False, rename="camel"):
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None


class _Plain(Struct, gc=False):
    metadata: _Meta | None = None
    spec: dict[str, Any] | None = None
    status: dict[str, Any] | None = None
    endpoints: list[dict[str, Any]] | None = field(default=None)


def _service(value: _Plain) -> Found:
    meta, spec = value.metadata or _Meta(), value.spec or {}
    whole = {"spec": spec, "status": value.status or {}}
    if not is_ours(whole) or not (addresses := status_addresses(whole)):
        return None, ()
    words = meta.annotations or {}
    wanted = tuple(
        (key.strip(), label.strip())
        for part in words.get(FROM, "").split(",")
        if part.strip()
        for key, _, label in (part.partition("="),)
    )
    local = spec.get("externalTrafficPolicy") == "Local"
    return Balanced(_name(meta), tuple(addresses), local, words.get(INTERFACE, ""), wanted), ()


def _slice(value: _Plain) -> Found:
    meta = value.metadata or _Meta()
    service = (meta.labels or {}).get("kubernetes.io/service-name", "")
    if not service:
        return None, ()
    ready = (each for each in value.endpoints or () if (each.get("conditions") or {}).get("ready"))
    nodes = frozenset(str(each.get("nodeName") or "") for each in ready)
    return Placed(_name(meta), ObjectName(meta.namespace or "", service), nodes - {""}), ()


def _node(value: _Plain) -> Found:
    meta = value.metadata or _Meta()
    conditions = (value.status or {}).get("conditions") or ()
    ready = any(each.get("type") == "Ready" and each.get("status") == "True" for each in conditions)
    labels = meta.labels or {}
    return Machine(meta.name or "", ready, frozenset(labels.items()), EXCLUDED in labels), ()


def _lease(value: _Plain) -> Found:
    meta, spec = value.metadata or _Meta(), value.spec or {}
    if meta.namespace != SYSTEM or not (meta.name or "").startswith((MACHINES, ADDRESSES)):
        return None, ()
    words = meta.annotations or {}
    seconds = float(spec.get("leaseDurationSeconds") or 1)
    holder, version = str(spec.get("holderIdentity") or ""), meta.resource_version or ""
    return Held(
        _name(meta), holder, seconds, version, words.get(LEASE_INTERFACES, ""), words.get(LEASE_ADDRESS, "")
    ), ()


def _name(meta: _Meta) -> ObjectName:
    return ObjectName(meta.namespace or "", meta.name or "")


RESOURCES: Final[tuple[Resource[AnnounceKind, Object], ...]] = (
    Resource(AnnounceKind.SERVICE, "/api/v1", "services", _Plain, _service),
    Resource(AnnounceKind.SLICE, "/apis/discovery.k8s.io/v1", "endpointslices", _Plain, _slice),
    Resource(AnnounceKind.NODE, "/api/v1", "nodes", _Plain, _node),
    Resource(AnnounceKind.LEASE, "/apis/coordination.k8s.io/v1", "leases", _Plain, _lease),
)
