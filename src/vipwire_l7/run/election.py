"""Elects the replica that writes statuses: the holder of a Lease (kube/lease.py).

A holder that could not renew for two thirds of the Lease's duration stops by itself, before another replica begins.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final

from vipwire.kube.access.access import Access
from vipwire.kube.errors import REQUEST_ERRORS, ApiError
from vipwire.kube.lease import LeaseHeldError, LeaseObserver, LeaseRequest, acquire_or_renew, release
from vipwire.kube.objects import Object, ObjectClient, path_of
from vipwire.logging import log
from vipwire.model.names import ObjectName

SECONDS: Final = 15
_LEASES: Final = ("/apis/coordination.k8s.io/v1", "leases")
_EVERY, _TIMEOUT, _AGAIN = 6.0, 2.5, 1.0
"""Seconds between renewals, for one, and after a failure: in all less than two thirds of `SECONDS`."""


class RemoteLease:
    """A Lease at an API server."""

    def __init__(self, client: ObjectClient, name: ObjectName) -> None:
        self._client, self._name = client, name
        self._written: Object | None = None

    async def create(self, value: Object) -> None:
        namespace = self._name.namespace
        about = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease"}
        value["metadata"] |= {"namespace": namespace}
        self._written = await self._client.create(path_of(*_LEASES, namespace), about | value)

    async def update(self, edit: Callable[[Object], Object]) -> None:
        """Edit the Lease: as this replica wrote it last, if no other has written it since."""
        path, before = path_of(*_LEASES, *self._name), self._written
        self._written = None
        if before is not None:
            try:
                self._written = await self._client.replace(path, edit(before))
            except ApiError as error:
                if error.code not in (404, 409):
                    raise
            else:
                return
        self._written = await self._client.update(path, edit)


class LeaseKeeper:
    """Runs an election over a Lease."""

    def __init__(
        self, access: Access, lease: ObjectName, identity: str, tell: Callable[[], None] = lambda: None
    ) -> None:
        """`tell` is called when this replica becomes or is no longer the leader."""
        self._access, self._name, self._tell = access, lease, tell
        self._request = LeaseRequest(lease.name, identity, SECONDS, transitions=1)
        self._observer = LeaseObserver(SECONDS)
        self._renewed = float("-inf")
        self._told, self._was_leading = "", False

    def is_leading(self) -> bool:
        return time.monotonic() - self._renewed < SECONDS * 2 / 3

    async def run(self) -> None:
        """Take part until cancelled; then release the Lease, so that another replica need not wait."""
        async with ObjectClient(self._access, "vipwire-ingress", timeout=_TIMEOUT) as client:
            lease = RemoteLease(client, self._name)
            try:
                while True:
                    await self._renew_once(lease)
                    await asyncio.sleep(_AGAIN if self._told else _EVERY)
            finally:
                if self.is_leading():
                    with contextlib.suppress(LeaseHeldError, *REQUEST_ERRORS):
                        await release(lease, self._request.holder, _read_clock)

    async def _renew_once(self, lease: RemoteLease) -> None:
        began, reason = time.monotonic(), ""
        try:
            await acquire_or_renew(lease, self._request, self._observer, time.monotonic, _read_clock)
            self._renewed = began
        except LeaseHeldError:
            self._renewed = float("-inf")
        except REQUEST_ERRORS as error:
            reason = str(error)
        if reason and reason != self._told:
            log.warning("cannot read or write the Lease", object=self._name, error=reason)
        if self.is_leading() != self._was_leading:
            log.info("became leader" if self.is_leading() else "no longer leader", lease=self._name)
            self._tell()
        self._told, self._was_leading = reason, self.is_leading()


def _read_clock() -> datetime:
    return datetime.now(UTC)  # noqa: TID251  # this is the shell
