"""The controllers, each named once: the hooks that allocate, and what runs beside the API server."""

import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from vipwire.kube.errors import ApiError
from vipwire_up.api.admission import Admission
from vipwire_up.api.change import Options
from vipwire_up.api.kinds.service_cidr import SERVICE_CIDRS
from vipwire_up.api.objects.object import key_of
from vipwire_up.api.registry import Registry
from vipwire_up.controllers.allocation.addresses import Addresses
from vipwire_up.controllers.allocation.hook import ServiceAllocation
from vipwire_up.controllers.allocation.node_ports import NodePorts
from vipwire_up.controllers.allocation.port_notes import PortNotes
from vipwire_up.controllers.allocation.ranges import Range, port_range
from vipwire_up.controllers.default_class import DefaultIngressClass
from vipwire_up.controllers.endpoints.namesakes import NamesakeDeletion
from vipwire_up.controllers.endpoints.workloads import Workloads
from vipwire_up.controllers.exec_probes import ExecProbeAdmission
from vipwire_up.controllers.node_restriction import NodeRestriction
from vipwire_up.store.record import StoreError
from vipwire_up.store.store import Store

NODE_PORTS: Final = port_range(30000, 32767)
FIRST_CIDR: Final = "kubernetes"
"""The name of the ServiceCIDR that a cluster begins with."""


@dataclass(frozen=True, slots=True)
class Ranges:
    """The ranges to allocate from: `services` is a CIDR, or one of each family, the default family first."""

    services: tuple[str, ...] = ("10.96.0.0/16", "fd00:10:96::/112")
    node_ports: Range = NODE_PORTS


def hooks(store: Store, clock: Callable[[], datetime], ranges: Ranges) -> Sequence[Admission]:
    """Build the hooks of a registry over a store."""
    draw = secrets.randbelow
    notes = PortNotes(store)
    ports = NodePorts(store, ranges.node_ports, draw, notes.holder)
    allocation = ServiceAllocation(Addresses(store, draw), ports, notes, clock)
    refusing = (NodeRestriction(), ExecProbeAdmission())
    return (allocation, Workloads(clock), *refusing, NamesakeDeletion(store, clock), DefaultIngressClass(store))


async def make_first_cidr(registry: Registry, ranges: Ranges) -> None:
    """Create the first ServiceCIDR unless one of its name exists."""
    if registry.store.read(key_of(SERVICE_CIDRS, "", FIRST_CIDR)) is not None:
        return
    body = {"metadata": {"name": FIRST_CIDR}, "spec": {"cidrs": list(ranges.services)}}
    try:
        await registry.create(SERVICE_CIDRS, "", body, Options(manager="vipwire"))
    except ApiError as error:
        if error.reason != "AlreadyExists":  # another server was first
            raise StoreError(error.message) from error
