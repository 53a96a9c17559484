"""One of several replicas writes the status: whoever holds a Lease (coordination.k8s.io/v1).

Clocks of machines differ, so a Lease is not judged by the time in it but by how long *we* have seen it unchanged:
after its `leaseDurationSeconds` without a change its holder is taken for gone. A holder that could not renew for two
thirds of that time stops by itself, before anybody else begins. Two who write at once meet the object's
resourceVersion: one of them is refused. `Election` decides, `LeaseKeeper` asks and writes.
"""

import asyncio
import contextlib
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Any

from vipwire.kube.access.access import Access
from vipwire.kube.errors import REQUEST_ERRORS, ApiError
from vipwire.kube.objects import Object, ObjectClient
from vipwire.model.names import ObjectName
from vipwire.process import log

SECONDS = 15.0
_EVERY, _TIMEOUT = 2.0, 5.0


@dataclass(frozen=True, slots=True)
class Claim:
    """The content of a Lease. `version` is the object's resourceVersion, `seconds` how long a claim is good."""

    holder: str = ""
    version: str = ""
    seconds: float = SECONDS
    transitions: int = 0
    acquired: str = ""


class Election:
    """Decides by what has been seen when. Times are in seconds of one monotonic clock."""

    def __init__(self, identity: str) -> None:
        self.identity = identity
        self._seen, self._since, self._renewed = Claim(), 0.0, float("-inf")

    def may_claim(self, claim: Claim, now: float) -> bool:
        """Read a Lease; report whether it may be claimed, or renewed."""
        if claim != self._seen:
            self._seen, self._since = claim, now
        return claim.holder in ("", self.identity) or now - self._since >= claim.seconds

    def claimed(self, now: float) -> None:
        """Note that a claim has been written; `now` is from before it was sent."""
        self._renewed = now

    def lost(self) -> None:
        """Note that somebody else holds it."""
        self._renewed = float("-inf")

    def leading(self, now: float) -> bool:
        """Report whether we are the one."""
        return now - self._renewed < SECONDS * 2 / 3


class LeaseKeeper:
    """Runs an election over a Lease."""

    def __init__(self, access: Access, lease: ObjectName, identity: str) -> None:
        self._access, self._lease, self._election = access, lease, Election(identity)
        self._path = f"/apis/coordination.k8s.io/v1/namespaces/{lease.namespace}/leases"
        self._told, self._was_leading = "", False

    def leading(self) -> bool:
        """Report whether we are the one."""
        return self._election.leading(time.monotonic())

    async def run(self) -> None:
        """Take part until cancelled; then release the Lease, so that another need not wait."""
        async with ObjectClient(self._access, "vipwire-ingress", timeout=_TIMEOUT) as client:
            try:
                while True:
                    await self._turn(client)
                    await asyncio.sleep(_EVERY)
            finally:
                if self.leading():
                    with contextlib.suppress(*REQUEST_ERRORS):
                        await self._claim(client, await self._read(client), "")

    async def _turn(self, client: ObjectClient) -> None:
        began, reason, claimed = time.monotonic(), "", False
        try:
            claim = await self._read(client)
            if self._election.may_claim(claim, began):
                claimed = await self._claim(client, claim, self._election.identity)
            if claimed:
                self._election.claimed(began)
            else:
                self._election.lost()
        except REQUEST_ERRORS as error:
            reason = str(error)
        if reason and reason != self._told:
            log.warning("cannot read or write the Lease", object=self._lease, error=reason)
        if self.leading() != self._was_leading:
            log.info("writes the status" if self.leading() else "another writes the status", lease=self._lease)
        self._told, self._was_leading = reason, self.leading()

    async def _read(self, client: ObjectClient) -> Claim:
        return claim_of(await client.get(f"{self._path}/{self._lease.name}") or {})

    async def _claim(self, client: ObjectClient, claim: Claim, holder: str) -> bool:
        """Write who holds it; tell whether that was taken. Else another was first, which the next turn will see."""
        body = lease_of(self._lease, claim, holder, time.time())
        try:
            if claim.version:
                await client.replace(f"{self._path}/{self._lease.name}", body)
            else:
                await client.create(self._path, body)
        except ApiError as error:
            if error.code != HTTPStatus.CONFLICT:
                raise
            return False
        return True


def claim_of(lease: Mapping[str, Any]) -> Claim:
    """Read a Lease; what is missing or odd in it counts as an old claim of nobody."""
    spec, meta = lease.get("spec") or {}, lease.get("metadata") or {}
    seconds = spec.get("leaseDurationSeconds")
    return Claim(
        str(spec.get("holderIdentity") or ""),
        str(meta.get("resourceVersion") or ""),
        float(seconds) if isinstance(seconds, int) and seconds > 0 else SECONDS,
        int(spec.get("leaseTransitions") or 0),
        str(spec.get("acquireTime") or ""),
    )


def lease_of(name: ObjectName, claim: Claim, holder: str, now: float) -> Object:
    """Build a Lease that `holder` has, nobody if it is empty; `now` in seconds since the epoch."""
    written = datetime.fromtimestamp(now, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    meta = {"name": name.name, "namespace": name.namespace}
    return {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": meta | ({"resourceVersion": claim.version} if claim.version else {}),
        "spec": {
            "holderIdentity": holder,
            "leaseDurationSeconds": int(SECONDS) if holder else 1,
            "acquireTime": claim.acquired if claim.acquired and holder == claim.holder else written,
            "renewTime": written,
            "leaseTransitions": claim.transitions + (holder not in ("", claim.holder)),
        },
    }
