"""Prints nftables mode's objects as `nft` does, and follows a packet through the observed table.

The rules choose a slot of a pool at random, so each slot is a path.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from fractions import Fraction
from types import MappingProxyType
from typing import Final

from vipwire.linux.netlink.nftables import encode
from vipwire.linux.netlink.nftables.elements import Element, decode_elements
from vipwire.linux.netlink.nftables.wire import MessageType
from vipwire.linux.netlink.socket import NETLINK_NETFILTER, NetlinkSocket
from vipwire.model.net import Address, Family, Protocol
from vipwire.modes.inspection import Inspection
from vipwire.modes.nftables.explain.offloading import find_remarks, find_standing_remarks
from vipwire.modes.nftables.explain.table import Run, Table
from vipwire.modes.nftables.explain.walk import run_packet
from vipwire.modes.nftables.table import text
from vipwire.modes.nftables.table.fastpath import ENTRY, FASTPATH, KEY, parse_threshold
from vipwire.modes.nftables.table.names import TABLE, Chain, Object, ObjectKey, handle_bytes
from vipwire.modes.nftables.table.read import has_table
from vipwire.plan.resolve import Packet
from vipwire.reconcile.delta import Delta
from vipwire.reconcile.explainer import Explainer, Walk, merge
from vipwire.reconcile.steps import Effect, End, ObjectState, Step, Verdict


class NftablesExplainer(Explainer[ObjectKey, Object, Table]):
    """Explains the table `vipwire` of one family, in the calling thread's network namespace."""

    def __init__(self, family: Family) -> None:
        super().__init__("nft -f -")
        self.family = family

    def write_script(self, delta: Delta[ObjectKey, Object]) -> Iterable[str]:
        return (line for command in text.write_script(self.family, delta) for line in command.splitlines())

    def describe_foreign_objects(self) -> str:
        """Report a table named `vipwire` that has another layout; "" if none exists."""
        with closing(NetlinkSocket(NETLINK_NETFILTER)) as netlink:
            there = has_table(netlink, self.family)
        name = text.format_table_name(self.family)
        return f"another version of vipwire, or another program, created the table {name}" if there else ""

    def write_removal_of_foreign(self) -> Iterable[str]:
        return (f"delete table {text.format_table_name(self.family)}",)

    def arrange(
        self, observed: Mapping[ObjectKey, Object], wanted: Mapping[ObjectKey, Object], own: frozenset[Address]
    ) -> Table:
        return Table(self.family, observed, wanted, own)

    def trace(self, objects: Table, packet: Packet) -> Walk:
        """Follow a packet, with the affinity that the kernel remembers for its client."""
        return walk_table(
            objects, packet, self._read_memory(run_packet(objects, packet).asked) if objects.observed else {}
        )

    def _read_memory(self, maps: Iterable[str]) -> dict[tuple[str, bytes], Element]:
        found: dict[tuple[str, bytes], Element] = {}
        try:
            with closing(NetlinkSocket(NETLINK_NETFILTER)) as netlink:
                for name in maps:
                    request = encode.list_elements(self.family, TABLE, name)
                    for payload in netlink.dump(MessageType.GETSETELEM, request):
                        # Elements with a timeout have no fixed size: size 0 selects the general decoder.
                        found.update(((name, each.key), each) for each in decode_elements(payload, 0, 0))
        except OSError:  # the map disappeared during the read: assume no memory
            return {}
        return found


def walk_table(
    table: Table, packet: Packet, memory: Mapping[tuple[str, bytes], Element] = MappingProxyType({})
) -> Walk:
    """Follow a packet through a table without affinity, then again with the remembered affinity. Pure."""
    if not table.observed:
        absent = Step("", f"table {text.format_table_name(table.family)}", state=ObjectState.MISSING)
        return Walk(End.UNTOUCHED, (absent,))
    return merge(list(_run_all_choices(table, packet)), remembered=_find_remembered(table, packet, memory))


def _run_all_choices(table: Table, packet: Packet) -> Iterator[Run]:
    """Walk once for each slot; slots with equal contents share one walk."""
    first = run_packet(table, packet)
    alike: dict[object, list[int]] = {}
    for choice in range(first.modulus):
        held: object = choice
        if first.slot is not None and first.slot[0] not in table.ranges:
            name, key = first.slot
            held = table.observed.get((name, key + handle_bytes(first.offset + choice)))
        alike.setdefault(held, []).append(choice)
    for choices in alike.values():
        found = run_packet(table, packet, choices[0])
        found.share = Fraction(len(choices), first.modulus)
        found.steps += describe_offloading(table, packet, found)
        yield found


def _find_remembered(
    table: Table, packet: Packet, memory: Mapping[tuple[str, bytes], Element]
) -> tuple[Address, int, float] | None:
    known = {key: each for key, each in memory.items() if key[1] == packet.source}
    if not known:
        return None
    identities = {key: element.data or b"" for key, element in known.items()}
    bound = run_packet(table, packet, memory=identities)
    if bound.target is None or bound.met is None:
        return None
    return (*bound.target, known[bound.met].expiration / 1000)


def describe_offloading(table: Table, packet: Packet, run: Run) -> tuple[Step, ...]:
    """Return a step with the packet count after which the flowtable takes a forwarded connection; empty if never."""
    forwarded = run.outcome is End.ANSWERED and run.target is not None and run.target[0] not in table.own
    if packet.protocol is not Protocol.TCP or packet.from_node or not forwarded:
        return ()
    found, wanted = _find_offload_threshold(table.observed), _find_offload_threshold(table.wanted)
    if not found and not wanted:
        return ()
    name = f"flowtable {FASTPATH}"
    if not found:
        return (Step("", name, state=ObjectState.MISSING),)
    state = ObjectState.PLANNED if found == wanted else ObjectState.DIFFERENT
    return (Step("", name, "", state, (Effect(Verdict.OFFLOAD, found),)),)


def _find_offload_threshold(objects: Mapping[ObjectKey, Object]) -> int:
    entry = objects.get(ENTRY) if KEY in objects else None
    return parse_threshold(entry) if isinstance(entry, Chain) else 0


INSPECTION: Final = Inspection(lambda family, _mode: NftablesExplainer(family), find_remarks, find_standing_remarks)
