"""Reads the modes' counts for status and top: once, for both families, as fields of documents.

A mode that counts has seen nothing where it says nothing: that is 0 connections. A mode that does not count, one that
was told not to, and a kernel that cannot be read, give null.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from vipwire.config.sections import Series
from vipwire.errors import VipwireError
from vipwire.inspect.node.situation import Kernel, Situation
from vipwire.model.names import ObjectName, ServicePortName
from vipwire.model.net import Family
from vipwire.modes.spec import Mode
from vipwire.plan.plan import ServicePlan
from vipwire.reconcile.counts import Count, CountingBackend, Counts, EndpointName, OpenConnections, Refusal

_NAMES = {
    "connections": "connections",
    "packets": "packets",
    "bytes": "bytes",
    "reply_packets": "replyPackets",
    "reply_bytes": "replyBytes",
}
_UNSEEN = Count(connections=0)


@dataclass(frozen=True, slots=True)
class AllCounts:
    """The counts of all families that could be read: what a document takes its numbers from."""

    parts: tuple[Counts, ...] = ()
    families: frozenset[Family] = field(default_factory=frozenset)

    def port(self, name: ServicePortName) -> Count | None:
        """Add up what went to a Service port; None if nobody counts."""
        return self._sum(counts.ports.get(name) for counts in self.parts)

    def endpoint(self, name: EndpointName) -> Count | None:
        """Return what went to an endpoint of a Service port; None if nobody counts."""
        return self._sum(counts.endpoints.get(name) for counts in self.parts)

    def open(self, name: EndpointName) -> OpenConnections | None:
        """Return how many connections an endpoint has now, where the mode keeps count of them."""
        return next((counts.open[name] for counts in self.parts if name in counts.open), None)

    def _sum(self, found: Iterable[Count | None]) -> Count | None:
        if not self.parts:
            return None
        total = _UNSEEN
        for count in found:
            total = total.plus(count) if count is not None else total
        return total

    def refusals(self) -> dict[tuple[Refusal, ServicePortName | None], int]:
        """Add up refusals by reason and Service port."""
        found: dict[tuple[Refusal, ServicePortName | None], int] = {}
        for counts in self.parts:
            for key, number in counts.refusals.items():
                found[key] = found.get(key, 0) + number
        return found


def see(situation: Situation, names: Iterable[ObjectName] | None = None) -> AllCounts:
    """Read the counts of some Services, or of all, from the modes of a situation whose kernel was looked at."""
    chosen = None if names is None else frozenset(names)
    found: dict[Family, Counts] = {}
    for side in situation.sides:
        if side.mode is None or side.observed is None:
            continue
        plans = [plan for name, plan in side.plans.items() if chosen is None or name in chosen]
        counts = read(side.mode, plans, situation.config.counters.series)
        if counts is not None:
            found[side.family] = counts
    return AllCounts(tuple(found.values()), frozenset(found))


def counted_now(situation: Situation, kernel: Kernel) -> tuple[Counts, ...]:
    """Read what the opened modes have counted for what is planned."""
    series = situation.config.counters.series
    found = (
        read(mode, side.plans.values(), series)
        for side in situation.sides
        if (mode := kernel.modes.get(side.family)) is not None
    )
    return tuple(counts for counts in found if counts is not None)


def read(mode: Mode, plans: Iterable[ServicePlan], series: str) -> Counts | None:
    """Read what one mode has counted; None where it does not, was told not to, or cannot be read."""
    if series == Series.NONE.value or not isinstance(mode, CountingBackend):
        return None
    try:
        return mode.counts(plans)
    except (VipwireError, OSError):
        return None


def count_document(count: Count | None) -> dict[str, int | None] | None:
    """Describe a count; null if nobody counts."""
    if count is None:
        return None
    return {name: getattr(count, attribute) for attribute, name in _NAMES.items()}


def open_document(now: OpenConnections | None) -> dict[str, int] | None:
    """Describe the connections that exist."""
    return None if now is None else {"active": now.active, "inactive": now.inactive}


def refusal_documents(refusals: dict[tuple[Refusal, ServicePortName | None], int]) -> list[dict[str, Any]]:
    """Describe refusals, the most frequent first."""
    ordered = sorted(refusals.items(), key=lambda item: (-item[1], item[0][0].value, str(item[0][1])))
    return [
        {
            "reason": reason.value,
            "action": "drop" if reason.is_drop else "reject",
            "service": None if name is None else str(name.service),
            "port": None if name is None else name.port,
            "protocol": None if name is None else name.protocol.label,
            "packets": number,
        }
        for (reason, name), number in ordered
    ]
