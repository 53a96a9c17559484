"""nftables mode for people: its objects as `nft` writes them, and a packet's way through the observed table.

The table's rules decide by chance which slot of a pool a connection gets. So the walk is done once for each slot; the
ways are the same but for the slot's own elements, and are shown as one.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from fractions import Fraction
from types import MappingProxyType

from vipwire.linux.netlink.nftables import encode
from vipwire.linux.netlink.nftables.elements import Element, decode_elements
from vipwire.linux.netlink.nftables.wire import MessageType
from vipwire.linux.netlink.socket import NETLINK_NETFILTER, NetlinkSocket
from vipwire.model.net import Address, Family
from vipwire.modes.nftables.explain.offloading import offloading
from vipwire.modes.nftables.explain.table import Run, Table
from vipwire.modes.nftables.explain.walk import run
from vipwire.modes.nftables.table import text
from vipwire.modes.nftables.table.names import CHAIN, TABLE, Object, ObjectKey, handle_bytes
from vipwire.modes.nftables.table.read import has_table
from vipwire.plan.resolve import Packet
from vipwire.reconcile.delta import Delta
from vipwire.reconcile.explainer import End, ObjectState, Step, Walk

_SHOWN = 4
"""Slots whose elements are shown; of the others only how many there are."""


class NftablesExplainer:
    """Explains the table `vipwire` of one family, in the network namespace of the calling thread."""

    def __init__(self, family: Family) -> None:
        self.family = family
        self._table: Table | None = None

    def script(self, delta: Delta[ObjectKey, Object], *, anew: bool = False) -> Iterable[str]:
        """Write a difference as commands of nft; `anew`: without the table that is there."""
        name = text.table_name(self.family)
        first = [f"delete table {name}"] if anew else []
        return [*first, *(line for command in text.script(self.family, delta) for line in command.splitlines())]

    def script_taker(self) -> str:
        """Name nft."""
        return "nft -f -"

    def remains(self) -> str:
        """Report a table of our name in which nothing of our layout was found; "" if there is none."""
        with closing(NetlinkSocket(NETLINK_NETFILTER)) as netlink:
            there = has_table(netlink, self.family)
        name = text.table_name(self.family)
        return f"table {name} was made by another version of vipwire, or by somebody else" if there else ""

    def walk(
        self,
        observed: Mapping[ObjectKey, Object],
        wanted: Mapping[ObjectKey, Object],
        packet: Packet,
        own: frozenset[Address] = frozenset(),
    ) -> Walk:
        """Follow a packet through the table."""
        table = self._table
        if table is None or table.observed is not observed or table.wanted is not wanted or table.own != own:
            self._table = table = Table(self.family, observed, wanted, own=own)
        return walk(table, packet, self._memory(run(table, packet).asked) if observed else {})

    def _memory(self, maps: Iterable[str]) -> dict[tuple[str, bytes], Element]:
        """Read what session affinity remembers in some maps: (map, key) to the element."""
        found: dict[tuple[str, bytes], Element] = {}
        try:
            with closing(NetlinkSocket(NETLINK_NETFILTER)) as netlink:
                for name in maps:
                    request = encode.list_elements(self.family, TABLE, name)
                    for payload in netlink.dump(MessageType.GETSETELEM, request):
                        # Elements with a timeout are read by the general walk, which needs no sizes.
                        found.update(((name, each.key), each) for each in decode_elements(payload, 0, 0))
        except OSError:  # it goes while it is read: then nothing is remembered
            return {}
        return found


def walk(table: Table, packet: Packet, memory: Mapping[tuple[str, bytes], Element] = MappingProxyType({})) -> Walk:
    """Follow a packet through a table, and again with what is remembered of its client. Pure."""
    if not table.observed:
        absent = Step(f"table {text.table_name(table.family)}", "", "does not exist", ObjectState.MISSING)
        return Walk(End.UNTOUCHED, (absent,))
    runs = _runs(table, packet)
    remembered = _remembered(table, packet, memory)
    missing = _missing(table)
    steps = (*missing, *(step for step in _merged(runs) if step not in missing))
    end = _end(runs)
    if any(each.uncertain for each in runs):
        end = End.UNKNOWN
    shares: dict[tuple[Address, int] | None, Fraction] | None = None
    if any(each.target for each in runs):
        counted = Counter(None if each.verdict else each.target for each in runs)
        shares = {target: Fraction(count, len(runs)) for target, count in counted.items()}
    if end is End.ANSWERED:
        steps += offloading(table, packet, runs)
    masqueraded = frozenset(each.target[0] for each in runs if each.target and each.masqueraded)
    return Walk(end, steps, shares, masqueraded, remembered, choice=runs[0].choice)


def _end(runs: Sequence[Run]) -> End:
    if any(each.target and not each.verdict for each in runs):
        return End.ANSWERED
    return {"drop": End.DROPPED, "reject": End.REJECTED}.get(runs[0].verdict, End.UNTOUCHED)


def _runs(table: Table, packet: Packet) -> list[Run]:
    """Walk once for each slot; slots that hold the same lead the same way, so that their walk is done once only."""
    first = run(table, packet)
    if first.slot is None or first.slot[0] in table.ranges:
        return [first, *(run(table, packet, choice) for choice in range(1, first.modulus))]
    name, key = first.slot
    known: dict[Object | None, Run] = {}
    runs = []
    for choice in range(first.modulus):
        held = table.observed.get((name, key + handle_bytes(first.offset + choice)))
        if held not in known:
            known[held] = run(table, packet, choice)
        runs.append(known[held])
    return runs


def _remembered(
    table: Table, packet: Packet, memory: Mapping[tuple[str, bytes], Element]
) -> tuple[Address, int, float] | None:
    """Find the endpoint that session affinity holds for this client, if it does."""
    known = {key: each for key, each in memory.items() if key[1] == packet.source}
    if not known:
        return None
    identities = {key: element.data or b"" for key, element in known.items()}
    bound = run(table.remembering(identities), packet)
    if bound.target is None or bound.met is None:
        return None
    return (*bound.target, known[bound.met].expiration / 1000)


def _missing(table: Table) -> list[Step]:
    """Name the base chains that should be and are not: no packet can meet them."""
    names = [name for chains in table.hooked.values() for name, _ in chains]
    return [
        Step(f"chain {name}", "", "does not exist", ObjectState.MISSING)
        for name in names
        if (CHAIN, name.encode()) not in table.observed
    ]


def _merged(runs: Sequence[Run]) -> list[Step]:
    """Merge the steps of all slots: equal ones once, a slot's own ones below each other.

    A slot that leads elsewhere than most (its element is missing) has its way told behind all others.
    """
    usual = next((each for each in runs if each.target and not each.verdict), runs[0])
    alike = [each for each in runs if (each.verdict, bool(each.target)) == (usual.verdict, bool(usual.target))]
    merged = list(usual.steps)
    place = 0
    different = list({id(each): each for each in alike}.values())
    shown = len(different) if len(different) == _SHOWN + 1 else _SHOWN  # a line for one more could show that one
    for each in different[:shown]:
        place = _merge(merged, each.steps) or place
    if len(different) > shown and place:
        more = f"{len(different) - shown} more like these"
        merged.insert(place, Step(merged[place - 1].object, "", more, ObjectState.PLANNED))
    for number, each in enumerate(runs):
        if (each.verdict, bool(each.target)) != (usual.verdict, bool(usual.target)):
            merged.append(Step(f"slot {number + 1} of {len(runs)}", "", "goes another way:", ObjectState.DIFFERENT))
            merged.extend(each.steps[_common(usual.steps, each.steps) :])
    return merged


def _merge(merged: list[Step], steps: Sequence[Step]) -> int:
    """Insert the steps that are not there yet; return the place behind the last of them, 0 if there was none."""
    at = place = 0
    for step in steps:
        if step in merged[at:]:
            at = merged.index(step, at) + 1
            continue
        while at < len(merged) and merged[at].object == step.object and merged[at] not in steps:
            at += 1
        merged.insert(at, step)
        at = place = at + 1
    return place


def _common(one: Sequence[Step], other: Sequence[Step]) -> int:
    """Count the steps with which both begin."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((index for index, (left, right) in pairs if left != right), min(len(one), len(other)))
