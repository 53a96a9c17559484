"""Plans the Service of each Gateway for `vipwire gateway --services`, and the ports of its listeners. Pure.

The cluster gives each Service an address, and all ports at that address belong to one Gateway. The Service forwards
each port to a node port that no other Gateway has, so a dozen Gateways can have port 80. The Service's target port
records the node port, so that all replicas listen at the same one, also after a restart. vipwire serves a listener
once the Service has its target port.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from vipwire.kube.gateway_addresses import GATEWAY, OF_CONTROLLER, service_name
from vipwire.model.names import ObjectName
from vipwire_l7.gateway.plan.address_pool import list_requested_addresses
from vipwire_l7.gateway.plan.kinds.objects import Gateway, GatewaySetting, GatewayWorld
from vipwire_l7.gateway.plan.listeners import OVER_LIMIT, Listener
from vipwire_l7.watch.objects import BackendService

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
class Standing:
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
        self._known = {each.name: dict(_targets(self.there(each))) for each in gateways}
        """The target ports of each Gateway's existing Service."""
        self._taken = {target for found in self._known.values() for target in found.values()}
        self._claimed = set[int]()
        self.wanted: dict[ObjectName, OwnService] = {}

    def there(self, gateway: Gateway) -> BackendService | None:
        """Return the Gateway's Service, or None if a Service of that name belongs to another owner."""
        found = self._world.services.get(self.name_of(gateway))
        mine = {GATEWAY: gateway.name.name, OF_CONTROLLER: self._setting.controller}
        return found if found is not None and mine.items() <= found.annotations.items() else None

    @staticmethod
    def name_of(gateway: Gateway) -> ObjectName:
        return ObjectName(gateway.name.namespace, service_name(gateway.name.name, gateway.spec.gateway_class_name))

    def add(self, gateway: Gateway, listeners: Iterable[Listener]) -> Standing:
        """Add a Gateway's Service for its listeners, and return its state."""
        places = dict.fromkeys(each.place for each in listeners if _is_real(each))
        name, found = self.name_of(gateway), self.there(gateway)
        if found is None and self._world.services.get(name) is not None:
            return Standing(lacks=f"the Service {name} belongs to another owner")
        if not places:
            return Standing()
        known = self._known.get(gateway.name, {})
        targets = {place: self._target(known.get(place)) for place in places}
        if not all(targets.values()):
            return Standing(lacks="all node ports are in use (--service-ports)")
        more = gateway.spec.infrastructure
        asked = next(iter(list_requested_addresses(gateway)), "")
        self.wanted[name] = OwnService(name, gateway.name, targets, more.labels, more.annotations, asked)
        served = {place: target for place, target in targets.items() if known.get(place) == target}
        if found is None or not found.balanced:
            reason = "AddressNotUsable" if asked else "AddressNotAssigned"
            text = f"the cluster has not assigned {asked[:80] or 'an address'} to the Service {name} yet"
            return Standing((), served, text, reason)
        return Standing(found.balanced, served)

    def _target(self, known: int | None) -> int:
        """Choose a node port: `known` if it is free, else another; 0 if there is none."""
        numbers = self._setting.service_ports
        if known is None or known not in numbers or known in self._claimed:
            known = next((number for number in numbers if number not in self._taken), 0)
        self._taken.add(known)
        self._claimed.add(known)
        return known


def _targets(service: BackendService | None) -> Iterator[tuple[Place, int]]:
    for each in (*service.ports, *service.udp_ports) if service is not None else ():
        if each.target is not None:
            yield (each.number, each.udp), each.target


def _is_real(listener: Listener) -> bool:
    is_valid = 0 < listener.port < 65536 and listener.spec.protocol in _PROTOCOLS
    return is_valid and listener.accepted.reason != OVER_LIMIT
