"""A Lease (coordination.k8s.io/v1) in the registry of this process: who has it, and how long it has been as it is.

Clocks of machines differ. So nobody reads the times in a Lease: it is over when *we* have seen it unchanged for as
long as it says it lasts.
"""

from dataclasses import dataclass
from typing import Final

from vipwire.kube.errors import ApiError
from vipwire_up.api.bodies.sent import Options
from vipwire_up.api.kinds.plain import LEASES
from vipwire_up.api.objects.cells import at
from vipwire_up.api.objects.object import key_of, readable
from vipwire_up.api.objects.resource import Object
from vipwire_up.api.registry import Registry

NAMESPACE: Final = "kube-system"
_OPTIONS: Final = Options(manager="vipwire-leases", validation="Ignore")


class NotOursError(Exception):
    """Another one has the Lease."""


@dataclass(frozen=True, slots=True)
class Seen:
    """A state of a Lease, and since when it has been seen, in seconds of a monotonic clock."""

    revision: int
    since: float


class Observed:
    """What has been seen of Leases, by name."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._seen: dict[str, Seen] = {}

    def is_over(self, name: str, now: float) -> bool:
        """Look at a Lease; report whether nobody has it any more."""
        return not self.left(name, now)

    def left(self, name: str, now: float) -> float:
        """Look at a Lease; tell in how many seconds it is over unless it changes, 0 if nobody has it any more."""
        record = self._registry.store.read(key_of(LEASES, NAMESPACE, name))
        if record is None:
            return 0.0
        seen = self._seen.get(name)
        if seen is None or seen.revision != record.revision:
            seen = self._seen[name] = Seen(record.revision, now)
        spec = readable(record).get("spec") or {}
        seconds = spec.get("leaseDurationSeconds")
        if not spec.get("holderIdentity"):
            return 0.0
        return max(seen.since + (seconds if isinstance(seconds, int) else 0) - now, 0.0)


@dataclass(frozen=True, slots=True)
class Claim:
    """What somebody writes into a Lease."""

    name: str
    holder: str
    seconds: int
    labels: tuple[tuple[str, str], ...] = ()


async def write_lease(registry: Registry, claim: Claim, observed: Observed, now: float) -> None:
    """Claim a Lease, or renew it. Raise NotOursError if another has it, ApiError if it cannot be written."""
    name = claim.name
    if registry.store.head(key_of(LEASES, NAMESPACE, name)) is None:
        body = _claimed(registry, {"metadata": {"name": name, "labels": dict(claim.labels)}}, claim)
        try:
            await registry.create(LEASES, NAMESPACE, body, _OPTIONS)
        except ApiError as error:
            if error.reason == "AlreadyExists":
                raise NotOursError from error
            raise
        return

    def edit(value: Object) -> Object:
        if at(value, "spec", "holderIdentity") != claim.holder and not observed.is_over(name, now):
            raise NotOursError
        return _claimed(registry, value, claim)

    await registry.change(LEASES, NAMESPACE, name, edit, _OPTIONS)


async def release_lease(registry: Registry, name: str, holder: str) -> None:
    """Give a Lease back, if it is ours, so that nobody has to wait for its end. Raise ApiError."""

    def edit(value: Object) -> Object:
        if at(value, "spec", "holderIdentity") != holder:
            raise NotOursError
        return value | {"spec": (value.get("spec") or {}) | {"holderIdentity": "", "leaseDurationSeconds": 1}}

    await registry.change(LEASES, NAMESPACE, name, edit, _OPTIONS)


def _claimed(registry: Registry, value: Object, claim: Claim) -> Object:
    spec = value.get("spec") or {}
    written = registry.clock().strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    held = spec.get("holderIdentity") == claim.holder
    before = spec.get("leaseTransitions") or 0
    return value | {
        "spec": {
            "holderIdentity": claim.holder,
            "leaseDurationSeconds": claim.seconds,
            "acquireTime": spec.get("acquireTime") or written if held else written,
            "renewTime": written,
            "leaseTransitions": before if held or not spec else before + 1,
        }
    }
