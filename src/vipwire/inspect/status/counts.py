"""Reads the modes' counts for status and top, for both families, and describes them as fields of documents.

A Service port without counts in a counting mode has 0 connections. Its numbers are null if the mode does not count,
counting is off, or the kernel cannot be read.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from vipwire.config.sections import CounterLevel
from vipwire.errors import VipwireError
from vipwire.inspect.node.situation import Situation
from vipwire.model.names import ObjectName, ServicePortName
from vipwire.model.net import Family
from vipwire.modes.spec import Mode
from vipwire.reconcile.counts import Counts, EndpointName, Measure, Owner, Refusal

_TRAFFIC = (Measure.CONNECTIONS, Measure.PACKETS, Measure.BYTES, Measure.REPLY_PACKETS, Measure.REPLY_BYTES)


def read_observed_counts(situation: Situation, names: Iterable[ObjectName] | None = None) -> Counts:
    """Read the counts of some Services, or of all, from the modes whose kernel objects were read."""
    sides = ((side.family, side.mode) for side in situation.sides if side.observed is not None)
    return read_counts(situation, {family: mode for family, mode in sides if mode is not None}, names)


def read_counts(
    situation: Situation, modes: Mapping[Family, Mode], names: Iterable[ObjectName] | None = None
) -> Counts:
    """Read the counts of the planned Services, or of some. Connections are None if no mode counts them."""
    chosen, total = None if names is None else frozenset(names), Counts()
    for side in situation.sides:
        mode = modes.get(side.family)
        if mode is None or situation.config.counters.level is CounterLevel.NOTHING:
            continue
        plans = [plan for name, plan in side.plans.items() if chosen is None or name in chosen]
        try:
            total.add_all(mode.read_counts(plans))
        except (VipwireError, OSError):
            continue
        total.setdefault(Measure.CONNECTIONS, {})
    return total


def count_document(counts: Counts, owner: Owner) -> dict[str, int | None] | None:
    if Measure.CONNECTIONS not in counts:
        return None
    numbers = {measure.value: counts.get(measure, {}).get(owner) for measure in _TRAFFIC}
    return numbers | {Measure.CONNECTIONS.value: numbers[Measure.CONNECTIONS.value] or 0}


def open_connections_document(counts: Counts, endpoint: EndpointName) -> dict[str, int] | None:
    """Describe the open connections; null if the mode does not know."""
    if endpoint not in counts.get(Measure.ACTIVE, {}):
        return None
    return {measure.value: counts[measure][endpoint] for measure in (Measure.ACTIVE, Measure.INACTIVE)}


def build_refusal_documents(refusals: Mapping[tuple[Refusal, Owner], int]) -> list[dict[str, Any]]:
    ordered = sorted(refusals.items(), key=lambda item: (-item[1], item[0][0].value, str(item[0][1])))
    return [
        {
            "reason": reason.value,
            "action": "drop" if reason.is_drop else "reject",
            "service": str(port.service) if isinstance(port, ServicePortName) else None,
            "port": port.port if isinstance(port, ServicePortName) else None,
            "protocol": port.protocol.label if isinstance(port, ServicePortName) else None,
            "packets": number,
        }
        for (reason, port), number in ordered
    ]
