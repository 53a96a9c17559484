"""Plans the Service of each Gateway for `vipwire gateway --services`, and writes it with its EndpointSlices. Pure.

The cluster gives each Service an address, and all ports at that address belong to one Gateway. The Service forwards
each port to a node port that no other Gateway has, so a dozen Gateways can have port 80. The Service's target port
records the node port, so that all replicas listen at the same one, also after a restart. vipwire serves a listener
once the Service has its target port.

A Service has no selector, for vipwire's Pods are in another namespace. Its EndpointSlices are copies of those of the
Service that selects the Pods, with other ports, so that the cluster's controllers decide which Pods are ready.
Traffic stays on the node where it arrives, since HAProxy runs there too, and keeps the client's address.
"""

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from vipwire.kube.gateway_addresses import GATEWAY, OF_CONTROLLER, name_label, service_name
from vipwire.model.names import ObjectName
from vipwire.model.net import format_address
from vipwire_l7.gateway.plan.address_pool import list_requested_addresses
from vipwire_l7.gateway.plan.kinds.objects import Gateway, GatewaySetting, GatewayWorld
from vipwire_l7.gateway.plan.listeners import OVER_LIMIT, Listener
from vipwire_l7.gateway.watch import wire
from vipwire_l7.watch.objects import BackendEndpoint, BackendService, BackendSlice, Json, Usability

Place = tuple[int, bool]
"""A port, and whether its protocol is UDP."""
_PROTOCOLS = ("HTTP", "HTTPS", "TLS", "TCP", "UDP")


@dataclass(frozen=True, slots=True)
class OwnService:
    """The Service that a Gateway needs. `targets` are the node ports, `asked` the address that the Gateway names."""

    name: ObjectName
    gateway: ObjectName
    targets: Mapping[Place, int]
    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    asked: str = ""

    @property
    def families(self) -> tuple[str, ...]:
        """The family of the address that the Gateway names; both families where it names none."""
        return () if not self.asked else ("IPv6" if ":" in self.asked else "IPv4",)


@dataclass(frozen=True, slots=True)
class ServiceState:
    """The state of a Gateway's Service: its addresses, its target ports, and its problem, "" for none.

    `reason` is the condition's reason for the problem.
    """

    addresses: tuple[str, ...] = ()
    targets: Mapping[Place, int] = field(default_factory=dict)
    lacks: str = ""
    reason: str = "AddressNotAssigned"


class OwnServices:
    """The Services of all Gateways of a plan. Gateways keep their node ports before others choose."""

    def __init__(self, world: GatewayWorld, setting: GatewaySetting, gateways: Iterable[Gateway]) -> None:
        self._world, self._setting = world, setting
        self._known = {each.name: dict(_list_target_ports(self.find_service(each))) for each in gateways}
        """The target ports of each Gateway's existing Service."""
        self._taken = {target for found in self._known.values() for target in found.values()}
        self._claimed = set[int]()
        self.wanted: dict[ObjectName, OwnService] = {}

    def find_service(self, gateway: Gateway) -> BackendService | None:
        """Return the Gateway's Service, or None if a Service of that name belongs to another owner."""
        found = self._world.services.get(self.name_service(gateway))
        mine = {GATEWAY: gateway.name.name, OF_CONTROLLER: self._setting.controller}
        return found if found is not None and mine.items() <= found.annotations.items() else None

    @staticmethod
    def name_service(gateway: Gateway) -> ObjectName:
        return ObjectName(gateway.name.namespace, service_name(gateway.name.name, gateway.spec.gateway_class_name))

    def plan_service(self, gateway: Gateway, listeners: Iterable[Listener]) -> ServiceState:
        places = dict.fromkeys(each.place for each in listeners if _is_valid(each))
        name, found = self.name_service(gateway), self.find_service(gateway)
        if found is None and self._world.services.get(name) is not None:
            return ServiceState(lacks=f"the Service {name} belongs to another owner")
        if not places:
            return ServiceState()
        known = self._known.get(gateway.name, {})
        targets = {place: self._choose_node_port(known.get(place)) for place in places}
        if not all(targets.values()):
            return ServiceState(lacks="all node ports are in use (--service-ports)")
        more = gateway.spec.infrastructure
        asked = next(iter(list_requested_addresses(gateway)), "")
        self.wanted[name] = OwnService(name, gateway.name, targets, more.labels, more.annotations, asked)
        served = {place: target for place, target in targets.items() if known.get(place) == target}
        if found is None or not found.balanced:
            reason = "AddressNotUsable" if asked else "AddressNotAssigned"
            text = f"the cluster has not assigned {asked[:80] or 'an address'} to the Service {name} yet"
            return ServiceState((), served, text, reason)
        return ServiceState(found.balanced, served)

    def _choose_node_port(self, known: int | None) -> int:
        """Choose a node port: `known` if it is free, else another; 0 if there is none."""
        numbers = self._setting.service_ports
        if known is None or known not in numbers or known in self._claimed:
            known = next((number for number in numbers if number not in self._taken), 0)
        self._taken.add(known)
        self._claimed.add(known)
        return known


def _list_target_ports(service: BackendService | None) -> Iterator[tuple[Place, int]]:
    for each in (*service.ports, *service.udp_ports) if service is not None else ():
        if each.target is not None:
            yield (each.number, each.udp), each.target


def _is_valid(listener: Listener) -> bool:
    is_valid = 0 < listener.port < 65536 and listener.spec.protocol in _PROTOCOLS
    return is_valid and listener.accepted.reason != OVER_LIMIT


MANAGED_BY: Final = "vipwire-gateway"


def write_service(service: OwnService, uid: str, version: str, controller: str) -> Json:
    """Write a Gateway's Service. `uid` and `version` belong to the Gateway."""
    asked: Json = {"loadBalancerIP": service.asked, "ipFamilies": list(service.families)} if service.asked else {}
    policy = "SingleStack" if service.asked else "PreferDualStack"
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {
            "name": service.name.name,
            "namespace": service.name.namespace,
            "labels": {**service.labels, **name_label(service.gateway.name)},
            "annotations": {**service.annotations, GATEWAY: service.gateway.name, OF_CONTROLLER: controller},
            "ownerReferences": [_write_owner_reference(service, uid, version)],
        },
        "spec": {
            "type": "LoadBalancer",
            "externalTrafficPolicy": "Local",
            "ipFamilyPolicy": policy,
            **asked,
            "ports": [
                {
                    "name": _name_port(port, is_udp=is_udp),
                    "port": port,
                    "protocol": "UDP" if is_udp else "TCP",
                    "targetPort": target,
                }
                for (port, is_udp), target in service.targets.items()
            ],
        },
    }


def is_as_wanted(there: BackendService | None, service: OwnService) -> bool:
    """Report whether the fields that vipwire sets have the wanted values."""
    if there is None:
        return False
    found = {(each.number, each.udp): each.target for each in (*there.ports, *there.udp_ports)}
    return found == service.targets and service.annotations.items() <= there.annotations.items()


def name_slices(service: OwnService) -> str:
    return f"{service.name.name[:50]}-"


def copy_slices(service: OwnService, pods: Iterable[BackendSlice]) -> Iterator[BackendSlice]:
    tcp = {_name_port(port, is_udp=False): target for (port, udp), target in service.targets.items() if not udp}
    udp = {_name_port(port, is_udp=True): target for (port, udp), target in service.targets.items() if udp}
    for each in pods:
        name = f"{name_slices(service)}{hashlib.sha256(f'{service.name} {each.name}'.encode()).hexdigest()[:10]}"
        made = ObjectName(service.name.namespace, name)
        yield BackendSlice(made, service.name, each.family, tcp, each.endpoints, udp)


def write_slice(of: BackendSlice, service: OwnService, uid: str, version: str) -> Json:
    ports = [("TCP", each) for each in of.ports.items()] + [("UDP", each) for each in of.udp_ports.items()]
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {
            "name": of.name.name,
            "namespace": of.name.namespace,
            "labels": {
                "kubernetes.io/service-name": of.service.name,
                "endpointslice.kubernetes.io/managed-by": MANAGED_BY,
            },
            "ownerReferences": [_write_owner_reference(service, uid, version)],
        },
        "addressType": of.family.value,
        "endpoints": [_write_endpoint(each) for each in of.endpoints],
        "ports": [{"name": name, "port": port, "protocol": protocol} for protocol, (name, port) in ports],
    }


def _write_endpoint(endpoint: BackendEndpoint) -> Json:
    conditions = {
        "ready": endpoint.use is Usability.READY,
        "serving": endpoint.use is not Usability.NOT_READY,
        "terminating": endpoint.use is Usability.DRAINING,
    }
    node = {"nodeName": endpoint.node} if endpoint.node else {}
    return {"addresses": [format_address(endpoint.address)], "conditions": conditions, **node}


def list_copied_fields(slices: Iterable[BackendSlice]) -> set[tuple[object, ...]]:
    """Return the fields that vipwire sets, to compare slices by."""
    return {
        (
            each.name,
            each.family,
            tuple(sorted(each.ports.items())),
            tuple(sorted(each.udp_ports.items())),
            tuple(sorted((format_address(one.address), one.use.value, one.node) for one in each.endpoints)),
        )
        for each in slices
    }


def _name_port(port: int, *, is_udp: bool) -> str:
    return f"{'udp' if is_udp else 'tcp'}-{port}"


def _write_owner_reference(service: OwnService, uid: str, version: str) -> Json:
    return {
        "apiVersion": f"{wire.GROUP}/{version}",
        "kind": "Gateway",
        "name": service.gateway.name,
        "uid": uid,
        "controller": True,
    }
