"""Elects the one API server that runs the controllers: the holder of the Lease kube-system/vipwire-controllers.

    QUICK     renewed every 0.4 s; expires after 2 s; a holder that cannot renew it for 1.5 s stops by itself
    CAREFUL   the same with 1, 6 and 4 s

A holder is CAREFUL while it begins, which can block a process with many objects for seconds, and while the store or
its own process is slow: else a busy cluster would elect all the time. After some renewals in time it is QUICK. The
Lease says which. A server that ends frees the Lease, and the next one begins at once.

A process that was stopped for a while does not know that it has lost the Lease. So the new holder also writes a fence
(store/record.py): the store accepts controllers' writes only while their fence stands.
"""

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from vipwire.kube.errors import ApiError
from vipwire.kube.lease import LeaseHeldError, LeaseObserver, LeaseRequest, acquire_or_renew, release
from vipwire.logging import log
from vipwire_up.api.change import Options
from vipwire_up.api.kinds.small_kinds import LEASES
from vipwire_up.api.objects.object import decode_damaged_record, encode, key_of
from vipwire_up.api.objects.resource import Object
from vipwire_up.api.registry import FencedRegistry, Registry
from vipwire_up.store.record import FENCES, Check, ConflictError, Key, StoreError, Write

NAMESPACE: Final = "kube-system"
LEASE_MANAGER: Final = "vipwire-leases"
_OPTIONS: Final = Options(manager=LEASE_MANAGER, validation="Ignore")


class LocalLease:
    """The Lease of a name in kube-system."""

    def __init__(self, registry: Registry, name: str) -> None:
        self._registry, self._name = registry, name

    async def create(self, value: Object) -> None:
        await self._registry.create(LEASES, NAMESPACE, value, _OPTIONS)

    async def update(self, edit: Callable[[Object], Object]) -> None:
        await self._registry.change(LEASES, NAMESPACE, self._name, edit, _OPTIONS)

    def seconds_left(self, observer: LeaseObserver, now: float) -> float:
        """Return the seconds until the Lease expires unless it changes; 0 without a holder."""
        record = self._registry.store.read(key_of(LEASES, NAMESPACE, self._name))
        return 0.0 if record is None else observer.seconds_left(self._name, decode_damaged_record(record), now)


NAME: Final = "vipwire-controllers"
_LOOK: Final = 1.0
"""Seconds between looks at a Lease, besides its events."""
_FAREWELL: Final = 1.0
_LATE: Final = 0.3
_IN_TIME: Final = 5
"""A renewal this many seconds late is late; this many renewals in time make a holder quick."""
_LAST: Final = 0.5
"""Seconds for the last try of a holder that renewed too late. The fence refuses its writes if another is elected."""
Lead: TypeAlias = Callable[[FencedRegistry], Coroutine[Any, Any, None]]
_FENCE: Final = Key(FENCES, "", NAME)
_FAILURES: Final = (ApiError, StoreError, ConflictError, TimeoutError)


@dataclass(frozen=True, slots=True)
class Pace:
    """How a Lease is kept: it expires after `seconds`, is renewed `every` so many, and given up after `patience`."""

    seconds: int
    patience: float
    every: float


QUICK: Final = Pace(2, 1.5, 0.4)
CAREFUL: Final = Pace(6, 4.0, 1.0)


class Pacing:
    """Chooses the pace of a holder by the delay of its renewals."""

    def __init__(self, careful: Pace = CAREFUL, quick: Pace = QUICK) -> None:
        self._careful, self._quick = careful, quick
        self._in_time = 0

    def record_lateness(self, late: float) -> None:
        self._in_time = self._in_time + 1 if late < _LATE else 0

    @property
    def pace(self) -> Pace:
        return self._quick if self._in_time >= _IN_TIME else self._careful


class Election:
    """Takes part under an identity that no other process has."""

    def __init__(self, registry: Registry, identity: str, *, careful: Pace = CAREFUL, quick: Pace = QUICK) -> None:
        self._registry, self._identity = registry, identity
        self._careful, self._quick = careful, quick
        self._lease, self._observer = LocalLease(registry, NAME), LeaseObserver()

    async def run(self, lead: Lead) -> None:
        """Take part until cancelled, and call `lead` while elected; then free the Lease."""
        loop = asyncio.get_running_loop()
        try:
            while True:
                began = loop.time()
                left = self._lease.seconds_left(self._observer, began)
                if not left and await self._renew_lease(self._careful, self._careful.patience):
                    await self._lead_until_lost(lead, began)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(min(left, _LOOK) or _LOOK):
                        await self._registry.store.wait_for_change(LEASES.id)
        finally:
            with contextlib.suppress(LeaseHeldError, *_FAILURES):
                async with asyncio.timeout(_FAREWELL):
                    await release(self._lease, self._identity, self._registry.clock)

    async def _lead_until_lost(self, lead: Lead, renewed: float) -> None:
        """Lead until the Lease is lost. All writes of the last holder are visible after this holder's fence."""
        try:
            async with asyncio.timeout(self._careful.patience):
                fence = await self._raise_fence()
        except _FAILURES as error:
            log.warning("elected, but cannot start", lease=NAME, error=error)
            return
        log.info("runs the controllers", lease=NAME, identity=self._identity)
        async with asyncio.TaskGroup() as tasks:
            leading = tasks.create_task(lead(self._registry.with_fence(fence)))
            try:
                await self._keep_lease(renewed)
            finally:
                leading.cancel()
        log.warning("another server runs the controllers, or this server cannot renew the Lease", lease=NAME)

    async def _keep_lease(self, renewed: float) -> None:
        """Renew the Lease until renewals fail for too long, or another process holds it."""
        loop, pacing, kept = asyncio.get_running_loop(), Pacing(self._careful, self._quick), self._careful
        while (left := renewed + kept.patience - loop.time()) > 0:
            due = loop.time() + min(kept.every, left)
            await asyncio.sleep(due - loop.time())
            began, wanted = loop.time(), pacing.pace
            outcome = await self._renew_lease(wanted, max(renewed + kept.patience - began, _LAST))
            if outcome is None:
                return
            pacing.record_lateness(loop.time() - due if outcome else _LATE)
            if outcome:
                renewed, kept = began, wanted

    async def _renew_lease(self, pace: Pace, patience: float) -> bool | None:
        """Claim or renew the Lease; False on failure, None if another process holds it."""
        request, clock = LeaseRequest(NAME, self._identity, pace.seconds), asyncio.get_running_loop().time
        try:
            async with asyncio.timeout(patience):
                await acquire_or_renew(self._lease, request, self._observer, clock, self._registry.clock)
        except LeaseHeldError:
            return None
        except _FAILURES:
            return False
        return True

    def _encode_fence(self, revision: int) -> bytes:
        return encode({"metadata": {"name": NAME, "resourceVersion": str(revision)}, "holder": self._identity})

    async def _raise_fence(self) -> Check:
        store = self._registry.store
        found = store.read(_FENCE)
        write = Write(_FENCE, self._encode_fence, found.revision if found else 0)
        (made,) = await store.write(write)
        await store.wait_for_newest()
        return Check(_FENCE, made.revision)
