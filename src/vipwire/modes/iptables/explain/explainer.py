"""iptables mode for people: its objects as iptables-restore reads them, and a packet's way through the rules."""

from collections.abc import Iterable, Mapping
from typing import Protocol

from vipwire.model.net import Address, Family
from vipwire.modes.iptables.explain.walk import Table, walk
from vipwire.modes.iptables.rules.names import Key, Rules
from vipwire.modes.iptables.rules.recent import Recent
from vipwire.modes.xtables.words import RESTORE
from vipwire.plan.resolve import Packet
from vipwire.reconcile.delta import Delta
from vipwire.reconcile.explainer import Walk


class ScriptWriter(Protocol):
    """Writes what a sync would give to iptables-restore: the backend, after it has observed."""

    family: Family

    def script(self, delta: Delta[Key, Rules]) -> Iterable[str]:
        """Write the input of every run, in order."""


class IptablesExplainer:
    """Explains the rules of one family, in the network namespace of the calling thread."""

    def __init__(self, writer: ScriptWriter) -> None:
        self._writer = writer

    def script(self, delta: Delta[Key, Rules], *, anew: bool = False) -> Iterable[str]:
        """Write a difference as a sync would: the input of `iptables-restore --noflush`."""
        del anew
        return [line for text in self._writer.script(delta) for line in text.splitlines()]

    def script_taker(self) -> str:
        """Name iptables-restore, of the family."""
        return RESTORE[self._writer.family]

    def remains(self) -> str:
        """Return "": every chain of ours is read."""
        return ""

    def walk(
        self,
        observed: Mapping[Key, Rules],
        wanted: Mapping[Key, Rules],
        packet: Packet,
        own: frozenset[Address] = frozenset(),
    ) -> Walk:
        """Follow a packet through the rules."""
        recent = Recent()
        table = Table(self._writer.family, observed, wanted, own)
        return walk(table, packet, lambda name: recent.seen(name, packet.source))
