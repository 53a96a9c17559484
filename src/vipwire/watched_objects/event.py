"""The events of a source of objects: an API server, a folder of manifests, a store in this process.

Events know nothing of what they carry but its name, so that whoever reads other kinds than a service proxy (DNS,
Ingress) has the same sources: `EventOf[K, T]` tells of objects `T` whose kinds are the enum `K`. `Event`, `Kind` and
`Object` without a word before them are the proxy's.
"""

import enum
from typing import Final, Generic, Protocol, TypeAlias, TypeVar

from vipwire.model.endpoint import EndpointSlice
from vipwire.model.names import ObjectName
from vipwire.model.node import Node, ServiceCIDR
from vipwire.model.problem import Problem
from vipwire.model.service import Service
from vipwire.model.value import Value


class Named(Protocol):
    """An object as far as an event looks at it; what stands in no namespace may be called by a plain text."""

    @property
    def name(self) -> ObjectName | str:
        """Its name, unlike that of any other object of the kind."""


K = TypeVar("K", bound=enum.Enum)
"""The kinds that somebody reads: an enum whose values are the kinds in a manifest."""
T = TypeVar("T", bound=Named)
"""The objects that somebody reads."""
K_co = TypeVar("K_co", bound=enum.Enum, covariant=True)
T_co = TypeVar("T_co", bound=Named, covariant=True)
"""The same, of values that are only read: what tells of Services tells of objects."""

Object: TypeAlias = Service | EndpointSlice | Node | ServiceCIDR


class Kind(enum.Enum):
    """The kinds of objects that a service proxy reads; the value is the kind in a manifest."""

    __hash__ = object.__hash__  # enum's own hashes the name, in Python, at each look-up of a key

    SERVICE = "Service"
    ENDPOINT_SLICE = "EndpointSlice"
    NODE = "Node"
    SERVICE_CIDR = "ServiceCIDR"


_KINDS: Final = dict(zip((Service, EndpointSlice, Node, ServiceCIDR), Kind, strict=True))


def kind_of(item: Object) -> Kind:
    """Return the kind of an object of the proxy's."""
    return _KINDS[type(item)]


class Listed(Value, Generic[K_co, T_co], frozen=True):
    """All objects of a kind: any other does not exist. Ends the wait for that kind at start."""

    kind: K_co
    objects: tuple[T_co, ...]
    problems: tuple[Problem, ...] = ()


class Upserted(Value, Generic[T_co], frozen=True):
    """An object was added or changed."""

    object: T_co
    problems: tuple[Problem, ...] = ()


class Deleted(Value, Generic[K_co], frozen=True):
    """An object is gone, or has become one that is not read (for the proxy: headless, another's, invalid)."""

    kind: K_co
    name: ObjectName
    problems: tuple[Problem, ...] = ()


EventOf: TypeAlias = Listed[K, T] | Upserted[T] | Deleted[K]
Event: TypeAlias = EventOf[Kind, Object]
