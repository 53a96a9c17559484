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
from functools import partial
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
from vipwire_up.api.objects.errors import forbidden_object
from vipwire_up.api.objects.object import decode_damaged_record, decode_record, key_of, value_at, value_encoder
from vipwire_up.api.objects.resource import Object
from vipwire_up.api.registry import Registry
from vipwire_up.api.serving.authorization import Role
from vipwire_up.controllers.allocation.addresses import Addresses
from vipwire_up.controllers.allocation.hook import ServiceAllocation
from vipwire_up.controllers.allocation.node_ports import NodePorts
from vipwire_up.controllers.allocation.port_notes import PortNotes
from vipwire_up.controllers.allocation.ranges import Range, port_range
from vipwire_up.controllers.endpoints.workloads import start_workload
from vipwire_up.controllers.node_restriction import refuse_writes_of_other_nodes
from vipwire_up.store.record import StoreError, Write
from vipwire_up.store.store import Store

_IS_DEFAULT: Final = "ingressclass.kubernetes.io/is-default-class"


def set_default_class(store: Store, attempt: AdmissionRequest) -> None:
    """Set the default class of a new Ingress."""
    new = attempt.new
    if attempt.resource is not INGRESSES or attempt.operation is not Operation.CREATE or new is None:
        return
    named = value_at(new, "spec", "ingressClassName") is not None or CLASS in (
        value_at(new, "metadata", "annotations") or {}
    )
    if not named and (name := _find_default_class(store)):
        new.setdefault("spec", {})["ingressClassName"] = name


def _find_default_class(store: Store) -> str:
    found = [(record.key.name, decode_damaged_record(record)) for record in store.scan(INGRESS_CLASSES.id)]
    marked = [
        (str(value["metadata"].get("creationTimestamp") or ""), name)
        for name, value in found
        if value_at(value, "metadata", "annotations", _IS_DEFAULT) == "true"
    ]
    newest = max((time for time, _ in marked), default="")
    return min((name for time, name in marked if time == newest), default="")


def refuse_commands(attempt: AdmissionRequest) -> None:
    """Refuse a Pod with a new command of a probe, unless an admin or a part of this process writes it."""
    if attempt.resource is not PODS or attempt.operation is Operation.DELETE or attempt.new is None:
        return
    caller = attempt.caller
    if caller is None or Role.ADMIN.value in caller.groups:
        return
    before = list(_probe_commands(attempt.old))
    for command in _probe_commands(attempt.new):
        if command not in before:
            why = f'User "{caller.name}" cannot set the command of a probe: only the role admin may'
            raise forbidden_object(PODS.id, attempt.name, why)


def _probe_commands(pod: Object | None) -> Iterator[tuple[object, object]]:
    containers = value_at(pod, "spec", "containers")
    for each in containers if isinstance(containers, list) else ():
        if (command := value_at(each, "readinessProbe", "exec", "command")) is not None:
            yield value_at(each, "name"), command


def delete_endpoints_of_service(
    store: Store, clock: Callable[[], datetime], attempt: AdmissionRequest
) -> Admitted | None:
    """Delete the Endpoints of a deleted Service. `clock` is for those with finalizers, which are only marked."""
    if attempt.resource is not SERVICES or attempt.operation is not Operation.DELETE:
        return None
    record = store.head(key_of(ENDPOINTS, attempt.namespace, attempt.name))
    if record is None:
        return None
    value = decode_record(record)
    stays = mark_deleted(ENDPOINTS, value, clock(), grace=None, propagation="")
    return Admitted((Write(record.key, value_encoder(value), record.revision, deletes=not stays),))


NODE_PORTS: Final = port_range(30000, 32767)
FIRST_CIDR: Final = "kubernetes"
"""The name of a cluster's first ServiceCIDR."""


@dataclass(frozen=True, slots=True)
class Ranges:
    """The ranges to allocate from: `services` is a CIDR, or one of each family, the default family first."""

    services: tuple[str, ...] = ("10.96.0.0/16", "fd00:10:96::/112")
    node_ports: Range = NODE_PORTS


def build_hooks(store: Store, clock: Callable[[], datetime], ranges: Ranges) -> Sequence[Admission]:
    draw = secrets.randbelow
    notes = PortNotes(store)
    ports = NodePorts(store, ranges.node_ports, draw, notes.holder_of_port)
    allocation = ServiceAllocation(Addresses(store, draw), ports, notes, clock)
    with_store = (partial(delete_endpoints_of_service, store, clock), partial(set_default_class, store))
    return (
        allocation.admit,
        partial(start_workload, clock),
        refuse_writes_of_other_nodes,
        refuse_commands,
        *with_store,
    )


async def create_first_service_cidr(registry: Registry, ranges: Ranges) -> None:
    if registry.store.read(key_of(SERVICE_CIDRS, "", FIRST_CIDR)) is not None:
        return
    body = {"metadata": {"name": FIRST_CIDR}, "spec": {"cidrs": list(ranges.services)}}
    try:
        await registry.create(SERVICE_CIDRS, "", body, Options(manager="vipwire"))
    except ApiError as error:
        if error.reason != "AlreadyExists":  # another server created it first
            raise StoreError(error.message) from error
