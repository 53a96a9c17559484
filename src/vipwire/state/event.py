"""What a source of objects says. An API server and a folder of manifests say the same things."""

import enum
from dataclasses import dataclass
from typing import TypeAlias

from vipwire.model.endpoint import EndpointSlice
from vipwire.model.names import ObjectName
from vipwire.model.node import Node, ServiceCIDR
from vipwire.model.problem import Problem
from vipwire.model.service import Service

Object: TypeAlias = Service | EndpointSlice | Node | ServiceCIDR


class Kind(enum.Enum):
    """The kinds of objects that a service proxy reads; the value is the kind in a manifest."""

    SERVICE = "Service"
    ENDPOINT_SLICE = "EndpointSlice"
    NODE = "Node"
    SERVICE_CIDR = "ServiceCIDR"


@dataclass(frozen=True, slots=True)
class Listed:
    """All objects of a kind: what is not among them does not exist. Ends the wait for that kind at start."""

    kind: Kind
    objects: tuple[Object, ...]
    problems: tuple[Problem, ...] = ()


@dataclass(frozen=True, slots=True)
class Upserted:
    """An object was added or changed."""

    object: Object
    problems: tuple[Problem, ...] = ()


@dataclass(frozen=True, slots=True)
class Deleted:
    """An object is gone, or has become one that is not proxied (headless, another proxy's, invalid as a whole)."""

    kind: Kind
    name: ObjectName
    problems: tuple[Problem, ...] = ()


Event: TypeAlias = Listed | Upserted | Deleted
