"""The chains and sets of ipvs mode as one packet meets them, for `modes.xtables.traversal`. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass

from vipwire.linux.netlink.ipset import Element
from vipwire.model.net import Address, Family
from vipwire.modes.ipvs.explain.objects import KernelObjects
from vipwire.modes.ipvs.objects.describe import describe_element
from vipwire.modes.ipvs.objects.names import ChainName
from vipwire.modes.xtables.match import Header, Listed, Lookup, Surroundings, compare_rules
from vipwire.modes.xtables.save import BUILT_IN
from vipwire.reconcile.steps import Effect, ObjectState, Step, Verdict, state_of


@dataclass(frozen=True, slots=True)
class Node(Surroundings):
    """One family of this node: its observed and wanted objects, and its own addresses."""

    family: Family
    held: KernelObjects
    wanted: KernelObjects
    own: frozenset[Address] = frozenset()

    def owns(self, address: Address) -> bool:
        """Report whether an address is this node's, VIPs included."""
        return address in self.held.vips or address in self.own

    def rules(self, table: str, chain: str, header: Header) -> Iterable[Listed] | None:
        """List a chain; None if it is neither there nor planned."""
        del header
        key = ChainName(table, chain)
        if chain not in BUILT_IN and key not in self.held.chains and key not in self.wanted.chains:
            return None
        strange = ObjectState.DIFFERENT if key in self.wanted.chains else ObjectState.FOREIGN
        return compare_rules(self.held.chains.get(key), self.wanted.chains.get(key, ()), strange)

    def look_up(self, name: str, fields: str, header: Header) -> Lookup | None:
        """Look an element up in a set; return what was found or should have been, or None where that is unknown."""
        if name not in self.held.sets and name not in self.wanted.sets:
            return None
        addresses, protocol = _addresses(fields, header), header.packet.protocol
        if addresses is None:
            return None
        found = self.held.find(name, addresses, protocol, header.port)
        if found is not None:
            held, wanted = self.held.elements[name], self.wanted.elements.get(name, {})
            return Lookup(found=True, mark=held[found], steps=(_element(name, found, state_of(found, held, wanted)),))
        missing = self.wanted.find(name, addresses, protocol, header.port)
        return Lookup(found=False, steps=() if missing is None else (_element(name, missing, ObjectState.MISSING),))


def _element(name: str, element: Element, state: ObjectState) -> Step:
    effects = () if state is ObjectState.MISSING else (Effect(Verdict.MEET),)
    return Step("", f"ipset {name}", describe_element(element), state, effects)


def _addresses(fields: str, header: Header) -> tuple[Address, ...] | None:
    """Choose what a set's addresses are compared with; None for words that sets do not have.

    The second field is the port's. Of the client's port nothing is known; it is of no Service, so nothing is found.
    """
    words = fields.split(",")
    if not set(words) <= {"src", "dst"}:
        return None
    if len(words) > 1 and words[1] == "src":
        return ()
    chosen = {"src": header.source, "dst": header.destination}
    return tuple(chosen[word] for index, word in enumerate(words) if index != 1)
