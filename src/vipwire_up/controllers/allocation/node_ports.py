"""Node ports: one range for the ports of Services and for health checks.

A port belongs to one Service, for all protocols: a Service may use the same number for TCP and for UDP. The owners
are in memory, read from the Services at start and, if other servers allocate ports, before each use. If two servers
allocate a port at once, the store refuses one by the notes (`port_notes.py`).
"""

from collections.abc import Callable, Iterable
from typing import Final, TypeAlias

from vipwire.kube.errors import ApiError
from vipwire_up.api.kinds.service import SERVICES
from vipwire_up.api.kinds.service_rules import wants_health_check, wants_ports
from vipwire_up.api.objects.errors import internal_error, invalid, not_valid
from vipwire_up.api.objects.object import decode_damaged_record, value_at
from vipwire_up.api.objects.resource import Object
from vipwire_up.controllers.allocation.ranges import Draw, Range
from vipwire_up.store.record import CompactedError, FutureRevisionError
from vipwire_up.store.store import Store

Undo: TypeAlias = Callable[[], None]
Owner: TypeAlias = tuple[str, str]
Noted: TypeAlias = Callable[[int], Owner | None]
"""Return the Service that a port is noted for in the store."""
_PROTOCOLS: Final = 3  # of a Service port: TCP, UDP and SCTP
_TAKEN: Final = "provided port is already allocated"


class NodePorts:
    """The owner of each node port."""

    def __init__(self, store: Store, allowed: Range, draw: Draw, noted: Noted = lambda _: None) -> None:
        self._range, self._draw = allowed, draw
        self._store, self._noted = store, noted
        self._read_all()

    def _read_all(self) -> None:
        self._owners: dict[int, Owner] = {}
        self._seen = self._store.revision
        for record in self._store.scan(SERVICES.id):
            for port in allocated_ports_of(decode_damaged_record(record)):
                self._owners.setdefault(port, (record.key.namespace, record.key.name))

    def read_other_servers_changes(self) -> None:
        if not self._store.shared:
            return
        try:
            changes = self._store.changes(SERVICES.id, self._seen)
        except (CompactedError, FutureRevisionError):
            self._read_all()
            return
        self._seen = self._store.revision
        for change in changes:
            owner = (change.record.key.namespace, change.record.key.name)
            now = set[int]() if change.deleted else allocated_ports_of(decode_damaged_record(change.record))
            before = allocated_ports_of(decode_damaged_record(change.previous)) if change.previous else set[int]()
            for port in before - now:
                if self._owners.get(port) == owner:
                    del self._owners[port]
            for port in now:
                self._owners.setdefault(port, owner)

    def allocate(self, service: Object) -> Undo:
        """Fill in and take a Service's node ports. Raise ApiError and take none if one is unavailable."""
        owner, new = owner_of(service), list[int]()

        def undo() -> None:
            for port in new:
                if self._owners.get(port) == owner:  # an owner that took it again keeps it
                    del self._owners[port]

        try:
            self._fill_ports(service, owner, new)
            self._fill_health_check(service, owner, new)
        except BaseException:
            undo()
            raise
        return undo

    def free(self, service: Object, ports: Iterable[int]) -> Undo:
        owner = owner_of(service)
        held = [port for port in ports if self._owners.get(port) == owner]
        for port in held:
            del self._owners[port]

        def undo() -> None:
            self._owners.update(dict.fromkeys(held, owner))

        return undo

    def _fill_ports(self, service: Object, owner: Owner, new: list[int]) -> None:
        spec, chosen = service["spec"], dict[int, set[str]]()
        if not wants_ports(spec):
            return
        ports = [port for port in spec.get("ports") or () if isinstance(port, dict)]
        for index, port in enumerate(ports):
            if port.get("nodePort"):
                self._claim_port(service, f"spec.ports[{index}].nodePort", port["nodePort"], owner, new)
                chosen.setdefault(port["nodePort"], set()).add(port.get("protocol", "TCP"))
        before: dict[object, list[int]] = {}
        for port in ports:
            same = before.setdefault(port.get("port"), [])
            if not port.get("nodePort") and wants_node_ports(spec):
                port["nodePort"] = _find_shared_port(same, port, chosen) or self._choose_port(
                    "a nodePort", owner, new
                )
                chosen.setdefault(port["nodePort"], set()).add(port.get("protocol", "TCP"))
            if port.get("nodePort") and len(same) < _PROTOCOLS:
                same.append(port["nodePort"])

    def _fill_health_check(self, service: Object, owner: Owner, new: list[int]) -> None:
        spec = service["spec"]
        if not wants_health_check(spec):
            return
        port = spec.get("healthCheckNodePort")
        if port:
            self._claim_port(
                service, "spec.healthCheckNodePort", port, owner, new, alone=port in _node_port_numbers(spec)
            )
        else:
            spec["healthCheckNodePort"] = self._choose_port("a HealthCheck NodePort", owner, new)

    def _claim_port(
        self, service: Object, path: str, port: int, owner: Owner, new: list[int], *, alone: bool = False
    ) -> None:
        if port not in self._range:
            last = self._range.first + self._range.size - 1
            why = "provided port is not in the valid range. The range of valid ports is "
            raise _invalid_port_error(service, path, port, f"{why}{self._range.first}-{last}")
        holder = self._owners.get(port) or self._noted(port)
        if alone or holder not in (None, owner):
            raise _invalid_port_error(service, path, port, _TAKEN)
        if port not in self._owners:
            self._owners[port] = owner
            new.append(port)

    def _choose_port(self, what: str, owner: Owner, new: list[int]) -> int:
        port = self._range.choose_free_number(lambda n: n in self._owners or self._noted(n) is not None, self._draw)
        if port is None:
            raise internal_error(f"failed to allocate {what}: range is full")
        self._owners[port] = owner
        new.append(port)
        return port


def _find_shared_port(same: Iterable[int], port: Object, chosen: dict[int, set[str]]) -> int:
    """Return the node port of the same port number in another protocol, as for DNS over TCP and UDP; 0 if none."""
    return next((number for number in same if port.get("protocol", "TCP") not in chosen[number]), 0)


def owner_of(service: Object) -> Owner:
    return service["metadata"]["namespace"], service["metadata"]["name"]


def wants_node_ports(spec: Object) -> bool:
    """Report whether vipwire chooses node ports for ports that name none."""
    return spec.get("type") == "NodePort" or spec.get("allocateLoadBalancerNodePorts") is not False


def allocated_ports_of(service: Object) -> set[int]:
    spec = service.get("spec")
    if not isinstance(spec, dict):
        return set()
    check = spec.get("healthCheckNodePort")
    return _node_port_numbers(spec) | ({check} if check and isinstance(check, int) else set())


def _node_port_numbers(spec: Object) -> set[int]:
    ports = spec.get("ports")
    found = (value_at(port, "nodePort") for port in ports) if isinstance(ports, list) else ()
    return {number for number in found if number and isinstance(number, int)}


def _invalid_port_error(service: Object, path: str, port: int, why: str) -> ApiError:
    return not_valid("Service", "", service["metadata"]["name"], (invalid(path, port, why),))
