"""nftables mode for people: its objects as `nft` writes them, and a packet's way through the observed table.

The table's rules decide by chance which slot of a pool a connection gets. So the walk is done once for each slot; the
ways are the same but for the slot's own elements, and are shown as one.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from fractions import Fraction

from vipwire.backends.nftables import text
from vipwire.backends.nftables.names import TABLE, Object, ObjectKey
from vipwire.backends.nftables.walk import Run, Table, run
from vipwire.model.net import Address, Family
from vipwire.netlink.nftables import decode, encode
from vipwire.netlink.nftables.elements import Element, decode_elements
from vipwire.netlink.nftables.wire import NFPROTO, Kind
from vipwire.netlink.socket import NETLINK_NETFILTER, NetlinkSocket
from vipwire.plan.resolve import Packet
from vipwire.reconcile.delta import Delta
from vipwire.reconcile.explainer import End, ObjectState, Step, Walk

_MEMORY = "affinity"
_SHOWN = 4
"""Slots whose elements are shown; of the others only how many there are."""


class NftablesExplainer:
    """Explains the table `vipwire` of one family, in the network namespace of the calling thread."""

    def __init__(self, family: Family) -> None:
        self.family = family

    def script(self, delta: Delta[ObjectKey, Object], *, anew: bool = False) -> Iterable[str]:
        """Write a difference as commands of nft; `anew`: without the table that is there."""
        name = text.table_name(self.family)
        first = [f"delete table {name}"] if anew else []
        return [*first, *(line for command in text.script(self.family, delta) for line in command.splitlines())]

    def remains(self) -> str:
        """Say that the table exists where nothing of our layout was seen in it."""
        with closing(NetlinkSocket(NETLINK_NETFILTER)) as netlink:
            tables = [decode.table(payload) for payload in netlink.dump(Kind.GETTABLE, encode.list_tables())]
        if any(table.name == TABLE and table.family == NFPROTO[self.family] for table in tables):
            return f"table {text.table_name(self.family)} was made by another version of vipwire, or by somebody else"
        return ""

    def walk(
        self,
        observed: Mapping[ObjectKey, Object],
        wanted: Mapping[ObjectKey, Object],
        packet: Packet,
        own: frozenset[Address] = frozenset(),
    ) -> Walk:
        """Follow a packet through the table."""
        memory = self._memory() if observed else {}
        return walk(self.family, observed, wanted, packet, own, memory)

    def _memory(self) -> dict[bytes, Element]:
        """Read what session affinity remembers."""
        request = encode.list_elements(self.family, TABLE, _MEMORY)
        length = 24 if self.family is Family.IPV4 else 48
        found: dict[bytes, Element] = {}
        try:
            with closing(NetlinkSocket(NETLINK_NETFILTER)) as netlink:
                for payload in netlink.dump(Kind.GETSETELEM, request):
                    found.update((each.key, each) for each in decode_elements(payload, length - 8, 4))
        except OSError:  # it goes while it is read: then nothing is remembered
            return {}
        return found


def walk(
    family: Family,
    observed: Mapping[ObjectKey, Object],
    wanted: Mapping[ObjectKey, Object],
    packet: Packet,
    own: frozenset[Address] = frozenset(),
    memory: Mapping[bytes, Element] | None = None,
) -> Walk:
    """Follow a packet through these objects. Pure."""
    if not observed:
        missing = Step(f"table {text.table_name(family)}", "", "does not exist", ObjectState.MISSING)
        return Walk(End.UNTOUCHED, (missing,))
    fresh = Table(family, observed, wanted, own=own)
    first = run(fresh, packet)
    runs = [first, *(run(fresh, packet, choice) for choice in range(1, first.modulus))]
    remembered = _remembered(fresh, packet, memory or {})
    steps = (*_missing(fresh), *_merged(runs))
    end = _end(runs)
    if any(each.uncertain for each in runs):
        end = End.UNKNOWN
    shares: dict[tuple[Address, int] | None, Fraction] | None = None
    if any(each.target for each in runs):
        counted = Counter(None if each.verdict else each.target for each in runs)
        shares = {target: Fraction(count, len(runs)) for target, count in counted.items()}
    masqueraded = frozenset(each.target[0] for each in runs if each.target and each.masqueraded)
    return Walk(end, steps, shares, masqueraded, remembered)


def _end(runs: Sequence[Run]) -> End:
    if any(each.target and not each.verdict for each in runs):
        return End.ANSWERED
    return {"drop": End.DROPPED, "reject": End.REJECTED}.get(runs[0].verdict, End.UNTOUCHED)


def _remembered(table: Table, packet: Packet, memory: Mapping[bytes, Element]) -> tuple[Address, int, float] | None:
    """Find the endpoint that session affinity holds for this client, if it does."""
    known = {key: element.data or b"" for key, element in memory.items()}
    if not known:
        return None
    port = packet.port.to_bytes(2) + bytes(2)
    key = packet.source + packet.destination + bytes((packet.protocol, 0, 0, 0)) + port
    if key not in known:
        return None
    bound = run(Table(table.family, table.observed, table.wanted, known, table.own), packet)
    if bound.target is None:
        return None
    return (*bound.target, memory[key].expiration / 1000)


def _missing(table: Table) -> list[Step]:
    """Name the base chains that should be and are not: no packet can meet them."""
    return [
        Step(f"chain {key[1].decode()}", "", "does not exist", ObjectState.MISSING)
        for key, value in table.wanted.items()
        if key not in table.observed and getattr(value, "hook", None) is not None
    ]


def _merged(runs: Sequence[Run]) -> list[Step]:
    """Put the steps of all slots into one list: what is the same once, what is a slot's own one below the other.

    A slot that leads elsewhere than most (its element is missing) has its way told behind all others.
    """
    usual = next((each for each in runs if each.target and not each.verdict), runs[0])
    alike = [each for each in runs if (each.verdict, bool(each.target)) == (usual.verdict, bool(usual.target))]
    merged = list(usual.steps)
    place = 0
    for each in alike[:_SHOWN]:
        place = _merge(merged, each.steps) or place
    if len(alike) > _SHOWN and place:
        more = f"{len(alike) - _SHOWN} more like these"
        merged.insert(place, Step(merged[place - 1].object, "", more, ObjectState.PLANNED))
    for number, each in enumerate(runs):
        if each not in alike:
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
