"""Decides which Service each Gateway has under `vipwire gateway --services`, and where its listeners are. Pure.

A cluster gives the Service its address, and all ports at that address are the Gateway's own. The Service leads to
the nodes that run us, each of its ports to one that no other Gateway has: so a dozen of Gateways have port 80. The
Service itself says which, as its target port, so that all replicas listen alike, and after a restart too: a listener
is served once the Service says where.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from vipwire.kube.gateway_addresses import GATEWAY, OF_CONTROLLER, service_name
from vipwire.model.names import ObjectName
from vipwire_l7.gateway.plan.address_pool import named
from vipwire_l7.gateway.plan.kinds.objects import Gateway, GatewaySetting, GatewayWorld
from vipwire_l7.gateway.plan.listeners import Listener
from vipwire_l7.watch.objects import BackendService

Place = tuple[int, bool]
"""A port, and whether it is one of UDP."""
_PROTOCOLS = ("HTTP", "HTTPS", "TLS", "TCP", "UDP")


@dataclass(frozen=True, slots=True)
class OwnService:
    """The Service that a Gateway is to have. `targets` are the ports of nodes, `asked` the address that it names."""

    name: ObjectName
    gateway: ObjectName
    targets: Mapping[Place, int]
    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    asked: str = ""

    @property
    def families(self) -> tuple[str, ...]:
        """The family of the address that is asked for; both where none is."""
        return () if not self.asked else ("IPv6" if ":" in self.asked else "IPv4",)


@dataclass(frozen=True, slots=True)
class Standing:
    """How a Gateway's Service stands: its addresses, where it leads to already, and what it lacks, "" for nothing."""

    addresses: tuple[str, ...] = ()
    targets: Mapping[Place, int] = field(default_factory=dict)
    lacks: str = ""


class OwnServices:
    """The Services of all Gateways of a plan; who had a port keeps it before others choose."""

    def __init__(self, world: GatewayWorld, setting: GatewaySetting, gateways: Iterable[Gateway]) -> None:
        self._world, self._setting = world, setting
        self._known = {each.name: dict(_targets(self.there(each))) for each in gateways}
        """By Gateway, the ports that its Service leads to."""
        self._taken = {target for found in self._known.values() for target in found.values()}
        self._claimed = set[int]()
        self.wanted: dict[ObjectName, OwnService] = {}
        """By name."""

    def there(self, gateway: Gateway) -> BackendService | None:
        """Find the Service of a Gateway; another's of its name is none."""
        found = self._world.services.get(self.name_of(gateway))
        mine = {GATEWAY: gateway.name.name, OF_CONTROLLER: self._setting.controller}
        return found if found is not None and mine.items() <= found.annotations.items() else None

    @staticmethod
    def name_of(gateway: Gateway) -> ObjectName:
        """Name the Service of a Gateway."""
        return ObjectName(gateway.name.namespace, service_name(gateway.name.name, gateway.spec.gateway_class_name))

    def add(self, gateway: Gateway, listeners: Iterable[Listener]) -> Standing:
        """Add a Gateway's Service for its listeners, and say how that stands."""
        places = dict.fromkeys(each.place for each in listeners if _is_real(each))
        name, found = self.name_of(gateway), self.there(gateway)
        if found is None and self._world.services.get(name) is not None:
            return Standing(lacks=f"the Service {name} is not this Gateway's")
        if not places:
            return Standing()
        known = self._known.get(gateway.name, {})
        targets = {place: self._target(known.get(place)) for place in places}
        if not all(targets.values()):
            return Standing(lacks="no port of nodes is left (--service-ports)")
        more = gateway.spec.infrastructure
        asked = next(iter(named(gateway)), "")
        self.wanted[name] = OwnService(name, gateway.name, targets, more.labels, more.annotations, asked)
        served = {place: target for place, target in targets.items() if known.get(place) == target}
        if found is None or not found.balanced:
            return Standing((), served, f"the Service {name} has no address yet: the cluster gives it")
        return Standing(found.balanced, served)

    def _target(self, known: int | None) -> int:
        """Choose a port of nodes: the one before, if it is free, else another; 0 if there is none."""
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
    return 0 < listener.port < 65536 and listener.spec.protocol in _PROTOCOLS
