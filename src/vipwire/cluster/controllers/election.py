"""Of several API servers, one runs the controllers: whoever holds the Lease kube-system/vipwire-controllers.

    renewed every second; over after 6 s without a change; a holder that cannot renew it for 4 s stops by itself
    a server that ends gives it back, and the next one begins at once

A process that was stopped for a while does not know that it has lost the Lease. So whoever gets it also writes a
fence (store/fence.py), and what its controllers write holds only while that fence stands.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Final

from vipwire.cluster.api.errors import ApiError
from vipwire.cluster.api.kinds.plain import LEASES
from vipwire.cluster.api.object import encode
from vipwire.cluster.api.registry import Registry
from vipwire.cluster.controllers.lease import Claim, NotOursError, Observed, release_lease, write_lease
from vipwire.cluster.store.fence import FENCES, HOLDING
from vipwire.cluster.store.record import Check, ConflictError, Key, StoreError, Write
from vipwire.process import log

NAME: Final = "vipwire-controllers"
SECONDS: Final = 6
_RENEW_SECONDS: Final = 4.0
_EVERY: Final = 1.0
_FENCE: Final = Key(FENCES, "", NAME)
_FAILURES: Final = (ApiError, StoreError, ConflictError, TimeoutError)


class Election:
    """Takes part under an identity that no other process has."""

    def __init__(self, registry: Registry, identity: str) -> None:
        self._registry, self._identity = registry, identity
        self._observed = Observed(registry)
        self._claim = Claim(NAME, identity, SECONDS)

    async def run(self, lead: Callable[[], Awaitable[None]]) -> None:
        """Take part until cancelled, and lead while elected; then give the Lease back."""
        loop = asyncio.get_running_loop()
        try:
            while True:
                began = loop.time()
                if self._observed.is_over(NAME, began) and await self._renewed(_RENEW_SECONDS):
                    await self._term(lead, began)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_EVERY):
                        await self._registry.store.moved(LEASES.id)
        finally:
            with contextlib.suppress(NotOursError, *_FAILURES):
                async with asyncio.timeout(_EVERY):
                    await release_lease(self._registry, NAME, self._identity)

    async def _term(self, lead: Callable[[], Awaitable[None]], renewed: float) -> None:
        """Lead until the Lease is lost. Whatever the last holder has written before our fence is visible then."""
        try:
            async with asyncio.timeout(_RENEW_SECONDS):
                fence = await self._raise_fence()
        except _FAILURES as error:
            log.warning("elected, but cannot begin", lease=NAME, error=error)
            return
        log.info("runs the controllers", lease=NAME, identity=self._identity)
        async with asyncio.TaskGroup() as tasks:
            leading = tasks.create_task(_fenced(lead, fence))
            try:
                await self._hold(renewed)
            finally:
                leading.cancel()
        log.warning("another server runs the controllers, or nobody can renew the Lease", lease=NAME)

    async def _hold(self, renewed: float) -> None:
        """Renew the Lease until that has not succeeded for too long, or another has it."""
        loop = asyncio.get_running_loop()
        while (left := renewed + _RENEW_SECONDS - loop.time()) > 0:
            await asyncio.sleep(min(_EVERY, left))
            began = loop.time()
            outcome = await self._renewed(max(renewed + _RENEW_SECONDS - began, 0.1))
            if outcome is None:
                return
            renewed = began if outcome else renewed

    async def _renewed(self, patience: float) -> bool | None:
        """Claim or renew the Lease; False if that fails, None if another has it."""
        try:
            async with asyncio.timeout(patience):
                now = asyncio.get_running_loop().time()
                await write_lease(self._registry, self._claim, self._observed, now)
        except NotOursError:
            return None
        except _FAILURES:
            return False
        return True

    def _encode(self, revision: int) -> bytes:
        return encode({"metadata": {"name": NAME, "resourceVersion": str(revision)}, "holder": self._identity})

    async def _raise_fence(self) -> Check:
        store = self._registry.store
        found = store.read(_FENCE)
        write = Write(_FENCE, self._encode, found.revision if found else 0)
        (made,) = await store.write(write)
        await store.newest()
        return Check(_FENCE, made.revision)


async def _fenced(lead: Callable[[], Awaitable[None]], fence: Check) -> None:
    HOLDING.set(fence)  # in the context of this task, and of all that it begins
    await lead()
