"""Answers /healthz, /livez, /readyz: whether this proxy is healthy and ready, and its node eligible.

A family is unhealthy once its *oldest* uncommitted change has waited for twice the sync period. A family without a
waiting change is healthy, also before its first sync (kube-proxy's rule, so /healthz is no readiness probe). /readyz
answers 200 once the first lists are complete and the first sync of every family, with all Node fields that rules
need, is in the kernel, unless rules of another mode are still in force.

Load balancers of `externalTrafficPolicy: Cluster` Services ask /healthz too (KEP-3836), so it fails on a node that is
about to be removed; /livez, which restarts the Pod, does not. Bodies equal kube-proxy's byte for byte.
"""

import json
import time
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from typing import Final

from msgspec import Struct, field

from vipwire.http_server.exchange import Reply
from vipwire.model.net import Family
from vipwire.model.node import Node

LEAVING_TAINT: Final = "ToBeDeletedByClusterAutoscaler"
"""The cluster autoscaler's taint of a node that it is about to remove."""

_HEADERS: Final = {"Content-Type": "application/json", "X-Content-Type-Options": "nosniff"}
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_NEVER: Final = "0001-01-01T00:00:00Z"  # Go's zero time


class _FamilyHealth(Struct):
    updated: float | None = None
    oldest_queued: float | None = None


class ProxyHealth(Struct):
    """Stores the times of syncs and derives the answers. `now` is seconds since the epoch everywhere.

    `families` are the programmed families, `lists` the kinds (such as `Service`) whose first list must arrive,
    `sync_period` is in seconds. `clock` measures how long a change waits; the wall clock may jump.
    """

    families: tuple[Family, ...]
    lists: tuple[str, ...]
    sync_period: float
    node_missing: bool = False
    awaited_node_facts: tuple[str, ...] = ()
    clock: Callable[[], float] = time.monotonic
    obstruction: str = ""
    """Why rules of another mode are still in force."""
    _health: dict[Family, _FamilyHealth] = field(default_factory=dict)
    _awaited: list[str] = field(default_factory=list)
    _eligible: bool = True
    _source_errors: dict[str, tuple[str, float]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._health = {family: _FamilyHealth() for family in self.families}
        self._awaited = list(self.lists)

    def record_queued(self, family: Family) -> None:
        """Record that a change for a family waits for its commit."""
        health = self._health[family]
        if health.oldest_queued is None:
            health.oldest_queued = self.clock()

    def record_update(self, family: Family, now: float) -> None:
        """Record that the kernel holds the complete plan of a family."""
        self._health[family] = _FamilyHealth(updated=now)

    def record_list(self, kind: str) -> None:
        if kind in self._awaited:
            self._awaited.remove(kind)

    def record_node(self, node: Node | None) -> None:
        """Record the state of this machine's Node object; None: the object does not exist.

        Before the first call the node counts as eligible, because without an API server no Node object exists.
        """
        self.node_missing = node is None
        self._eligible = node is not None and not node.deleting and LEAVING_TAINT not in node.taints

    def source_failed(self, resource: str, message: str, now: float) -> None:
        self._source_errors[resource] = (message, now)

    def source_recovered(self, resource: str) -> None:
        self._source_errors.pop(resource, None)

    def healthy(self) -> bool:
        """Report whether every family is healthy, regardless of the node's state."""
        return all(self._is_family_healthy(health) for health in self._health.values())

    def ready(self) -> bool:
        """Report whether lists, Node fields and first syncs are complete, and rules of other modes gone."""
        return not self._list_waiting()

    def livez(self, now: float) -> Reply:
        healthy = self.healthy()
        return self._build_health_reply(now, status=200 if healthy else 503, eligible=None)

    def healthz(self, now: float) -> Reply:
        """Answer GET /healthz: like /livez, and 503 on a node that is about to be removed."""
        healthy = self.healthy() and self._eligible
        return self._build_health_reply(now, status=200 if healthy else 503, eligible=self._eligible)

    def last_updated(self) -> dict[str, float | None]:
        """Return, by family, when the kernel last held the complete plan; None: never."""
        return {family.value: health.updated for family, health in self._health.items()}

    def failing(self) -> dict[str, str]:
        return {resource: message for resource, (message, _) in self._source_errors.items()}

    def readyz(self) -> Reply:
        """Answer GET /readyz with the missing conditions and the last error of each failing source."""
        body: dict[str, object] = {"ready": self.ready(), "waiting": self._list_waiting()}
        if self._source_errors:
            body["sourceErrors"] = {
                resource: {"message": message, "time": format_rfc3339(when)}
                for resource, (message, when) in sorted(self._source_errors.items())
            }
        return Reply(json.dumps(body), 200 if self.ready() else 503, _HEADERS)

    def _list_waiting(self) -> list[str]:
        lists = [f"lists: {', '.join(self._awaited)}"] if self._awaited else []
        facts = [f"Node: {', '.join(self.awaited_node_facts)}"] if self.awaited_node_facts else []
        others = [f"rules of another mode: {self.obstruction}"] if self.obstruction else []
        syncs = [f"first sync: {family.value}" for family in self.families if not self._is_synced(family)]
        return lists + syncs + facts + others

    def _is_synced(self, family: Family) -> bool:
        return self._health[family].updated is not None

    def _is_family_healthy(self, health: _FamilyHealth) -> bool:
        """Judge one family. A family before its first sync is healthy: kube-proxy's start-up rule."""
        if health.updated is None or health.oldest_queued is None:
            return True
        return self.clock() - health.oldest_queued < 2 * self.sync_period

    def _build_health_reply(self, now: float, *, status: int, eligible: bool | None) -> Reply:
        updates = [health.updated for health in self._health.values() if health.updated is not None]
        newest = format_rfc3339(max(updates)) if updates else _NEVER
        body: dict[str, object] = {"lastUpdated": format_rfc3339(now) if status == 200 else newest}
        body["currentTime"] = format_rfc3339(now)
        if eligible is not None:
            body["nodeEligible"] = eligible
        body["healthy"] = self.healthy()
        if updates:
            body["status"] = dict(self._build_status_fields())
        return Reply(json.dumps(body, separators=(",", ":")), status, _HEADERS)

    def _build_status_fields(self) -> Iterable[tuple[str, dict[str, object]]]:
        for family, health in sorted(self._health.items(), key=lambda item: item[0].value):
            if health.updated is not None:
                healthy = self._is_family_healthy(health)
                yield family.value, {"lastUpdated": format_rfc3339(health.updated), "healthy": healthy}


def format_rfc3339(seconds: float) -> str:
    """Format seconds since the epoch as Go's RFC3339Nano in UTC: no trailing zeros in the fraction."""
    when = _EPOCH + timedelta(seconds=seconds)
    fraction = f".{when.microsecond:06d}".rstrip("0").rstrip(".")
    return f"{when:%Y-%m-%dT%H:%M:%S}{fraction}Z"
