"""The kinds that tell what is to be probed, and by whom; for any source of them."""

import enum
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from msgspec import Struct

from vipwire.kube import wire
from vipwire.kube.resource import Resource
from vipwire.model.names import ObjectName
from vipwire.model.problem import Problem
from vipwire_up.api.objects.resource import Object
from vipwire_up.machines.node import OWN, PROBES, is_ready


class ProbedKind(enum.Enum):
    """The kinds that are read; the value is the kind in a manifest."""

    POD = "Pod"
    NODE = "Node"


@dataclass(frozen=True, slots=True)
class Workload:
    """A Pod as the API has it, as far as probes ask; the name of its Node, "" for none."""

    name: ObjectName
    pod: Object
    node: str


@dataclass(frozen=True, slots=True)
class Machine:
    """A Node; `probes` if it is Ready and makes the probes of its own Pods."""

    name: str
    probes: bool


ProbedObject: TypeAlias = Workload | Machine


class _Meta(wire.Meta, gc=False, rename="camel"):
    annotations: dict[str, Any] | None = None


class _Plain(Struct, gc=False):
    metadata: _Meta | None = None
    spec: dict[str, Any] | None = None
    status: dict[str, Any] | None = None


def _workload(value: _Plain) -> tuple[Workload | None, tuple[Problem, ...]]:
    meta, spec = value.metadata or _Meta(), value.spec or {}
    name = ObjectName(meta.namespace or "", meta.name or "")
    about = {"name": name.name, "namespace": name.namespace, "uid": meta.uid}
    return Workload(
        name, {"metadata": about, "spec": spec, "status": value.status or {}}, str(spec.get("nodeName") or "")
    ), ()


def _machine(value: _Plain) -> tuple[Machine | None, tuple[Problem, ...]]:
    meta = value.metadata or _Meta()
    probes = (meta.annotations or {}).get(PROBES) == OWN and is_ready({"status": value.status or {}})
    return Machine(meta.name or "", probes), ()


PODS_READ: Final[Resource[ProbedKind, ProbedObject]] = Resource(ProbedKind.POD, "/api/v1", "pods", _Plain, _workload)
NODES_READ: Final[Resource[ProbedKind, ProbedObject]] = Resource(
    ProbedKind.NODE, "/api/v1", "nodes", _Plain, _machine
)
RESOURCES: Final = (PODS_READ, NODES_READ)
