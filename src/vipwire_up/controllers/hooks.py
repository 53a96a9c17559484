"""The registry's admission hooks, and the first ServiceCIDR.

default IngressClass   has annotation `ingressclass.kubernetes.io/is-default-class: "true"`; of several the newest
--exec-probes          commands of probes run on this machine: without the hook, the role node, which may write Pods,
                       could run any command. The role may keep an existing command, and remove it
Endpoints              of a deleted Service go in the same transaction, as in Kubernetes' API server
                       (pkg/registry/core/service/storage, afterDelete)
"""

import secrets
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from vipwire.kube.errors import ApiError
from vipwire_up.api.admission import Admission, AdmissionRequest, Admitted, Operation
from vipwire_up.api.change import Options
from vipwire_up.api.kinds.endpoints import ENDPOINTS
from vipwire_up.api.kinds.ingress import CLASS, INGRESS_CLASSES, INGRESSES
from vipwire_up.api.kinds.pod import PODS
from vipwire_up.api.kinds.service import SERVICES
from vipwire_up.api.kinds.service_cidr import SERVICE_CIDRS
from vipwire_up.api.metadata import mark_deleted
from vipwire_up.api.objects.errors import refused
from vipwire_up.api.objects.object import at, decoded, encoder, key_of, readable
from vipwire_up.api.objects.resource import Object
from vipwire_up.api.registry import Registry
from vipwire_up.api.serving.authorization import Role
from vipwire_up.controllers.allocation.addresses import Addresses
from vipwire_up.controllers.allocation.hook import ServiceAllocation
from vipwire_up.controllers.allocation.node_ports import NodePorts
from vipwire_up.controllers.allocation.port_notes import PortNotes
from vipwire_up.controllers.allocation.ranges import Range, port_range
from vipwire_up.controllers.endpoints.workloads import Workloads
from vipwire_up.controllers.node_restriction import NodeRestriction
from vipwire_up.store.record import StoreError, Write
from vipwire_up.store.store import Store

_IS_DEFAULT: Final = "ingressclass.kubernetes.io/is-default-class"


class DefaultIngressClass:
    """Sets the default class of new Ingresses."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def admit(self, attempt: AdmissionRequest) -> Admitted | None:
        new = attempt.new
        if attempt.resource is not INGRESSES or attempt.operation is not Operation.CREATE or new is None:
            return None
        named = at(new, "spec", "ingressClassName") is not None or CLASS in (at(new, "metadata", "annotations") or {})
        if not named and (name := self._name()):
            new.setdefault("spec", {})["ingressClassName"] = name
        return None

    def _name(self) -> str:
        found = [(record.key.name, readable(record)) for record in self._store.scan(INGRESS_CLASSES.id)]
        marked = [
            (str(value["metadata"].get("creationTimestamp") or ""), name)
            for name, value in found
            if at(value, "metadata", "annotations", _IS_DEFAULT) == "true"
        ]
        newest = max((time for time, _ in marked), default="")
        return min((name for time, name in marked if time == newest), default="")


class ExecProbeAdmission:
    """Refuses commands of probes from the role node."""

    def admit(self, attempt: AdmissionRequest) -> Admitted | None:
        """Refuse a Pod with a new command, unless an admin or a part of this process writes it."""
        if attempt.resource is not PODS or attempt.operation is Operation.DELETE or attempt.new is None:
            return None
        caller = attempt.caller
        if caller is None or Role.ADMIN.value in caller.groups:
            return None
        before = list(_commands(attempt.old))
        for command in _commands(attempt.new):
            if command not in before:
                why = f'User "{caller.name}" cannot set the command of a probe: only the role admin may'
                raise refused(PODS.id, attempt.name, why)
        return None


def _commands(pod: Object | None) -> Iterator[tuple[object, object]]:
    containers = at(pod, "spec", "containers")
    for each in containers if isinstance(containers, list) else ():
        if (command := at(each, "readinessProbe", "exec", "command")) is not None:
            yield at(each, "name"), command


class NamesakeDeletion:
    """Deletes the Endpoints of a deleted Service. `clock` is for Endpoints with finalizers, which are only marked."""

    def __init__(self, store: Store, clock: Callable[[], datetime]) -> None:
        self._store, self._clock = store, clock

    def admit(self, attempt: AdmissionRequest) -> Admitted | None:
        if attempt.resource is not SERVICES or attempt.operation is not Operation.DELETE:
            return None
        record = self._store.head(key_of(ENDPOINTS, attempt.namespace, attempt.name))
        if record is None:
            return None
        value = decoded(record)
        stays = mark_deleted(ENDPOINTS, value, self._clock(), grace=None, propagation="")
        return Admitted((Write(record.key, encoder(value), record.revision, deletes=not stays),))


NODE_PORTS: Final = port_range(30000, 32767)
FIRST_CIDR: Final = "kubernetes"
"""The name of a cluster's first ServiceCIDR."""


@dataclass(frozen=True, slots=True)
class Ranges:
    """The ranges to allocate from: `services` is a CIDR, or one of each family, the default family first."""

    services: tuple[str, ...] = ("10.96.0.0/16", "fd00:10:96::/112")
    node_ports: Range = NODE_PORTS


def hooks(store: Store, clock: Callable[[], datetime], ranges: Ranges) -> Sequence[Admission]:
    draw = secrets.randbelow
    notes = PortNotes(store)
    ports = NodePorts(store, ranges.node_ports, draw, notes.holder)
    allocation = ServiceAllocation(Addresses(store, draw), ports, notes, clock)
    refusing = (NodeRestriction(), ExecProbeAdmission())
    return (allocation, Workloads(clock), *refusing, NamesakeDeletion(store, clock), DefaultIngressClass(store))


async def make_first_cidr(registry: Registry, ranges: Ranges) -> None:
    if registry.store.read(key_of(SERVICE_CIDRS, "", FIRST_CIDR)) is not None:
        return
    body = {"metadata": {"name": FIRST_CIDR}, "spec": {"cidrs": list(ranges.services)}}
    try:
        await registry.create(SERVICE_CIDRS, "", body, Options(manager="vipwire"))
    except ApiError as error:
        if error.reason != "AlreadyExists":  # another server created it first
            raise StoreError(error.message) from error
