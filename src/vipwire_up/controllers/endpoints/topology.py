"""Zone hints for Services with `service.kubernetes.io/topology-mode: Auto` (KEP-2433). Pure.

Clients of a zone use the endpoints with a hint for it. vipwire expects a zone's part of the traffic to be its part of
the CPUs of all Nodes, and gives it that part of the endpoints, its own first.

    desired    endpoints * share
    minimum    desired / 1.2, rounded up: with fewer, each would get 20 % more traffic than its part

Zones with the most endpoints above `desired` give some to zones below their minimum. If that is impossible (too few
endpoints, or missing data of Nodes or endpoints), vipwire sets no hints and reports why. Kubernetes moves more
endpoints, up to `desired`; the bound on an endpoint's overload is the same.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from vipwire_up.api.objects.object import value_at
from vipwire_up.api.objects.resource import Object

ZONE: Final = "topology.kubernetes.io/zone"
OVERLOAD: Final = 0.2
_MOST_CPUS: Final = 1e9
_MODES: Final = ("service.kubernetes.io/topology-mode", "service.kubernetes.io/topology-aware-hints")
_CONTROL_PLANE: Final = ("node-role.kubernetes.io/control-plane", "node-role.kubernetes.io/master")

FEW_NODES: Final = "fewer than two zones have Nodes with a zone and CPUs"
FEW_FACTS: Final = "a Node has no zone or no CPUs"
FEW_ENDPOINTS: Final = "fewer endpoints than zones"
NO_ZONE: Final = "an endpoint is in none of these zones"
NO_BALANCE: Final = "every distribution would overload some endpoints"


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """A Node's zone and CPUs; None for Nodes that run no workloads or are not ready."""

    zone: str
    cpus: float | None


@dataclass(frozen=True, slots=True)
class Shares:
    """Each zone's part of all CPUs; empty, with the reason, if unknown."""

    by_zone: Mapping[str, float]
    problem: str = ""


def read_node_facts(node: Object) -> NodeFacts:
    labels = value_at(node, "metadata", "labels") or {}
    conditions = value_at(node, "status", "conditions") or ()
    ready = any(each.get("type") == "Ready" and each.get("status") == "True" for each in conditions)
    counts = ready and not any(role in labels for role in _CONTROL_PLANE)
    zone = labels.get(ZONE)
    return NodeFacts(
        zone if isinstance(zone, str) else "",
        _parse_cpus(value_at(node, "status", "allocatable", "cpu")) if counts else None,
    )


def compute_zone_shares(nodes: Iterable[NodeFacts]) -> Shares:
    cpus: dict[str, float] = {}
    for node in nodes:
        if node.cpus is None:
            continue
        if not node.zone or not node.cpus:
            return Shares({}, FEW_FACTS)
        cpus[node.zone] = cpus.get(node.zone, 0.0) + node.cpus
    if len(cpus) < 2:
        return Shares({}, FEW_NODES)
    return Shares({zone: cpus[zone] / sum(cpus.values()) for zone in sorted(cpus)})


def wants_topology_hints(service: Object) -> bool:
    annotations = value_at(service, "metadata", "annotations") or {}
    return any(annotations.get(name) in ("Auto", "auto") for name in _MODES)


def assign_zone_hints(endpoints: Sequence[Object], known: Shares) -> str:
    """Set zone hints on the ready endpoints of one family. If impossible, set none and return the reason, else ""."""
    ready = sorted(
        (each for each in endpoints if each["conditions"]["ready"]), key=lambda each: str(each["addresses"])
    )
    problem = known.problem or _find_obstacle(ready, known.by_zone)
    if problem:
        return problem
    held: dict[str, list[Object]] = {zone: [] for zone in known.by_zone}
    for endpoint in ready:
        held[endpoint["zone"]].append(endpoint)
    desired = {zone: len(ready) * share for zone, share in known.by_zone.items()}
    least = {zone: math.ceil(number / (1 + OVERLOAD)) for zone, number in desired.items()}
    if sum(least.values()) > len(ready):
        return NO_BALANCE
    for zone, listed in held.items():
        while len(listed) < least[zone]:
            givers = (other for other in held if len(held[other]) > least[other])
            giver = max(givers, key=lambda other: len(held[other]) - desired[other])
            listed.append(held[giver].pop())
    for zone, listed in held.items():
        for endpoint in listed:
            endpoint["hints"] = {"forZones": [{"name": zone}]}
    return ""


def _find_obstacle(ready: Sequence[Object], by_zone: Mapping[str, float]) -> str:
    if len(ready) < len(by_zone):
        return FEW_ENDPOINTS
    return "" if all(each.get("zone") in by_zone for each in ready) else NO_ZONE


def _parse_cpus(quantity: object) -> float:
    """Parse a number of CPUs, such as 4 or 3920m; 0 if it is not a number, negative or infinite."""
    text = str(quantity or "")
    try:
        number = float(text.removesuffix("m")) / (1000 if text.endswith("m") else 1)
    except ValueError:
        return 0.0
    return number if 0 < number < _MOST_CPUS else 0.0
