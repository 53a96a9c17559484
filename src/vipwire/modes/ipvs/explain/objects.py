"""All objects of ipvs mode, arranged by kind for the walk of a packet. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Self

from vipwire.linux.netlink.ipset import IpsetEntry, IpsetSpec, SetType
from vipwire.linux.netlink.ipvs import Forwarding, RealServer, Scheduling, VirtualServer
from vipwire.model.net import Address, Family, Prefix
from vipwire.modes.ipvs.objects.names import (
    Ipset,
    MarkRule,
    Object,
    ObjectKey,
    RangeRule,
    Rules,
    SetEntry,
    Vip,
    VipRoute,
    describe_element,
)
from vipwire.modes.ipvs.objects.ranges import must_precede
from vipwire.modes.xtables.match import ListedRule, Lookup, PacketHeader, Surroundings, compare_rules
from vipwire.modes.xtables.save import BUILT_IN, ChainName
from vipwire.reconcile.steps import Effect, ObjectState, Step, Verdict, compare_object

_Place = tuple[Address, int, int]


@dataclass(slots=True)
class KernelObjects:
    """The kernel's objects, observed or wanted. Observed real servers keep the kernel's order."""

    chains: dict[ChainName, Rules] = field(default_factory=dict)
    sets: dict[str, IpsetSpec] = field(default_factory=dict)
    elements: dict[str, dict[IpsetEntry, int]] = field(default_factory=dict)
    ranges: dict[tuple[str, _Place], list[Prefix]] = field(default_factory=dict)
    servers: dict[VirtualServer, Scheduling] = field(default_factory=dict)
    reals: dict[VirtualServer, dict[RealServer, Forwarding]] = field(default_factory=dict)
    vips: set[Address] = field(default_factory=set)
    marks: set[int] = field(default_factory=set)
    routes: set[Address] = field(default_factory=set)

    @classmethod
    def of(cls, objects: Mapping[ObjectKey, Object]) -> Self:
        held = cls()
        for key, value in objects.items():
            held._put_object(key, value)
        shared = [key for key in objects if isinstance(key, RangeRule)]
        for rule in sorted(shared, key=lambda rule: rule.stray or not must_precede(rule.words)):
            chain = ChainName(rule.table, rule.chain)
            if chain in held.chains:
                held.chains[chain] += (rule.words,)
        return held

    def _put_object(self, key: ObjectKey, value: Object) -> None:
        match key, value:
            case RealServer(), Forwarding():
                self.reals.setdefault(key.server, {})[key] = value
            case VirtualServer(), Scheduling():
                self.servers[key] = value
            case SetEntry(name, element), int(mark):
                self.elements.setdefault(name, {})[element] = mark
                if isinstance(element.other, Prefix):
                    place = element.address, element.protocol, element.port
                    self.ranges.setdefault((name, place), []).append(element.other)
            case Ipset(name), IpsetSpec():
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
            case VipRoute(address):
                self.routes.add(address)

    def find(self, name: str, addresses: tuple[Address, ...], protocol: int, port: int) -> IpsetEntry | None:
        """Find the element of a set that matches a packet.

        `addresses` are compared with the element's address fields: one or two, as the set's type says.
        """
        spec = self.sets.get(name)
        held = self.elements.get(name)
        if spec is None or not held or not addresses:
            return None
        first, last = addresses[0], addresses[-1]
        if spec.type is SetType.ADDRESS_PORT_PREFIX:
            for prefix in self.ranges.get((name, (first, protocol, port)), ()):
                if last in prefix:
                    return IpsetEntry(first, protocol, port, prefix)
            return None
        wanted = {
            SetType.ADDRESS: IpsetEntry(first),
            SetType.PORT: IpsetEntry(port=port),
            SetType.ADDRESS_PORT: IpsetEntry(first, protocol, port),
            SetType.ADDRESS_PORT_ADDRESS: IpsetEntry(first, protocol, port, last),
        }[spec.type]
        return wanted if wanted in held else None


@dataclass(frozen=True, slots=True)
class IpvsNode(Surroundings):
    """One family of this node: its observed and wanted objects, and its own addresses."""

    family: Family
    held: KernelObjects
    wanted: KernelObjects
    own: frozenset[Address] = frozenset()

    def owns_address(self, address: Address) -> bool:
        return address in self.held.vips or address in self.own

    def list_rules(self, table: str, chain: str, header: PacketHeader) -> Iterable[ListedRule] | None:
        """List the rules of a chain; None if the kernel and the plan both lack the chain."""
        del header
        key = ChainName(table, chain)
        if chain not in BUILT_IN and key not in self.held.chains and key not in self.wanted.chains:
            return None
        strange = ObjectState.DIFFERENT if key in self.wanted.chains else ObjectState.FOREIGN
        return compare_rules(self.held.chains.get(key), self.wanted.chains.get(key, ()), strange)

    def look_up(self, name: str, fields: str, header: PacketHeader) -> Lookup | None:
        """Look an element up in a set, observed or planned; None if the packet's fields are unknown."""
        if name not in self.held.sets and name not in self.wanted.sets:
            return None
        addresses, protocol = _select_addresses(fields, header), header.packet.protocol
        if addresses is None:
            return None
        found = self.held.find(name, addresses, protocol, header.port)
        if found is not None:
            held, wanted = self.held.elements[name], self.wanted.elements.get(name, {})
            return Lookup(
                found=True,
                mark=held[found],
                steps=(_describe_element(name, found, compare_object(found, held, wanted)),),
            )
        missing = self.wanted.find(name, addresses, protocol, header.port)
        return Lookup(
            found=False, steps=() if missing is None else (_describe_element(name, missing, ObjectState.MISSING),)
        )


def _describe_element(name: str, element: IpsetEntry, state: ObjectState) -> Step:
    effects = () if state is ObjectState.MISSING else (Effect(Verdict.MEET),)
    return Step("", f"ipset {name}", describe_element(element), state, effects)


def _select_addresses(fields: str, header: PacketHeader) -> tuple[Address, ...] | None:
    """Return the packet's addresses for a set's fields; None for fields that ipvs mode's sets lack.

    The second field belongs to the port. A client's port is unknown and belongs to no Service, so it matches nothing.
    """
    words = fields.split(",")
    if not set(words) <= {"src", "dst"}:
        return None
    if len(words) > 1 and words[1] == "src":
        return ()
    chosen = {"src": header.source, "dst": header.destination}
    return tuple(chosen[word] for index, word in enumerate(words) if index != 1)
