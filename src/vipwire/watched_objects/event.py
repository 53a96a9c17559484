"""The events of a source of objects: an API server, a folder of manifests, a store in this process.

Events know only the names of their objects, so readers of other kinds (DNS, Ingress) have the same sources:
`EventOf[K, T]` is about objects `T` whose kinds are the enum `K`. `Event`, `Kind` and `Object` alone are the proxy's.
"""

import enum
from typing import Final, Generic, Protocol, TypeAlias, TypeVar

from vipwire.model.names import ObjectName
from vipwire.model.node import Node, ServiceCIDR
from vipwire.model.problem import Problem
from vipwire.model.service import EndpointSlice, Service
from vipwire.model.value import Value


class Named(Protocol):
    """An object for events; cluster-scoped objects may use a plain string as name."""

    @property
    def name(self) -> ObjectName | str: ...


K = TypeVar("K", bound=enum.Enum)
"""The kinds that a program reads: an enum whose values are the kinds in a manifest."""
T = TypeVar("T", bound=Named)
"""The objects that a program reads."""
K_co = TypeVar("K_co", bound=enum.Enum, covariant=True)
T_co = TypeVar("T_co", bound=Named, covariant=True)
"""The same, covariant: a source of Services is a source of objects."""

Object: TypeAlias = Service | EndpointSlice | Node | ServiceCIDR


class Kind(enum.Enum):
    """The kinds of objects that a service proxy reads; the value is the kind in a manifest."""

    __hash__ = object.__hash__  # enum's own hashes the name in Python at each look-up of a key

    SERVICE = "Service"
    ENDPOINT_SLICE = "EndpointSlice"
    NODE = "Node"
    SERVICE_CIDR = "ServiceCIDR"


_KINDS: Final = dict(zip((Service, EndpointSlice, Node, ServiceCIDR), Kind, strict=True))


def kind_of(item: Object) -> Kind:
    return _KINDS[type(item)]


class Listed(Value, Generic[K_co, T_co], frozen=True):
    """All objects of a kind; others do not exist. Ends the wait for that kind at start."""

    kind: K_co
    objects: tuple[T_co, ...]
    problems: tuple[Problem, ...] = ()


class Upserted(Value, Generic[T_co], frozen=True):
    """An object was added or changed."""

    object: T_co
    problems: tuple[Problem, ...] = ()


class Deleted(Value, Generic[K_co], frozen=True):
    """An object was deleted, or is no longer read (for the proxy: headless, another proxy's, invalid)."""

    kind: K_co
    name: ObjectName
    problems: tuple[Problem, ...] = ()


EventOf: TypeAlias = Listed[K, T] | Upserted[T] | Deleted[K]
Event: TypeAlias = EventOf[Kind, Object]
