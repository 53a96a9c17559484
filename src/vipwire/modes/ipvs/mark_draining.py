"""Keeps the virtual servers of marks that a frontend no longer has, until their open connections have ended.

A change of a traffic policy takes its second pool from a frontend, or gives it another mark. IPVS drops packets of a
connection whose virtual server is gone. So that one stays without weights. An element of a set that no rule reads
says that it is ours, for the next process as well. Of a frontend that goes, everything goes.
"""

from collections.abc import Mapping
from typing import Final

from vipwire.linux.netlink.ipvs import Scheduling, VirtualServer
from vipwire.model.net import Address, Family
from vipwire.modes.ipvs.objects.names import MARKING, Object, ObjectKey, Set, SetEntry, set_name
from vipwire.modes.ipvs.objects.parts import DeltaByKind
from vipwire.modes.ipvs.termination import GracefulTermination

_FOR_INSIDE: Final = frozenset({Set.DIRECT_RETURN, Set.RANGES})


class DrainingMarks:
    """The virtual servers of one family that drain, each with its scheduling and the element that names it."""

    def __init__(self, family: Family, terminating: GracefulTermination) -> None:
        self._terminating = terminating
        self._sets = {set_name(family, which): which for which in MARKING}
        self._names = {True: set_name(family, Set.RANGES), False: set_name(family, Set.RANGES_LOCAL)}
        self._entries: dict[VirtualServer, SetEntry] = {}
        self._scheduling: dict[VirtualServer, Scheduling] = {}

    def __contains__(self, key: ObjectKey) -> bool:
        return key in self._entries or key in self._entries.values()

    def clear(self) -> None:
        """Forget all."""
        self._entries.clear()
        self._scheduling.clear()

    def take_back(self, parts: DeltaByKind) -> None:
        """Have what is wanted again changed instead of added."""
        for server in [each for each in parts.servers.added if each in self._entries]:
            parts.servers.changed[server] = (self._scheduling[server], parts.servers.added.pop(server))
            self._forget(server, parts)

    def begin(self, parts: DeltaByKind, left: Mapping[ObjectKey, Object], masquerade: int) -> None:
        """Take what is to drain out of what is removed."""
        drains = {real.server for real in parts.reals.removed} | {real.server for real in self._terminating}
        gone = [
            (entry, mark) for entry, mark in parts.entries.removed.items() if mark and self._stays(entry, parts, left)
        ]
        gone += [(entry, old) for entry, (old, _) in parts.entries.changed.items() if entry.set in self._sets]
        # At the first port of a range, only what the range itself has is used.
        for entry, mark in sorted(gone, key=lambda each: each[0].set not in self._names.values()):
            named = SetEntry(self._names[self._sets[entry.set] in _FOR_INSIDE], entry.element)
            used = named in left and named not in parts.entries.removed
            if used or named in parts.entries.added:
                continue
            for each in (mark, mark ^ masquerade):
                server = VirtualServer(0, Address(b""), 0, each)
                if server in parts.servers.removed and server in drains:
                    self._keep(server, named, mark, parts)

    def _stays(self, entry: SetEntry, parts: DeltaByKind, left: Mapping[ObjectKey, Object]) -> bool:
        """Report whether a frontend whose mark goes is still served in another way."""
        place = entry.element
        server = VirtualServer(place.protocol, place.address, place.port)
        others = (SetEntry(name, place) for name in self._sets)
        return entry.set in self._sets and (
            (server in left and server not in parts.servers.removed)
            or any(
                each in parts.entries.added or (each in left and each not in parts.entries.removed) for each in others
            )
        )

    def _keep(self, server: VirtualServer, named: SetEntry, mark: int, parts: DeltaByKind) -> None:
        self._scheduling[server], self._entries[server] = parts.servers.removed.pop(server), named
        parts.entries.removed.pop(named, None)
        parts.entries.added[named] = mark

    def _forget(self, server: VirtualServer, parts: DeltaByKind) -> None:
        entry = self._entries.pop(server)
        del self._scheduling[server]
        if entry not in self._entries.values() and entry not in parts.entries.added:
            parts.entries.removed[entry] = 0

    def ended(self) -> DeltaByKind:
        """Give up what has no open connections any more; return what is to be removed."""
        parts, busy = DeltaByKind(), {real.server for real in self._terminating}
        for server in [each for each in self._entries if each not in busy]:
            parts.servers.removed[server] = self._scheduling[server]
            self._forget(server, parts)
        return parts
