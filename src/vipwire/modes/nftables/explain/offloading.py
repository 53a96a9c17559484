"""What becomes of later packets of a connection: does a flowtable take them past the rules? Pure."""

from collections.abc import Mapping

from vipwire.model.net import Protocol
from vipwire.modes.nftables.explain.table import Run, Table
from vipwire.modes.nftables.table.fastpath import ENTRY, FASTPATH, KEY, packets_of
from vipwire.modes.nftables.table.names import Chain, Object, ObjectKey
from vipwire.plan.resolve import Packet
from vipwire.reconcile.steps import Effect, End, ObjectState, Step, Verdict


def offloading(table: Table, packet: Packet, run: Run) -> tuple[Step, ...]:
    """Say after how many packets a forwarded connection is offloaded; nothing where it never is."""
    forwarded = run.outcome is End.ANSWERED and run.target is not None and run.target[0] not in table.own
    if packet.protocol is not Protocol.TCP or packet.from_node or not forwarded:
        return ()
    found, wanted = _packets(table.observed), _packets(table.wanted)
    if not found and not wanted:
        return ()
    name = f"flowtable {FASTPATH}"
    if not found:
        return (Step("", name, state=ObjectState.MISSING),)
    state = ObjectState.PLANNED if found == wanted else ObjectState.DIFFERENT
    return (Step("", name, "", state, (Effect(Verdict.OFFLOAD, found),)),)


def _packets(objects: Mapping[ObjectKey, Object]) -> int:
    entry = objects.get(ENTRY) if KEY in objects else None
    return packets_of(entry) if isinstance(entry, Chain) else 0
