"""Keeps the virtual server of a mark that its frontend lost, until its open connections have ended.

A new traffic policy can take a pool or a mark from a frontend, and IPVS drops packets of connections without a
virtual server. So vipwire sets the weights to 0. An element of a set that no rule reads marks the virtual server as
vipwire's across restarts.
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
    """The draining virtual servers of one family, each with its scheduling and the set element that names it."""

    def __init__(self, family: Family, terminating: GracefulTermination) -> None:
        self._terminating = terminating
        self._sets = {set_name(family, which): which for which in MARKING}
        self._names = {True: set_name(family, Set.RANGES), False: set_name(family, Set.RANGES_LOCAL)}
        self._entries: dict[VirtualServer, SetEntry] = {}
        self._scheduling: dict[VirtualServer, Scheduling] = {}

    def __contains__(self, key: ObjectKey) -> bool:
        return key in self._entries or key in self._entries.values()

    def clear(self) -> None:
        self._entries.clear()
        self._scheduling.clear()

    def take_back(self, parts: DeltaByKind) -> None:
        """Turn additions of virtual servers that still drain into changes."""
        for server in [each for each in parts.servers.added if each in self._entries]:
            parts.servers.changed[server] = (self._scheduling[server], parts.servers.added.pop(server))
            self._forget(server, parts)

    def begin(self, parts: DeltaByKind, left: Mapping[ObjectKey, Object], masquerade: int) -> None:
        """Take the virtual servers that should drain out of the removals."""
        drains = {real.server for real in parts.reals.removed} | {real.server for real in self._terminating}
        gone = [
            (entry, mark) for entry, mark in parts.entries.removed.items() if mark and self._stays(entry, parts, left)
        ]
        gone += [(entry, old) for entry, (old, _) in parts.entries.changed.items() if entry.set in self._sets]
        # The first port of a range is a frontend, too: keep only marks of the range.
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
        """Report whether a frontend that loses this mark is still served by other means."""
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
        """Return the removals of virtual servers whose connections have ended, and forget them."""
        parts, busy = DeltaByKind(), {real.server for real in self._terminating}
        for server in [each for each in self._entries if each not in busy]:
            parts.servers.removed[server] = self._scheduling[server]
            self._forget(server, parts)
        return parts
