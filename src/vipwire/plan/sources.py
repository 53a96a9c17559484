"""Decides who may use a frontend: `loadBalancerSourceRanges`, and an annotation that does the same for node ports."""

from collections.abc import Iterable

from vipwire.model.net import Address, Prefix
from vipwire.model.service import Service
from vipwire.plan.annotations import Wishes
from vipwire.plan.node import NodePlan
from vipwire.plan.plan import FrontendKind


def allowed_sources(
    node: NodePlan, service: Service, vip: Address | None, kind: FrontendKind, wishes: Wishes
) -> tuple[Prefix, ...] | None:
    """Compute the sources that a load balancer IP accepts, and node ports where an annotation says so; None for all.

    If the node itself is allowed then so is the VIP as a source: a load balancer may send from it.
    """
    given: tuple[Prefix, ...] = ()
    if kind is FrontendKind.LOAD_BALANCER:
        given = service.source_ranges
    elif kind is FrontendKind.NODE_PORT:
        given = wishes.node_port_sources
    if not given:
        return None
    ranges = [prefix for prefix in given if prefix.family is node.family]
    if not ranges or any(prefix.length == 0 for prefix in ranges):
        return None
    if node.address is not None and vip is not None and any(node.address in prefix for prefix in ranges):
        ranges.append(Prefix.host(vip))
    return _collapsed(ranges)


def _collapsed(prefixes: Iterable[Prefix]) -> tuple[Prefix, ...]:
    """Leave out prefixes that lie in another: two prefixes nest or are disjoint, and the kernel refuses overlaps."""
    kept: list[Prefix] = []
    for prefix in sorted(set(prefixes)):
        if not (kept and prefix.network in kept[-1]):
            kept.append(prefix)
    return tuple(kept)
