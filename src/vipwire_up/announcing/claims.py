"""Which addresses this machine has. Leases make sure that no two machines have one address at a time.

    vipwire-announcer-NODE    the machine's own Lease, renewed several times a second
    vipwire-address-ADDRESS   the holder of the address; written only when the holder changes

A machine announces its addresses until FENCE of its Lease's seconds have passed since it began its last acknowledged
renewal, by a clock that also runs while the machine sleeps. Then it falls silent.

Another machine takes the addresses only after it has seen that Lease unchanged for all of these seconds. It first
fences the old machine: it writes an empty holder into that Lease, on condition of the resourceVersion that it saw. If
the old machine renewed meanwhile, the API server refuses this write; if not, it refuses the old machine's next
renewal. A fenced machine takes each of its addresses again by a write, or finds that another machine has it.

While the store is full, the API server refuses the writes of all machines, so none can fence another. A machine then
reads its own Lease, and announces for a moment after each reading that shows its own name. When the store has space
again, the others wait longer than that moment before they fence a machine.

So the order of writes in the store decides. No machine's clock is compared with another's; only their seconds must be
equally long. A renewal may become visible late, such as one that a new leader of etcd finds in its log. So each
renewal says when it began, by a clock of its process; others count from when they saw the one before, plus the
seconds between the two.
"""

import asyncio
import ipaddress
import re
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from vipwire.kube.errors import ApiError
from vipwire.kube.lease import build_lease, find_holder, remove_holder, set_holder
from vipwire.logging import log
from vipwire.model.names import ObjectName
from vipwire.model.text import whole_number
from vipwire_up.announcing.kinds import (
    ADDRESSES,
    LEASE_ADDRESS,
    LEASE_BEGUN,
    LEASE_INTERFACES,
    LEASE_LEAVING,
    MACHINES,
    SYSTEM,
    Held,
)
from vipwire_up.api.kinds.small_kinds import LEASES
from vipwire_up.api.objects.errors import is_store_full
from vipwire_up.api.objects.resource import Object
from vipwire_up.nodes.name_claim import seconds_since_boot
from vipwire_up.nodes.objects import Objects

SECONDS: Final = 2
FENCE: Final = 0.75
RENEW_TIMEOUT: Final = 0.5
PARTS: Final = 5
"""Renewals per duration of a Lease."""
_SLOW: Final = 0.3
"""If a renewal takes this part of a Lease's duration, the store was slow, for other machines as well."""
_GRACE: Final = 0.25
"""After an outage of the store, vipwire waits for this part of a Lease's duration, so that others can renew first."""


@dataclass(slots=True)
class _Seen:
    """A machine's Lease, when it was first seen, and the earliest time at which its write can have begun."""

    lease: Held
    at: float
    since: float

    def after_renewal(self, lease: Held, now: float) -> "_Seen":
        """Return the state after a newer Lease, seen now. The Lease tells how long after this one its write began."""
        same = bool(lease.life) and lease.life == self.lease.life and lease.begun >= self.lease.begun
        return _Seen(lease, now, min(now, self.at + lease.begun - self.lease.begun) if same else now)


class Claims:
    """The Leases of addresses, and this machine's own. `clock` returns seconds and never goes back."""

    def __init__(
        self,
        objects: Objects,
        node: str,
        interface: str,
        now: Callable[[], datetime],
        *,
        clock: Callable[[], float] = seconds_since_boot,
    ) -> None:
        self._objects, self.node, self._interface, self._now = objects, node, interface, now
        self._clock = clock
        self._life = secrets.token_hex(8)
        self._own: Object | None = None
        self._unsure = False
        """Whether the outcome of the last renewal is unknown."""
        self._machines: dict[str, _Seen] = {}
        self._addresses: dict[str, Held] = {}
        self.mine: set[str] = set()
        """Addresses that this machine has taken since it was last fenced or late."""
        self.given: set[str] = set()
        """Addresses that another machine handed to this one while announcing them."""
        self._writing = asyncio.Lock()
        self._leaving = self._full = False
        self._epoch = 0
        self._interrupted = clock()
        self.until = float("-inf")
        """The time at which this machine falls silent unless it renews."""

    def may_announce(self) -> bool:
        return self._clock() < self.until

    def record_lease(self, lease: Held) -> None:
        if lease.name.name.startswith(ADDRESSES):
            if self._is_outdated(lease):
                return
            before = self.holder(lease.address)
            self._addresses[lease.address] = lease
            if lease.holder != self.node:
                self.mine.discard(lease.address)
                self.given.discard(lease.address)
            elif before not in ("", self.node):
                self.given.add(lease.address)
            return
        name = lease.name.name.removeprefix(MACHINES)
        seen = self._machines.get(name)
        if seen is None:
            self._machines[name] = _Seen(lease, self._clock(), self._clock())
        elif seen.lease != lease:
            self._machines[name] = seen.after_renewal(lease, self._clock())

    def forget_lease(self, name: str) -> None:
        """Forget a deleted Lease. The machine of a deleted Lease may still announce until it notices."""
        for address in [each for each, lease in self._addresses.items() if lease.name.name == name]:
            del self._addresses[address]
            self.mine.discard(address)

    def forget_address_leases(self) -> None:
        """Forget the Leases of addresses before a new list, but not the Leases of machines and their times."""
        self._addresses.clear()

    def machines_alive(self) -> dict[str, str]:
        """Return the machines whose Leases have not expired, with the interfaces that they announce on."""
        now = self._clock()
        found = {
            name: seen.lease.interface
            for name, seen in self._machines.items()
            if seen.lease.holder and name != self.node and now - seen.since < seen.lease.seconds
            if not seen.lease.leaving
        }
        return found | ({self.node: self._interface} if self.may_announce() and not self._leaving else {})

    def addresses_named_here(self) -> list[str]:
        """Return the addresses whose Leases name this machine, whether this machine announces them or not."""
        return [address for address, lease in self._addresses.items() if lease.holder == self.node]

    def holder(self, address: str) -> str:
        lease = self._addresses.get(address)
        return lease.holder if lease is not None else ""

    def seconds_until_next_end(self) -> float:
        """Return the seconds until the next Lease of a machine or the grace period ends; at most one duration."""
        now = self._clock()
        ends = [seen.since + seen.lease.seconds - now for seen in self._machines.values() if seen.lease.holder]
        ends.append(self._interrupted + SECONDS * _GRACE - now)
        return min([each for each in ends if each > 0], default=float(SECONDS))

    async def renew_own_lease(self) -> None:
        async with self._writing:
            await self._renew_in_turn()

    async def mark_as_leaving(self) -> None:
        """Renew the Lease and mark this machine as leaving: it takes no more addresses."""
        self._leaving = True
        await self.renew_own_lease()

    async def _renew_in_turn(self) -> None:
        began = self._clock()
        if self._own is None or (began >= self.until and not self._full):
            self._choose_new_identity()  # this machine was silent: it must take each address again
        try:
            await self._write_own_lease(began)
        except ApiError as error:
            if error.code in (404, 409) and not self._unsure:  # fenced, or deleted
                self.stop_announcing()
            if is_store_full(error):
                await self._keep_by_reading()
            raise
        finally:
            if self._clock() - began > SECONDS * _SLOW:
                self._interrupted = self._clock()
        self.until, self._full = began + SECONDS * FENCE, False

    async def _keep_by_reading(self) -> None:
        """Announce for a moment longer if the API server shows this machine as the holder of its own Lease.

        Raise ApiError, UnreachableError.
        """
        began = self._interrupted = self._clock()
        if self._own is None:
            return
        self._full = True
        found = await self._objects.read_newest(LEASES, SYSTEM, f"{MACHINES}{self.node}")
        notes = (found["metadata"].get("annotations") or {}) if found else {}
        if found and find_holder(found) == self.node and notes.get(LEASE_BEGUN, "").startswith(f"{self._life} "):
            self.until = max(self.until, began + SECONDS * _GRACE * FENCE)
        else:
            self.stop_announcing()

    async def _write_own_lease(self, began: float) -> None:
        """Write this machine's own Lease.

        After a write with an unknown outcome, read the Lease first. If the Lease names this machine, no other machine
        has fenced it, because only this machine writes that. If the read state is old, the API server refuses the
        next write.
        """
        if self._own is None or self._unsure:
            self._own = await self._objects.read(LEASES, SYSTEM, f"{MACHINES}{self.node}")
            if self._unsure and (self._own is None or find_holder(self._own) != self.node):
                found = self._own
                self.stop_announcing()
                self._own = found
        unsure, self._unsure = self._unsure, True
        try:
            if self._own is None:
                value = build_lease(f"{MACHINES}{self.node}", self.node, SECONDS, self._now())
                self._own = await self._objects.create(LEASES, SYSTEM, self._annotate_lease(value, began))
            else:
                value = self._annotate_lease(set_holder(self._own, self.node, SECONDS, self._now()), began)
                self._own = await self._objects.replace(LEASES, SYSTEM, value)
        except ApiError as error:
            if error.code in (404, 409) or is_store_full(error):
                self._unsure = unsure
            raise
        self._unsure = False

    def stop_announcing(self) -> None:
        self.until = float("-inf")
        self._own, self._unsure, self._full = None, False, False
        self._choose_new_identity()

    def _choose_new_identity(self) -> None:
        self._epoch += 1
        self._interrupted = self._clock()
        self.mine.clear()
        self.given.clear()

    async def take_address(self, address: str) -> bool:
        """Take an address that has no holder or a silent one; report success."""
        epoch, holder = self._epoch, self.holder(address)
        if not self.may_announce():
            return False
        if holder not in ("", self.node) and not await self._check_that_machine_is_silent(holder):
            return False
        try:
            found = await self._write_holder(address, self.node)
        except ApiError as error:
            if error.code not in (404, 409):
                raise
            return False
        if not found or epoch != self._epoch or self.holder(address) != self.node:
            return False  # another machine fenced this one, or took the address meanwhile
        if holder not in ("", self.node):
            self.given.discard(address)  # this machine took it, even before the watch says so
        self.mine.add(address)
        return True

    async def give_address(self, address: str, to: str) -> None:
        """Write another machine, or "" for none, as the holder of an address that is no longer announced here."""
        self.mine.discard(address)
        try:
            await self._write_holder(address, to)
        except ApiError as error:
            if error.code not in (403, 404, 409):  # another machine already has it
                raise

    async def release_own_lease(self) -> None:
        """Empty the holder of this machine's own Lease, so that other machines need not wait."""
        async with self._writing:
            own = self._own
            self.stop_announcing()
            own = own or await self._objects.read(LEASES, SYSTEM, f"{MACHINES}{self.node}")
            if own is not None and find_holder(own) == self.node:
                await self._objects.replace(LEASES, SYSTEM, remove_holder(own, self._now()))

    async def _write_holder(self, address: str, holder: str) -> bool:
        """Write the holder of an address if its Lease is as last seen; report success. Raise ApiError."""
        name, lease = _lease_name(address), self._addresses.get(address)
        if lease is None:
            value = build_lease(name, holder, SECONDS, self._now())
            value["metadata"]["annotations"] = {LEASE_ADDRESS: address}
            made = await self._objects.create(LEASES, SYSTEM, value)
        else:
            found = await self._objects.read(LEASES, SYSTEM, name)
            if found is None or found["metadata"]["resourceVersion"] != lease.version:
                return False  # a newer state, which the watch will tell
            made = await self._objects.replace(LEASES, SYSTEM, set_holder(found, holder, SECONDS, self._now()))
        written = _read_held(made, address)
        if not self._is_outdated(written):  # the watch may already have shown this state or later ones
            self._addresses[address] = written
        return True

    def _is_outdated(self, lease: Held) -> bool:
        known = self._addresses.get(lease.address)
        return known is not None and _version_number(lease.version) < _version_number(known.version)

    async def _check_that_machine_is_silent(self, node: str) -> bool:
        now = self._clock()
        nothing = Held(ObjectName(SYSTEM, f"{MACHINES}{node}"), node, float(SECONDS), "", "", "")
        seen = self._machines.setdefault(node, _Seen(nothing, now, now))
        if not seen.lease.holder:
            return True
        # While the store was away no machine could renew: give them time.
        if now - seen.since < seen.lease.seconds or now - self._interrupted < SECONDS * _GRACE:
            return False
        found = await self._objects.read(LEASES, SYSTEM, f"{MACHINES}{node}")
        if found is None:
            return True
        if found["metadata"]["resourceVersion"] != seen.lease.version:
            return False
        try:
            await self._objects.replace(LEASES, SYSTEM, remove_holder(found, self._now()))
        except ApiError as error:
            if error.code in (404, 409):
                return False
            raise
        log.warning("a machine has stopped announcing: taking over its addresses", node=node, by=self.node)
        return True

    def _annotate_lease(self, lease: Object, began: float) -> Object:
        notes = {LEASE_INTERFACES: self._interface, LEASE_BEGUN: f"{self._life} {began:.3f}"}
        notes |= {LEASE_LEAVING: "true"} if self._leaving else {}
        meta = lease["metadata"]
        others = {key: value for key, value in (meta.get("annotations") or {}).items() if key != LEASE_LEAVING}
        return lease | {"metadata": meta | {"annotations": others | notes}}


def _version_number(version: str) -> int:
    return whole_number(version, 0, 2**63) or 0


def _lease_name(address: str) -> str:
    return ADDRESSES + re.sub("[.:]", "-", ipaddress.ip_address(address).exploded)


def _read_held(lease: Object, address: str) -> Held:
    meta: Mapping[str, str] = lease["metadata"]
    return Held(ObjectName(SYSTEM, meta["name"]), find_holder(lease), 1.0, meta["resourceVersion"], "", address)
