"""What becomes of later packets of a connection: does a flowtable take them past the rules? Pure."""

from collections.abc import Mapping, Sequence

from vipwire.model.net import Protocol
from vipwire.modes.nftables.explain.table import Run, Table
from vipwire.modes.nftables.table.fastpath import ENTRY, FASTPATH, KEY, packets_of
from vipwire.modes.nftables.table.names import Chain, Object, ObjectKey
from vipwire.plan.resolve import Packet
from vipwire.reconcile.explainer import ObjectState, Step


def offloading(table: Table, packet: Packet, runs: Sequence[Run]) -> tuple[Step, ...]:
    """Say after how many packets a forwarded connection is offloaded; nothing where it never is."""
    forwarded = any(each.target and each.target[0] not in table.own for each in runs)
    if packet.protocol is not Protocol.TCP or packet.from_node or not forwarded:
        return ()
    found, wanted = _packets(table.observed), _packets(table.wanted)
    if not found and not wanted:
        return ()
    name = f"flowtable {FASTPATH}"
    if not found:
        return (Step(name, "", "is missing here: all packets meet the rules", ObjectState.MISSING),)
    state = ObjectState.PLANNED if found == wanted else ObjectState.DIFFERENT
    return (Step(name, "", f"carries the connection past all rules after {found} packets", state),)


def _packets(objects: Mapping[ObjectKey, Object]) -> int:
    entry = objects.get(ENTRY) if KEY in objects else None
    return packets_of(entry) if isinstance(entry, Chain) else 0
