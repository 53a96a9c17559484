"""Leases (coordination.k8s.io/v1): content, expiry, acquiring and renewing. Pure.

Clocks of machines differ, so a Lease's times are for people only: a Lease has expired when the observer itself saw it
unchanged for its duration. Of two concurrent writers, the API server refuses one by resourceVersion.
"""

from collections.abc import Callable, Hashable, Mapping
from datetime import datetime
from typing import Any, Protocol, TypeAlias

from vipwire.kube.errors import ApiError
from vipwire.model.times import format_micro_time
from vipwire.model.value import Value

Lease: TypeAlias = dict[str, Any]


def build_lease(name: str, holder: str, seconds: int, now: datetime) -> Lease:
    """Build a Lease that a holder has just acquired."""
    spec = {"holderIdentity": holder, "leaseDurationSeconds": seconds, "leaseTransitions": 0}
    written = format_micro_time(now)
    return {"metadata": {"name": name}, "spec": spec | {"acquireTime": written, "renewTime": written}}


def set_holder(lease: Lease, holder: str, seconds: int, now: datetime) -> Lease:
    """Return the Lease as a holder acquires or renews it; "" releases it."""
    before, written = lease.get("spec") or {}, format_micro_time(now)
    spec = before | {"holderIdentity": holder, "leaseDurationSeconds": seconds, "renewTime": written}
    if find_holder(lease) != holder:
        spec |= {"acquireTime": written, "leaseTransitions": (before.get("leaseTransitions") or 0) + bool(holder)}
    return lease | {"spec": spec}


def remove_holder(lease: Lease, now: datetime) -> Lease:
    """Return the Lease without a holder, so that another holder need not wait."""
    return set_holder(lease, "", 1, now)


def find_holder(lease: Mapping[str, Any]) -> str:
    """Return a Lease's holder; "" if released."""
    return str((lease.get("spec") or {}).get("holderIdentity") or "")


def find_duration(lease: Mapping[str, Any], otherwise: float) -> float:
    """Return the seconds until an unrenewed Lease expires; `otherwise` if the Lease has no duration."""
    seconds = (lease.get("spec") or {}).get("leaseDurationSeconds")
    return float(seconds) if isinstance(seconds, int) and seconds > 0 else otherwise


class LeaseObserver:
    """Remembers since when Leases are unchanged, by name. Times are seconds of one monotonic clock."""

    def __init__(self, otherwise: float = 0.0) -> None:
        """`otherwise` is the duration of a Lease without one."""
        self._otherwise = otherwise
        self._seen: dict[str, tuple[Hashable, float]] = {}

    def seconds_left(self, name: str, lease: Mapping[str, Any], now: float) -> float:
        """Return the seconds until a Lease expires unless it changes; 0 if expired or released."""
        version = (lease.get("metadata") or {}).get("resourceVersion")
        seen, since = self._seen.get(name, (None, now))
        if name not in self._seen or seen != version:
            self._seen[name] = version, now
            since = now
        return max(since + find_duration(lease, self._otherwise) - now, 0.0) if find_holder(lease) else 0.0


class LeaseHeldError(Exception):
    """Another holder has the Lease."""


class LeaseRequest(Value, frozen=True):
    """A holder's fields of a Lease. `transitions` is the count in a new Lease."""

    name: str
    holder: str
    seconds: int
    labels: tuple[tuple[str, str], ...] = ()
    transitions: int = 0


class LeaseObject(Protocol):
    """One Lease, in this process or at an API server. Each call raises ApiError for a refusal."""

    async def create(self, value: Lease) -> object: ...

    async def update(self, edit: Callable[[Lease], Lease]) -> object:
        """Read the Lease, edit it and replace it; again if another writer was first."""


async def acquire_or_renew(
    lease: LeaseObject,
    request: LeaseRequest,
    observer: LeaseObserver,
    clock: Callable[[], float],
    now: Callable[[], datetime],
) -> None:
    """Acquire or renew a Lease. Raise LeaseHeldError if another holder has it, ApiError for another refusal."""

    def edit(value: Lease) -> Lease:
        left = observer.seconds_left(request.name, value, clock())
        if left and find_holder(value) != request.holder:
            raise LeaseHeldError
        return set_holder(value, request.holder, request.seconds, now())

    try:
        await lease.update(edit)
    except ApiError as error:
        if error.code != 404:
            raise
        try:
            await lease.create(_new_lease(request, now()))
        except ApiError as taken:
            if taken.code == 409:
                raise LeaseHeldError from taken
            raise


def _new_lease(request: LeaseRequest, now: datetime) -> Lease:
    value = build_lease(request.name, request.holder, request.seconds, now)
    value["metadata"] |= {"labels": dict(request.labels)} if request.labels else {}
    value["spec"]["leaseTransitions"] = request.transitions
    return value


async def release(lease: LeaseObject, holder: str, now: Callable[[], datetime]) -> None:
    """Release a Lease. Raise LeaseHeldError if it is another's, ApiError if it cannot be written."""

    def edit(value: Lease) -> Lease:
        if find_holder(value) != holder:
            raise LeaseHeldError
        return remove_holder(value, now())

    await lease.update(edit)
