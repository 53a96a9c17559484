"""Whether this proxy is healthy, ready and on a node that should get traffic: answers of /healthz, /livez, /readyz.

A family is unhealthy from the moment when its *oldest* change that is not in the kernel yet has waited for twice the
sync period. A family without a waiting change is healthy, also before its first sync: that is kube-proxy's rule, and
why its /healthz is no readiness probe. /readyz is: it is 200 from the moment when the first lists are complete and
the first sync of every family is in the kernel, made with all facts of our Node that rules need.

/healthz is also what load balancers of `externalTrafficPolicy: Cluster` Services ask (KEP-3836), so it fails on a
node that is about to go away; /livez, which restarts the Pod, does not. Bodies are kube-proxy's, byte for byte.
"""

import json
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Final

from msgspec import Struct, field

from vipwire.http_server.exchange import Reply
from vipwire.model.net import Family
from vipwire.model.node import Node

LEAVING_TAINT: Final = "ToBeDeletedByClusterAutoscaler"
"""The taint by which the cluster autoscaler marks a node that it is about to remove."""

_HEADERS: Final = {"Content-Type": "application/json", "X-Content-Type-Options": "nosniff"}
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_NEVER: Final = "0001-01-01T00:00:00Z"  # Go's zero time


class _FamilyHealth(Struct):
    updated: float | None = None
    oldest_queued: float | None = None


class ProxyHealth(Struct):
    """Stores the syncs so far, and derives the answers. `now` is seconds since the epoch everywhere.

    `families` are those that are programmed, `lists` the kinds whose first list is awaited (`Service`), and
    `sync_period` is in seconds.
    """

    families: tuple[Family, ...]
    lists: tuple[str, ...]
    sync_period: float
    node_missing: bool = False
    awaited_node_facts: tuple[str, ...] = ()
    _health: dict[Family, _FamilyHealth] = field(default_factory=dict)
    _awaited: list[str] = field(default_factory=list)
    _eligible: bool = True
    _source_errors: dict[str, tuple[str, float]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._health = {family: _FamilyHealth() for family in self.families}
        self._awaited = list(self.lists)

    def queued(self, family: Family, now: float) -> None:
        """Note that a change for a family waits to be committed."""
        health = self._health[family]
        if health.oldest_queued is None:
            health.oldest_queued = now

    def updated(self, family: Family, now: float) -> None:
        """Note that the kernel holds everything that is wanted for a family."""
        self._health[family] = _FamilyHealth(updated=now)

    def listed(self, kind: str) -> None:
        """Note that the first list of a kind is complete."""
        if kind in self._awaited:
            self._awaited.remove(kind)

    def node_seen(self, node: Node | None) -> None:
        """Note the state of our Node object; None means that it does not exist.

        As long as this was never called the node counts as eligible: without an API server there is no Node object.
        """
        self.node_missing = node is None
        self._eligible = node is not None and not node.deleting and LEAVING_TAINT not in node.taints

    def source_failed(self, resource: str, message: str, now: float) -> None:
        """Note that a source of objects does not answer as it should."""
        self._source_errors[resource] = (message, now)

    def source_recovered(self, resource: str) -> None:
        """Note that a source answers again."""
        self._source_errors.pop(resource, None)

    def healthy(self, now: float) -> bool:
        """Report whether every family is healthy, whatever the node's state is."""
        return all(self._family_healthy(health, now) for health in self._health.values())

    def ready(self) -> bool:
        """Report whether the first lists and the first sync of every family are done, with all facts of our Node."""
        return not self._waiting()

    def livez(self, now: float) -> Reply:
        """Answer GET /livez."""
        healthy = self.healthy(now)
        return self._answer(now, status=200 if healthy else 503, eligible=None)

    def healthz(self, now: float) -> Reply:
        """Answer GET /healthz: as /livez, and only on a node that stays."""
        healthy = self.healthy(now) and self._eligible
        return self._answer(now, status=200 if healthy else 503, eligible=self._eligible)

    def last_updated(self) -> dict[str, float | None]:
        """Return the time at which the kernel last held everything that is wanted, by family; None: not yet."""
        return {family.value: health.updated for family, health in self._health.items()}

    def failing(self) -> dict[str, str]:
        """Return what is wrong with each source that fails."""
        return {resource: message for resource, (message, _) in self._source_errors.items()}

    def readyz(self) -> Reply:
        """Answer GET /readyz: what is still awaited, and the last error of each source that fails."""
        body: dict[str, object] = {"ready": self.ready(), "waiting": self._waiting()}
        if self._source_errors:
            body["sourceErrors"] = {
                resource: {"message": message, "time": rfc3339(when)}
                for resource, (message, when) in sorted(self._source_errors.items())
            }
        return Reply(json.dumps(body), 200 if self.ready() else 503, _HEADERS)

    def _waiting(self) -> list[str]:
        lists = [f"lists: {', '.join(self._awaited)}"] if self._awaited else []
        facts = [f"Node: {', '.join(self.awaited_node_facts)}"] if self.awaited_node_facts else []
        return lists + [f"first sync: {family.value}" for family in self.families if not self._synced(family)] + facts

    def _synced(self, family: Family) -> bool:
        return self._health[family].updated is not None

    def _family_healthy(self, health: _FamilyHealth, now: float) -> bool:
        """Judge one family. One that was never synced is not judged: kube-proxy's start-up rule."""
        if health.updated is None or health.oldest_queued is None:
            return True
        return now - health.oldest_queued < 2 * self.sync_period

    def _answer(self, now: float, *, status: int, eligible: bool | None) -> Reply:
        updates = [health.updated for health in self._health.values() if health.updated is not None]
        newest = rfc3339(max(updates)) if updates else _NEVER
        body: dict[str, object] = {"lastUpdated": rfc3339(now) if status == 200 else newest}
        body["currentTime"] = rfc3339(now)
        if eligible is not None:
            body["nodeEligible"] = eligible
        body["healthy"] = self.healthy(now)
        if updates:
            body["status"] = dict(self._statuses(now))
        return Reply(json.dumps(body, separators=(",", ":")), status, _HEADERS)

    def _statuses(self, now: float) -> Iterable[tuple[str, dict[str, object]]]:
        for family, health in sorted(self._health.items(), key=lambda item: item[0].value):
            if health.updated is not None:
                healthy = self._family_healthy(health, now)
                yield family.value, {"lastUpdated": rfc3339(health.updated), "healthy": healthy}


def rfc3339(seconds: float) -> str:
    """Print seconds since the epoch as Go's RFC3339Nano does in UTC: no trailing zeros in the fraction."""
    when = _EPOCH + timedelta(seconds=seconds)
    fraction = f".{when.microsecond:06d}".rstrip("0").rstrip(".")
    return f"{when:%Y-%m-%dT%H:%M:%S}{fraction}Z"
