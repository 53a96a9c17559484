"""Chooses endpoints by readiness, termination, locality and hints (KEP-1669, KEP-2433, KEP-3015).

    cluster   ready endpoints that topology hints allow; if none is ready, terminating ones that still serve
    local     the same among the endpoints on this node, without hints

vipwire leaves out ejected endpoints while others remain. For others it ignores hints, but never a Local policy.
Traffic policies choose between the two pools. `anywhere` distinguishes an empty `local` (drop: another node can
answer) from a Service without any endpoint (reject).
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

from vipwire.model.names import ServicePortName
from vipwire.model.net import Address, Family
from vipwire.model.service import Endpoint, EndpointSlice
from vipwire.plan.node import NodePlan
from vipwire.plan.plan import Pool, Target

_NONE: Final[frozenset[Address]] = frozenset()


class Candidate(NamedTuple):
    """An endpoint of one Service port, with the port that it serves."""

    target: Target
    endpoint: Endpoint


class Endpoints(NamedTuple):
    """The usable endpoints of a Service port. `ready_local` are the addresses of the ready ones on this node."""

    cluster: Pool
    local: Pool
    anywhere: bool
    ready_local: frozenset[Address]


def usual_endpoints(name: ServicePortName, node: NodePlan, slices: Sequence[EndpointSlice]) -> Endpoints | None:
    """Return the endpoints of the usual Service port in half the time; None: use `list_candidates` and `categorize`.

    A usual port has one slice with one port; all endpoints are ready, no address comes twice, and no hint applies.
    """
    if len(slices) != 1 or len(slices[0].ports) != 1:
        return None
    piece, port = slices[0], slices[0].ports[0]
    found = piece.endpoints
    if not found or piece.family is not node.family or port.name != name.port or port.protocol is not name.protocol:
        return None
    if (node.name and found[0].nodes) or (node.zone and found[0].zones):  # without a hint, the first ends all hints
        return None
    make, here, number = tuple.__new__, node.name or None, port.port
    targets = sorted([make(Target, (each.address, number, each.node == here)) for each in found if each.ready])
    if len(targets) < len(found) or len({target.address for target in targets}) < len(found):
        return None
    local = tuple([target for target in targets if target.local])
    ready_local = frozenset([target.address for target in local]) if local else _NONE
    return Endpoints(tuple(targets), local, anywhere=True, ready_local=ready_local)


def list_candidates(
    name: ServicePortName, family: Family, slices: Iterable[EndpointSlice], node: str
) -> list[Candidate]:
    """Collect the endpoints of a Service port from its slices, sorted, each address and port once.

    Slices overlap while the controller moves an endpoint: the better entry counts (ready, serving, local).
    """
    found: list[Candidate] = []
    for piece in slices:
        if piece.family is family:
            for port in piece.ports:
                if port.name == name.port and port.protocol is name.protocol:
                    found += _pair_with_targets(piece, port.port, node)
    best = {candidate.target[:2]: candidate for candidate in found}
    if len(best) < len(found):
        best = {}
        for candidate in found:
            old = best.get(candidate.target[:2])
            if old is None or _rank_usability(candidate) > _rank_usability(old):
                best[candidate.target[:2]] = candidate
    return [best[key] for key in sorted(best)]


def _pair_with_targets(piece: EndpointSlice, port: int, node: str) -> list[Candidate]:
    """Pair each endpoint with its target. Plain tuples: making named tuples takes twice as long."""
    make, here = tuple.__new__, node or None
    return [
        make(Candidate, (make(Target, (endpoint.address, port, endpoint.node == here)), endpoint))
        for endpoint in piece.endpoints
    ]


def _rank_usability(candidate: Candidate) -> tuple[bool, bool, bool]:
    return candidate.endpoint.ready, candidate.endpoint.serving, candidate.target.local


def categorize(
    found: Sequence[Candidate], node: NodePlan, ejected: Callable[[Target], bool] | None = None
) -> Endpoints:
    """Sort endpoints into cluster and local pools, without an `ejected` one while another can take its place."""
    ready = [candidate for candidate in found if candidate.endpoint.ready]
    ending = _select_serving_terminating(found) if len(ready) < len(found) else []  # else all are ready
    usable = ready or ending
    near = _build_hint_test(ready, node) if ready else None
    cluster = usable if near is None else [candidate for candidate in ready if near(candidate.endpoint)]
    local = [candidate for candidate in ready if candidate.target.local]
    ready_local = frozenset([candidate.target.address for candidate in local]) if local else _NONE
    if ending and not local:
        local = [candidate for candidate in ending if candidate.target.local]
    if ejected is not None:
        cluster, local = _choose_pool(ejected, cluster, usable), _choose_pool(ejected, local)
    return Endpoints(_build_pool(cluster), _build_pool(local) if local else (), bool(usable), ready_local)


def choose_anywhere(found: Sequence[Candidate]) -> list[Candidate]:
    """Choose the endpoints that may answer, on any node: the ready ones, else terminating ones that still serve."""
    return [candidate for candidate in found if candidate.endpoint.ready] or _select_serving_terminating(found)


def _select_serving_terminating(found: Iterable[Candidate]) -> list[Candidate]:
    return [c for c in found if c.endpoint.terminating and c.endpoint.serving]


def _choose_pool(ejected: Callable[[Target], bool], *pools: list[Candidate]) -> list[Candidate]:
    """Return the first pool without ejected endpoints, or the next one, or at last the whole first pool."""
    left = ([candidate for candidate in pool if not ejected(candidate.target)] for pool in pools)
    return next(filter(None, left), pools[0])


def _build_pool(chosen: Iterable[Candidate]) -> Pool:
    return tuple([candidate.target for candidate in chosen])


def _build_hint_test(ready: Sequence[Candidate], node: NodePlan) -> Callable[[Endpoint], bool] | None:
    """Return a test for the hints; None unless every ready endpoint has one and one names this zone or node."""
    first = ready[0].endpoint  # nearly always without hints, so the others need no look
    name, zone = node.name, node.zone
    if name and first.nodes and all(c.endpoint.nodes for c in ready) and any(name in c.endpoint.nodes for c in ready):
        return lambda endpoint: name in endpoint.nodes
    if zone and first.zones and all(c.endpoint.zones for c in ready) and any(zone in c.endpoint.zones for c in ready):
        return lambda endpoint: zone in endpoint.zones
    return None
