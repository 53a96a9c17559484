"""Leases of coordination.k8s.io as machines write and judge them. Pure.

Clocks of machines differ. So nobody judges a Lease by the times in it, but by how long its content stayed the same
before the own eyes.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

from vipwire_up.api.objects.cells import at
from vipwire_up.api.objects.resource import Object

NODE_LEASES: Final = "kube-node-lease"
"""The namespace of the Leases by which machines say that they are alive; each has its Node's name."""
SERVERS: Final = "vipwire-server-"
"""How the Leases of API servers begin, in kube-system."""
SYSTEM: Final = "kube-system"


def micro(now: datetime) -> str:
    """Write a time as Leases have it."""
    return now.strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def new_lease(name: str, holder: str, seconds: int, now: datetime) -> Object:
    """Write a Lease that somebody has just taken."""
    spec = {"holderIdentity": holder, "leaseDurationSeconds": seconds, "leaseTransitions": 0}
    return {"metadata": {"name": name}, "spec": spec | {"acquireTime": micro(now), "renewTime": micro(now)}}


def held(lease: Object, holder: str, seconds: int, now: datetime) -> Object:
    """Write a Lease that somebody takes, keeps, or gives back, as "" does."""
    spec = lease.get("spec") or {}
    fresh = spec.get("holderIdentity", "") != holder
    spec = spec | {"holderIdentity": holder, "leaseDurationSeconds": seconds, "renewTime": micro(now)}
    if fresh:
        spec |= {"acquireTime": micro(now), "leaseTransitions": (spec.get("leaseTransitions") or 0) + bool(holder)}
    return lease | {"spec": spec}


def holder_of(lease: Mapping[str, Any]) -> str:
    """Tell who holds a Lease, "" for nobody."""
    return str(at(lease, "spec", "holderIdentity") or "")


def seconds_of(lease: Mapping[str, Any], otherwise: float) -> float:
    """Tell how long a Lease lasts without a renewal."""
    seconds = at(lease, "spec", "leaseDurationSeconds")
    return float(seconds) if isinstance(seconds, int) and seconds > 0 else otherwise
