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
from vipwire.reconcile.explainer import Explainer, Walk


class ScriptWriter(Protocol):
    """Writes what a sync would give to iptables-restore: the backend, after it has observed."""

    family: Family

    def script(self, delta: Delta[Key, Rules]) -> Iterable[str]:
        """Write the input of every run, in order."""


class IptablesExplainer(Explainer[Key, Rules, Table]):
    """Explains the rules of one family, in the network namespace of the calling thread."""

    def __init__(self, writer: ScriptWriter) -> None:
        super().__init__(RESTORE[writer.family])
        self._writer = writer

    def script(self, delta: Delta[Key, Rules]) -> Iterable[str]:
        """Write a difference as a sync would: the input of `iptables-restore --noflush`."""
        return [line for text in self._writer.script(delta) for line in text.splitlines()]

    def arrange(self, observed: Mapping[Key, Rules], wanted: Mapping[Key, Rules], own: frozenset[Address]) -> Table:
        """Keep the rules as they are."""
        return Table(self._writer.family, observed, wanted, own)

    def follow(self, objects: Table, packet: Packet) -> Walk:
        """Follow a packet through the rules, with what the kernel remembers of its source."""
        recent = Recent()
        return walk(objects, packet, lambda name: recent.seen(name, packet.source))
