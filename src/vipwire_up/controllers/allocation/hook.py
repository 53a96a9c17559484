"""Admission hook: allocates addresses and ports when a Service is created or changed, and frees them at its end.

    create   families, ClusterIPs, node ports, health check node port
    update   the same for new fields
    delete   everything is freed

Addresses are recorded in the store. Ports are recorded in memory, with an undo for writes that fail, and also in the
store if other servers write to it.
"""

from collections.abc import Callable
from datetime import datetime
from typing import Final

from vipwire.model.times import format_time
from vipwire_up.api.admission import AdmissionRequest, Admitted, Operation
from vipwire_up.api.kinds.service import SERVICES
from vipwire_up.api.kinds.service_rules import (
    NONE,
    changes_addresses,
    check_cluster_ips,
)
from vipwire_up.api.objects.addresses import family_of
from vipwire_up.api.objects.errors import internal_error, not_valid
from vipwire_up.api.objects.resource import Object
from vipwire_up.controllers.allocation.addresses import Addresses
from vipwire_up.controllers.allocation.families import fill_families
from vipwire_up.controllers.allocation.node_ports import NodePorts, allocated_ports_of, owner_of
from vipwire_up.controllers.allocation.port_notes import PortNotes
from vipwire_up.store.record import Step

_VIRTUAL: Final = ("ClusterIP", "NodePort", "LoadBalancer")


class ServiceAllocation:
    """The hook. `clock` returns the creation time of IPAddresses."""

    def __init__(
        self, addresses: Addresses, ports: NodePorts, notes: PortNotes, clock: Callable[[], datetime]
    ) -> None:
        self._addresses, self._ports, self._notes, self._clock = addresses, ports, notes, clock

    def admit(self, attempt: AdmissionRequest) -> Admitted | None:
        """Allocate for a Service, or free unused addresses and ports. Raise ApiError with Kubernetes' messages."""
        if attempt.resource is not SERVICES or attempt.subresource:
            return None
        self._ports.read_other_servers_changes()
        if attempt.operation is Operation.DELETE:
            old = attempt.old or {}
            also: tuple[Step, ...] = self._addresses.free(old, _cluster_ips_of(old))
            also += tuple(self._notes.delete_notes(owner_of(old), allocated_ports_of(old)))
            return Admitted(also, self._ports.free(old, allocated_ports_of(old)))
        new, before = attempt.new or {}, attempt.old or {"spec": {}, "metadata": {}}
        if changes_addresses(new["spec"], before["spec"]):
            return None  # the validation that follows refuses it
        if wrong := tuple(check_cluster_ips(new["spec"])):
            raise not_valid("Service", "", attempt.name, wrong)
        return self._allocate_for_service(new, before)

    def _allocate_for_service(self, new: Object, old: Object) -> Admitted:
        also: tuple[Step, ...] = ()
        if new["spec"].get("type") in _VIRTUAL:
            self._fill_families(new, old["spec"])
            also = self._addresses.allocate(new, format_time(self._clock()))
        undo_ports = self._ports.allocate(new)
        left = set(_cluster_ips_of(old)) - set(_cluster_ips_of(new))
        also += self._addresses.free(new, left)
        also += tuple(self._notes.write_notes(owner_of(new), allocated_ports_of(new)))
        also += tuple(self._notes.delete_notes(owner_of(new), allocated_ports_of(old) - allocated_ports_of(new)))
        undo_freed = self._ports.free(new, allocated_ports_of(old) - allocated_ports_of(new))

        def undo() -> None:
            undo_freed()
            undo_ports()

        return Admitted(also, undo)

    def _fill_families(self, new: Object, old: Object) -> None:
        available = self._addresses.available_families() or tuple(old.get("ipFamilies") or ())
        if not available and new["spec"].get("clusterIP") != NONE:
            raise internal_error("failed to allocate a serviceIP: there is no ServiceCIDR that is ready")
        causes = fill_families(new["spec"], available, old)
        if causes:
            raise not_valid("Service", "", new["metadata"]["name"], causes)


def _cluster_ips_of(service: Object) -> tuple[str, ...]:
    addresses = (service.get("spec") or {}).get("clusterIPs") or ()
    return tuple(address for address in addresses if family_of(address))
