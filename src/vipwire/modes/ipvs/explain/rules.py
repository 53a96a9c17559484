"""The chains and sets of ipvs mode as one packet meets them, for `modes.xtables.traversal`. Pure."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from vipwire.model.net import Address, Family
from vipwire.modes.ipvs.explain.objects import KernelObjects
from vipwire.modes.ipvs.objects.describe import describe_element
from vipwire.modes.ipvs.objects.names import ChainName
from vipwire.modes.xtables.match import Header, Lookup, Surroundings
from vipwire.modes.xtables.save import BUILT_IN
from vipwire.modes.xtables.traversal import Listed
from vipwire.reconcile.explainer import ObjectState, Step


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
        return self._listed(key)

    def _listed(self, key: ChainName) -> Iterator[Listed]:
        rules, wanted = self.held.chains.get(key), self.wanted.chains.get(key, ())
        if rules is None:
            if wanted:
                yield Listed("", ObjectState.MISSING)
            return
        yield from (Listed(text, planned(text in wanted)) for text in rules)
        yield from (Listed(text, ObjectState.MISSING) for text in wanted if text not in rules)

    def look_up(self, name: str, fields: str, header: Header) -> Lookup | None:
        """Look an element up in a set; return what was found or should have been, or None where that is unknown."""
        if name not in self.held.sets and name not in self.wanted.sets:
            return None
        addresses, protocol = _addresses(fields, header), header.packet.protocol
        if addresses is None:
            return None
        found = self.held.find(name, addresses, protocol, header.port)
        missing = self.wanted.find(name, addresses, protocol, header.port)
        if found is not None:
            mark, known = self.held.elements[name][found], found in self.wanted.elements.get(name, ())
            step = Step(f"ipset {name}", describe_element(found), "is met", planned(known))
            return Lookup(found=True, mark=mark, steps=(step,))
        if missing is None:
            return Lookup(found=False)
        effect = "is missing, so the packet does not meet it"
        return Lookup(
            found=False, steps=(Step(f"ipset {name}", describe_element(missing), effect, ObjectState.MISSING),)
        )


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


def planned(same: bool) -> ObjectState:  # noqa: FBT001 - the question is in the name
    """Return the state of something observed: as planned or not."""
    return ObjectState.PLANNED if same else ObjectState.DIFFERENT
