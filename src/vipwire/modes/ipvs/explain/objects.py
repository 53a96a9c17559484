"""All objects of ipvs mode, arranged for looking up what a packet meets. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Self

from vipwire.linux.netlink.ipset import Element, SetSpec, SetType
from vipwire.linux.netlink.ipvs import Forwarding, RealServer, Scheduling, VirtualServer
from vipwire.model.net import Address, Prefix
from vipwire.modes.ipvs.objects.names import (
    ChainName,
    Entry,
    MarkRule,
    Object,
    ObjectKey,
    RangeRule,
    Route,
    Rules,
    SetName,
    Vip,
)
from vipwire.modes.ipvs.objects.ranges import leads

_Place = tuple[Address, int, int]


@dataclass(slots=True)
class KernelObjects:
    """The kernel's objects, observed or wanted. Observed real servers are in the kernel's order."""

    chains: dict[ChainName, Rules] = field(default_factory=dict)
    sets: dict[str, SetSpec] = field(default_factory=dict)
    elements: dict[str, dict[Element, int]] = field(default_factory=dict)
    ranges: dict[tuple[str, _Place], list[Prefix]] = field(default_factory=dict)
    servers: dict[VirtualServer, Scheduling] = field(default_factory=dict)
    reals: dict[VirtualServer, dict[RealServer, Forwarding]] = field(default_factory=dict)
    vips: set[Address] = field(default_factory=set)
    marks: set[int] = field(default_factory=set)
    routes: set[Address] = field(default_factory=set)

    @classmethod
    def of(cls, objects: Mapping[ObjectKey, Object]) -> Self:
        """Arrange objects."""
        held = cls()
        for key, value in objects.items():
            held._put(key, value)
        shared = [key for key in objects if isinstance(key, RangeRule)]
        for rule in sorted(shared, key=lambda rule: rule.stray or not leads(rule.words)):
            chain = ChainName(rule.table, rule.chain)
            if chain in held.chains:
                held.chains[chain] += (rule.words,)
        return held

    def _put(self, key: ObjectKey, value: Object) -> None:
        match key, value:
            case RealServer(), Forwarding():
                self.reals.setdefault(key.server, {})[key] = value
            case VirtualServer(), Scheduling():
                self.servers[key] = value
            case Entry(name, element), int(mark):
                self.elements.setdefault(name, {})[element] = mark
                if isinstance(element.other, Prefix):
                    place = element.address, element.protocol, element.port
                    self.ranges.setdefault((name, place), []).append(element.other)
            case SetName(name), SetSpec():
                self.sets[name] = value
            case _:
                self._put_place(key, value)

    def _put_place(self, key: ObjectKey, value: Object) -> None:
        match key:
            case ChainName():
                self.chains[key] = value if isinstance(value, tuple) else ()  # type: ignore[assignment]
            case Vip(address):
                self.vips.add(address)
            case MarkRule(mark):
                self.marks.add(mark)
            case Route(address):
                self.routes.add(address)

    def find(self, name: str, addresses: tuple[Address, ...], protocol: int, port: int) -> Element | None:
        """Find the element of a set that a packet meets; `addresses` are those that its fields are compared with.

        Which there are the set's type says: one, and where it has two, a second one.
        """
        spec = self.sets.get(name)
        held = self.elements.get(name)
        if spec is None or not held or not addresses:
            return None
        first, last = addresses[0], addresses[-1]
        if spec.type is SetType.ADDRESS_PORT_PREFIX:
            for prefix in self.ranges.get((name, (first, protocol, port)), ()):
                if last in prefix:
                    return Element(first, protocol, port, prefix)
            return None
        wanted = {
            SetType.ADDRESS: Element(first),
            SetType.PORT: Element(port=port),
            SetType.ADDRESS_PORT: Element(first, protocol, port),
            SetType.ADDRESS_PORT_ADDRESS: Element(first, protocol, port, last),
        }[spec.type]
        return wanted if wanted in held else None
